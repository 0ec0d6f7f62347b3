"""What the README promises, through the command line, on real processes: emulator, hosts, agents, JAX."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bastion.processes import marked
from bastion.wiring.local import down
from bastion.wiring.local_home import LocalHome
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]
BASTION = [sys.executable, "-m", "bastion.cli.main"]
# As AXLearn's own serializer writes it.
ANCESTOR = (
    '{"version": 1, "name": "%s", "command": "%s", "cleanup_command": null, "env_vars": null, "metadata": '
    '{"user_id": "%s", "project_id": "default", "creation_time": "2026-01-02 03:04:05.000006", "resources": {"v4": 8}, '
    '"priority": 3, "job_id": "1", "version": null, "scaling_specs": null}}'
)
TWO_PROJECTS = """
[toml-schema]
version = "1"
[total_resources]
v4 = 16
[project_rules]
keep_idle_seconds = 0.0
[project_membership]
lender = [".*"]
borrower = [".*"]
[project_resources.lender]
v4 = 0.5
[project_resources.borrower]
v4 = 0.5
"""


class User:
    """Somebody at a shell, with a BASTION_HOME of their own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.root = home / "buckets" / "permanent" / "local-bastion"
        self.environment = {**os.environ, "BASTION_HOME": str(home)}

    def bastion(self, *arguments: str, seconds: float = 180.0) -> subprocess.CompletedProcess[str]:
        command = [*BASTION, *arguments]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=seconds, check=False, cwd=self.home
        )

    def json(self, *arguments: str) -> Any:
        return json.loads(self.bastion(*arguments, "--output=json").stdout)

    def result(self, name: str) -> dict[str, Any] | None:
        try:
            result: dict[str, Any] = json.loads((self.root / "jobs" / "complete" / name).read_bytes())["result"]
        except FileNotFoundError:
            return None
        return result if not (self.root / "jobs" / "states" / name).exists() else None

    def drop_spec(self, name: str, command: str) -> None:
        """As a client without our library: a file is copied into the folder."""
        draft = self.home / f"{name}.json"
        draft.write_text(ANCESTOR % (name, command, "somebody"))
        shutil.copy(draft, self.root / "jobs" / "active" / name)


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[User]:
    home = tmp_path_factory.mktemp("user")
    yield User(home)
    down(LocalHome(home), say=lambda _: None)
    assert marked("BASTION_LOCAL_HOME", str(home)) == []


@pytest.fixture
def open_to_all(user: User) -> Iterator[User]:
    """The bastion is up, and every user is a member of the only project."""
    assert user.bastion("local", "up").returncode == 0
    quota = user.root / "project-quotas" / "project-quotas.config"
    starter = quota.read_text()
    quota.write_text(starter.replace("default = [", 'default = [".*", '))
    yield user
    quota.write_text(starter)


def test_the_main_job_prints_sixteen_devices_on_each_of_four_hosts(user: User) -> None:
    program = "import jax; print(jax.process_index(), jax.devices())"
    done = user.bastion("launch", "--instance_type=tpu-v4-32", "--wait", "--", "python3", "-c", program)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line[: len("[w00] 0 ")] for line in lines] == [f"[w0{i}] {i} " for i in range(4)]
    assert [line.count("CpuDevice(") for line in lines] == [16] * 4


def test_replicas_are_one_gang_whose_hosts_know_their_slice(user: User) -> None:
    line = "echo $MEGASCALE_SLICE_ID/$MEGASCALE_NUM_SLICES $BASTION_HOST_INDEX/$BASTION_NUM_HOSTS"
    done = user.bastion("launch", "--instance_type=tpu-v4-16", "--num_replicas=2", "--wait", "--", "bash", "-c", line)
    assert done.returncode == 0, done.stderr
    texts = sorted(line.rpartition("] ")[2] for line in done.stdout.splitlines())
    assert texts == ["0/2 0/4", "0/2 1/4", "1/2 2/4", "1/2 3/4"]


