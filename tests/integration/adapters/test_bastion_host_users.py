"""Users of their own for commands on the bastion's host: taken, given back, and nothing left of them. As root only."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion import job_user, processes
from bastion.adapters import bastion_host_users
from bastion.adapters.bastion_host import BastionHostProvisioner
from bastion.core.bucket.protocol import AgentArguments
from bastion.core.errors import ProvisionerRefused, ProvisionerUnavailable, Stockout
from bastion.core.model.bastion_host_jobs import HostJobsMode
from bastion.core.model.gangs import GangRef, GangRequest, GangState
from bastion.job_user import JobUser
from tests.support.unix_users import claim_users
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can run commands as other users here")

FIRST = claim_users()
SECOND = FIRST + 1
USERS = [job_user.resolve(f"{number}:{number}") for number in (FIRST, SECOND)]
# Stands for Python running the agent: makes the job's folder, and runs the job's name as shell code as the job's user.
AGENT = """#!{python}
import json, os, subprocess, sys
arguments = json.load(open(sys.argv[3].partition("=")[2]))
uid, gid = map(int, arguments["job_user"].split(":"))
os.umask(0o022)
job = os.environ["BASTION_STATE_DIR"] + "/r.0/job"
os.makedirs(job)
os.chown(job, uid, gid)
os.chmod(job, 0o700)
code = ["bash", "-c", arguments["job"]]
env = {{"JOB": job, "SHARED": os.environ["SHARED"]}}
sys.exit(subprocess.call(code, user=uid, group=gid, extra_groups=[], cwd="/", env=env))
"""


@pytest.fixture
def shared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """In the place of /tmp, which here is everybody's."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    bastion_host_users.open_way(folder.parents)
    monkeypatch.setattr(bastion_host_users, "PLACES", (str(folder), "/dev/shm"))
    monkeypatch.setenv("SHARED", str(folder))
    yield folder
    # pytest does not remove trees of any depth.
    subprocess.run(["rm", "-rf", str(folder)], check=True)


@pytest.fixture
def place(tmp_path: Path, shared: Path) -> Iterator[Place]:
    interpreter = tmp_path / "agent"
    interpreter.write_text(AGENT.format(python=sys.executable))
    interpreter.chmod(0o700)
    place = Place(tmp_path / "nodes", interpreter)
    yield place
    place.end()


class Place:
    def __init__(self, directory: Path, interpreter: Path) -> None:
        self.directory = directory
        self.interpreter = interpreter
        self.provisioner = self.another()

    def another(self, *, mode: HostJobsMode = HostJobsMode.OWN_USER) -> BastionHostProvisioner:
        made = BastionHostProvisioner(self.directory, interpreter=str(self.interpreter), delete_grace_seconds=0.3)
        made.run_commands(mode, USERS)
        return made

    def create(self, letter: str, code: str = "exec sleep 60") -> None:
        self.provisioner.create(request(letter, code))

    def user(self, letter: str) -> str:
        node: dict[str, str] = json.loads((self.directory / name(letter) / "node.json").read_bytes())
        return node.get("user", "")

    def delete(self, letter: str) -> None:
        self.provisioner.delete(GangRef(name=name(letter)))
        until(lambda: not list(self.directory.glob(f".gone-{name(letter)}.*")) and self.state(letter) is None)

    def state(self, letter: str) -> GangState | None:
        status = self.provisioner.get(GangRef(name=name(letter)))
        return None if status is None else status.state

    def end(self) -> None:
        for status in self.provisioner.list():
            self.provisioner.delete(status.ref)
        # What is on its way out is cleared, too: the next test's commands have the same users.
        until(lambda: not self.provisioner.list() and not list(self.directory.glob(".gone-*")))
        for user in USERS:
            bastion_host_users.clear(user)


def name(letter: str) -> str:
    return f"b-{letter * 10}-1"


def request(letter: str, code: str) -> GangRequest:
    run = f"{letter * 10}-1"
    arguments = AgentArguments(root="/r/t-bastion", bastion="t-bastion", job=code, run=run, run_key="ab" * 32)
    return GangRequest(
        ref=GangRef(name=name(letter)),
        bastion="t-bastion",
        run=run,
        token="secret",
        accelerator_type="",
        agent_arguments=arguments.to_bytes().decode(),
    )


def as_user(user: JobUser, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", "-c", code], user=user.uid, group=user.gid, extra_groups=[], cwd="/", text=True, capture_output=True,
        check=False,
    )  # fmt: skip


def test_each_gang_has_the_lowest_user_that_is_free_and_a_full_pool_is_no_room(place: Place) -> None:
    place.create("a")
    place.create("b")
    assert (place.user("a"), place.user("b")) == (f"{FIRST}:{FIRST}", f"{SECOND}:{SECOND}")
    with pytest.raises(Stockout, match="all 2 users"):
        place.create("c")
    place.delete("a")
    place.create("d")
    assert place.user("d") == f"{FIRST}:{FIRST}"