def test_a_job_without_an_instance_type_returns_its_exit_code(user: User) -> None:
    done = user.bastion("launch", "--wait", "--", "bash", "-c", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "err\n" in done.stderr


def test_a_folder_goes_along_to_the_bastion_itself_and_a_clients_own_tar_file_is_taken(user: User) -> None:
    folder = user.home.parent / "code"
    folder.mkdir()
    (folder / "said.py").write_text("text = 'from the tree'\n")
    program = ("--", "python3", "-c", "import said; print(said.text)")
    done = user.bastion("launch", f"--bundle={folder}", "--wait", *program)
    assert (done.returncode, done.stdout) == (0, "from the tree\n"), done.stderr

    with tarfile.open(user.home / "own.tar", "w") as tar:
        tar.add(folder / "said.py", "said.py")
    spec = json.loads(user.bastion("launch", "--dry_run", "--name=own", *program).stdout)
    for name, asset in (("own", "own.tar"), ("gone", "gone.tar")):
        document = {**spec, "name": name, "code_asset_path": str(user.home / asset)}
        (user.home / f"{name}.json").write_text(json.dumps(document))
    own, gone = (user.bastion("submit", f"--spec={name}.json", "--wait") for name in ("own", "gone"))
    assert (own.returncode, own.stdout) == (0, "from the tree\n"), own.stderr
    assert (gone.returncode, "BundleMissing" in gone.stderr) == (66, True), gone.stderr


def test_the_worker_that_fails_first_is_named_with_its_code_and_the_others_end_at_once(user: User) -> None:
    failed = user.home / "failed-at"
    command = f'[ "$BASTION_HOST_INDEX" = 3 ] && date +%s > {failed} && exit 5; sleep 600'
    done = user.bastion("launch", "--name=three", "--instance_type=tpu-v4-32", "--wait", "--", "bash", "-c", command)
    assert done.returncode == 5
    assert time.time() - float(failed.read_text()) < 30, "the others sleep for ten minutes"
    assert "worker 3 exited with code 5" in user.bastion("history", "three").stdout
    result = user.result("three")
    assert result is not None
    assert (result["exit_code"], result["failed_worker"]) == (5, 3)


def test_the_segments_in_the_bucket_folder_read_in_order_with_plain_cat(user: User) -> None:
    # The rest is printed when the first lines are stored.
    stored = f"compgen -G '{user.root}/logs/lines.d/*/worker-0/*' > /dev/null"
    command = f"for i in $(seq 400); do echo line $i; [ $i = 100 ] && until {stored}; do sleep 0.05; done; done; true"
    done = user.bastion("launch", "--name=lines", "--wait", "--", "bash", "-c", command)
    assert done.returncode == 0
    segments = subprocess.run(
        ["bash", "-c", f"ls {user.root}/logs/lines.d/*/worker-0/* | wc -l; cat {user.root}/logs/lines.d/*/worker-0/*"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert int(segments[0]) > 1, "one segment proves no order"
    lines = [line.split(" ", 3) for line in segments[1:]]
    assert [line[0] for line in lines] == sorted(line[0] for line in lines)
    assert [line[3] for line in lines if line[1] != "proof"] == [f"line {i}" for i in range(1, 401)]
    assert sum(line[1] == "proof" for line in lines) == int(segments[0])
    assert (user.root / "logs" / "lines").read_text().splitlines() == [f"line {i}" for i in range(1, 401)]


def test_a_spec_of_another_client_copied_into_the_folder_runs_and_its_name_can_be_used_again(open_to_all: User) -> None:
    user = open_to_all
    user.drop_spec("copied", "echo hi")
    until(lambda: user.result("copied"))
    first = user.result("copied")
    assert first is not None
    assert (first["outcome"], first["exit_code"]) == ("succeeded", 0)
    assert not (user.root / "jobs" / "active" / "copied").exists()
    assert user.bastion("logs", "copied").stdout == "hi\n"
    user.drop_spec("copied", "exit 3")
    until(lambda: (user.result("copied") or first)["uid"] != first["uid"])
    second = user.result("copied")
    assert second is not None
    assert second["exit_code"] == 3
    assert (user.root / "jobs" / "complete" / f"copied~{first['uid']}").exists()


def test_a_user_states_file_cancels_a_job(open_to_all: User) -> None:
    user = open_to_all
    user.drop_spec("endless", "sleep 600")
    until(lambda: '"phase":"running"' in (user.root / "status" / "current.json").read_text())
    (user.root / "jobs" / "user_states" / "endless").write_text('{"status": "CANCELLING"}')
    until(lambda: user.result("endless"))
    result = user.result("endless")
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("cancelled", 143)
    assert not (user.root / "jobs" / "user_states" / "endless").exists()


def test_an_owners_return_evicts_the_borrower_which_is_told_and_runs_again(user: User) -> None:
    assert user.bastion("local", "up").returncode == 0
    quota = user.root / "project-quotas" / "project-quotas.config"
    before = quota.read_text()
    quota.write_text(TWO_PROJECTS)
    command = ["--", "bash", "-c", 'echo attempt $BASTION_ATTEMPT; [ "$BASTION_ATTEMPT" = 2 ] || sleep 600']
    borrow = ["launch", "--name=borrower", "--project_id=borrower", "--instance_type=tpu-v4-16"]
    assert user.bastion(*borrow, *command).returncode == 0
    until(lambda: user.json("why", "borrower").get("phase") == "running" or "running" in str(user.json("list")))
    owner = user.bastion(
        "launch", "--name=owner", "--project_id=lender", "--instance_type=tpu-v4-8", "--wait", "--", "echo", "mine"
    )
    assert (owner.returncode, owner.stdout) == (0, "mine\n"), owner.stderr
    until(lambda: user.result("borrower"))
    result = user.result("borrower")
    assert result is not None
    assert [attempt["cause"] for attempt in result["attempts"]] == ["evicted", "succeeded"]
    history = user.bastion("history", "borrower").stdout
    assert "evicted" in history
    assert "owner" in history
    assert "evicted" in user.bastion("why", "borrower").stdout
    quota.write_text(before)


def test_ending_the_local_bastion_leaves_no_process(user: User) -> None:
    assert user.bastion("launch", "--instance_type=tpu-v4-16", "--", "sleep", "600").returncode == 0
    until(lambda: "running" in user.bastion("list").stdout)
    assert marked("BASTION_LOCAL_HOME", str(user.home)) != []
    assert user.bastion("local", "down").returncode == 0
    assert marked("BASTION_LOCAL_HOME", str(user.home)) == []
    assert user.bastion("local", "status").returncode == 1