def test_another_run_of_these_tests_at_the_same_time_has_other_users() -> None:
    program = "from tests.support.unix_users import claim_users; print(claim_users())"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(other.stdout) not in range(FIRST, FIRST + 10)


def test_a_user_with_a_process_is_not_given_away(place: Place) -> None:
    stranger = subprocess.Popen(["sleep", "60"], user=FIRST)
    try:
        place.create("a")
        assert place.user("a") == f"{SECOND}:{SECOND}"
    finally:
        stranger.kill()
        stranger.wait()


def test_nothing_escapes_a_deletion(place: Place) -> None:
    place.create(
        "a", "trap '' TERM; setsid -f sleep 61; env -i setsid -f bash -c 'trap \"\" TERM; sleep 62; sleep 63'; sleep 64"
    )
    until(lambda: len(USERS[0].processes()) >= 4)
    place.delete("a")
    assert USERS[0].processes() == []


def test_who_forks_faster_than_any_list_ends_too(place: Place, shared: Path) -> None:
    hop = "import os\nos.setsid()\nbeat = os.environ['SHARED'] + '/beat'\n"
    hop += "while True:\n    open(beat, 'w').close()\n    if os.fork(): os._exit(0)"
    (shared / "hop.py").write_text(hop)
    (shared / "hop.py").chmod(0o644)
    place.create("a", "/usr/bin/python3 $SHARED/hop.py & wait; exec sleep 60")
    until((shared / "beat").exists)
    place.delete("a")
    (shared / "hop.py").unlink()
    time.sleep(0.1)
    assert remains(USERS[0], shared) == 0


def test_a_command_reaches_its_own_folder_and_nothing_else_of_the_gangs(place: Place) -> None:
    place.create("a", 'echo mine > "$JOB/file"; chmod 000 "$JOB"; exec sleep 60')
    folder = place.directory / name("a")
    job = folder / "state" / "r.0" / "job"
    until(lambda: job.exists() and job.stat().st_mode & 0o777 == 0)
    agent = int((folder / "process").read_text().partition(":")[0])
    for what in (f"ls {place.directory}", f"ls {folder}", f"cat {folder}/node.json", f"cat {folder}/arguments.json",
                 f"cat {folder}/agent.log", f"touch {folder}/deleting", f"cat /proc/{agent}/environ",
                 f"ls /proc/{agent}/fd", f"kill -9 {agent}"):  # fmt: skip
        assert as_user(USERS[0], what).returncode != 0, what
    assert as_user(USERS[1], f"ls {job}").returncode != 0
    place.delete("a")
    assert not folder.exists()


LEFT = """
mkdir -p $SHARED/left/a/b && echo x > $SHARED/left/a/b/c && chmod 000 $SHARED/left/a
ln -s /etc $SHARED/left-link; echo x > /dev/shm/left-$UID
ipcmk -M 4096 -S 2 -Q
"""


def remains(user: JobUser, shared: Path) -> int:
    found = len([*shared.iterdir(), *Path("/dev/shm").glob(f"left-{user.uid}*")])
    for kind in ("shm", "sem", "msg"):
        head, *rows = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()
        owner = head.split().index("uid")
        found += sum(int(row.split()[owner]) == user.uid for row in rows)
    return found


def test_what_a_command_left_elsewhere_is_gone_before_the_next_one_gets_its_user(place: Place, shared: Path) -> None:
    assert as_user(USERS[0], LEFT).returncode == 0
    assert remains(USERS[0], shared) == 6
    place.create("a")
    assert remains(USERS[0], shared) == 0
    assert Path("/etc/passwd").exists()


def test_a_deletion_removes_what_the_command_left(place: Place, shared: Path) -> None:
    place.create("a", f"{LEFT}\ntouch $SHARED/done\nexec sleep 60")
    until(lambda: (shared / "done").exists())
    place.delete("a")
    assert remains(USERS[0], shared) == 0


def test_a_tree_of_any_depth_goes(shared: Path) -> None:
    deep = "import os\nos.chdir(os.environ['SHARED'])\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"
    assert as_user(USERS[0], f'/usr/bin/python3 -c "{deep}"').returncode == 0
    assert bastion_host_users.clear(USERS[0]) == ""
    assert remains(USERS[0], shared) == 0


def test_what_cannot_be_removed_is_said_and_the_next_gang_gets_another_user(place: Place, shared: Path) -> None:
    (shared / "others").mkdir()
    (shared / "others" / "kept").write_text("")
    os.chown(shared / "others" / "kept", FIRST, FIRST)
    with pytest.raises(ProvisionerUnavailable, match=f"what user {FIRST} left was not removed: 1 paths are left"):
        place.create("a")
    assert place.provisioner.list() == []
    place.create("b")
    assert place.user("b") == f"{SECOND}:{SECOND}"


def test_only_files_of_the_user_are_removed_and_links_lead_nowhere(shared: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o777)
    victim.chmod(0o777)
    (victim / "file").write_text("kept")
    assert as_user(USERS[0], f"mkdir $SHARED/left; ln -s {victim} $SHARED/left/link").returncode == 0
    assert bastion_host_users.clear(USERS[0]) == ""
    assert (victim / "file").read_text() == "kept"


def test_the_one_who_removes_has_no_right_of_the_daemon(tmp_path: Path, shared: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    assert "1 paths are left" in bastion_host_users.clear(USERS[0], [private])
    assert private.exists()


def test_gangs_of_before_have_no_user_and_go_on(place: Place) -> None:
    place.interpreter.write_text("#!/bin/bash\nexec sleep 60\n")
    before = place.another(mode=HostJobsMode.AS_DAEMON)
    before.create(request("a", "true"))
    assert place.user("a") == ""
    place.create("b")
    assert (place.state("a"), place.user("b")) == (GangState.READY, f"{FIRST}:{FIRST}")
    place.delete("a")
    assert place.state("b") is GangState.READY


def test_a_gang_outlives_its_mode_and_a_daemon_that_has_no_users_any_more_ends_it(place: Place) -> None:
    place.create("a", "trap '' TERM; sleep 60; sleep 60")
    until(lambda: len(USERS[0].processes()) >= 2)
    off = place.another(mode=HostJobsMode.OFF)
    with pytest.raises(ProvisionerRefused, match="are off on this bastion"):
        off.create(request("b", "true"))
    assert place.state("a") is GangState.READY
    place.provisioner = off
    place.delete("a")
    assert processes.of_user(FIRST) == []


def test_a_deletion_that_a_crash_cut_short_frees_the_user(place: Place) -> None:
    place.create("a")
    until(lambda: len(USERS[0].processes()) >= 1)
    (place.directory / name("a") / "deleting").touch()
    process = int((place.directory / name("a") / "process").read_text().partition(":")[0])
    os.kill(process, signal.SIGKILL)
    place.provisioner = place.another()
    until(lambda: place.provisioner.list() == [])
    until(lambda: not list(place.directory.glob(".gone-*")))
    place.create("b")
    assert place.user("b") == f"{FIRST}:{FIRST}"


FROZEN = """
import sys, time
from pathlib import Path
from bastion.adapters.bastion_host import BastionHostProvisioner
from bastion.core.model.gangs import GangRef
daemon = BastionHostProvisioner(Path(sys.argv[1]), delete_grace_seconds=1)
daemon.delete(GangRef(name=sys.argv[2]))
print("deletes", flush=True)
time.sleep(4)
"""


def test_a_daemon_that_was_frozen_while_it_ended_a_gang_does_not_end_the_next_one_of_that_user(place: Place) -> None:
    place.create("a", "trap '' TERM; sleep 60; sleep 60")
    until(lambda: len(USERS[0].processes()) >= 2)
    frozen = subprocess.Popen(
        [sys.executable, "-c", FROZEN, str(place.directory), name("a")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert frozen.stdout is not None
        assert frozen.stdout.readline() == "deletes\n"
        time.sleep(0.2)
        frozen.send_signal(signal.SIGSTOP)
        place.delete("a")
        place.create("b")
        until(lambda: any(user.processes() for user in USERS))
        frozen.send_signal(signal.SIGCONT)
        assert frozen.wait(60) == 0
        assert place.user("b") == f"{SECOND}:{SECOND}"
        assert place.state("b") is GangState.READY
        assert USERS[1].processes()
    finally:
        frozen.kill()
        frozen.wait()
    place.create("c")  # the frozen one has let go of it
    assert place.user("c") == f"{FIRST}:{FIRST}"


def test_what_the_agent_had_put_aside_goes_with_the_gang_however_deep_and_closed_it_is(place: Place) -> None:
    deep = "import os\nos.chdir(os.environ['JOB'])\nfor _ in range(1500): os.mkdir('d'); os.chdir('d')"
    place.create("a", f'/usr/bin/python3 -c "{deep}"; chmod 000 "$JOB/d"; mkdir "$JOB/made"; exec sleep 60')
    job = place.directory / name("a") / "state" / "r.0" / "job"
    until((job / "made").exists)
    job.rename(job.with_name("discarded-1"))
    place.delete("a")
    until(lambda: not list(place.directory.glob(".gone-*")), 20)
    place.create("b")
    assert place.user("b") == f"{FIRST}:{FIRST}"
