"""The startup script as a pod runs it: a folder as bucket, no metadata server, exit codes and a termination message."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bastion import processes
from bastion.adapters import agent_packer
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.agent_archive import PackedAgent
from bastion.core.bucket.protocol import AgentArguments, Claim, HostPhase, Order, OrderAction, Report
from bastion.core.errors import NotFound
from bastion.core.run_keys import RunKey
from bastion.wiring.roots import open_root
from tests.support.agent_stand_in import stand_in
from tests.support.pod_processes import SCRIPT, Pod, expand
from tests.support.stored_logs import stored_text
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(240)

RUN = "abcdefghij-1"
FOLDERS = "/usr/local/sbin /usr/local/bin /usr/sbin /usr/bin /sbin /bin"


@pytest.fixture(scope="module")
def installed() -> Path:
    """Where the real agent is installed, once for all tests."""
    return Path(os.environ["BASTION_AGENT_DIR"])


@pytest.fixture(scope="module")
def packed(installed: Path) -> PackedAgent:
    return agent_packer.pack(installed)


class Cluster:
    """A bucket in a folder, and the pods of one job."""

    def __init__(self, folder: Path) -> None:
        (folder / "bucket").mkdir()
        self.folder = folder
        self.root = f"{folder}/bucket/team-bastion"
        self.store = open_root(self.root)
        self.key = RunKey(secrets.token_bytes(32))
        self.pods: list[Pod] = []

    def arguments(self, agent: str, **changes: Any) -> AgentArguments:
        arguments = AgentArguments(
            root=self.root, bastion="team-bastion", job="job", run=RUN, run_key=self.key.text, poll_seconds=0.1,
            accelerator_type="v4-8", devices_per_host=4, agent=agent, interpreter=sys.executable,
            gather_hosts=True, leave_when_done=True, shutdown_seconds=20.0,
        )  # fmt: skip
        return arguments.model_copy(update=changes)

    def offer(self, archive: bytes) -> str:
        sha256 = hashlib.sha256(archive).hexdigest()
        self.store.put(keys.agent_file(sha256), archive, generation=0)
        return sha256

    def order(self, command: str) -> None:
        order = Order(run=RUN, action=OrderAction.RUN, command=command, grace_seconds=20.0)
        self.store.put(keys.order(RUN), order.to_bytes(), generation=0)

    def pod(self, arguments: AgentArguments | str, *, worker: int = 0, agents: Path | None = None) -> Pod:
        pod = Pod(self.folder / f"pod-{worker}", arguments, worker=worker, agents=agents or self.folder / "agents")
        self.pods.append(pod)
        return pod

    def report(self, host: int = 0) -> Report | None:
        try:
            return protocol.read(Report, self.store.get(keys.report(RUN, host)).data)
        except NotFound:
            return None

    def log(self, host: int = 0) -> list[str]:
        text = stored_text(self.store, keys.log_segments("job", RUN, host))
        return [line.split(" ", 1)[1] for line in text.splitlines()]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path)
    yield cluster
    for pod in cluster.pods:
        pod.end()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("$(A)-$(B)-$$(A)-$$$$", "1-$(B)-$(A)-$$"),
        ("$A ${A} $", "$A ${A} $"),
        ("$(A $$", "$(A $"),
    ],
)
def test_the_stand_in_for_the_kubelet_expands_as_it_does(text: str, expected: str) -> None:
    assert expand(text, {"A": "1"}) == expected


def test_the_script_with_every_dollar_doubled_is_itself_after_kubernetes_expanded_it() -> None:
    assert expand(SCRIPT.replace("$", "$$"), {"name": "changed", "PATH": "changed"}) == SCRIPT
    assert len(SCRIPT.replace("$", "$$")) < 16 * 1024


def test_a_pod_runs_its_command_stores_everything_and_ends(
    cluster: Cluster, packed: PackedAgent, installed: Path
) -> None:
    cluster.order("env | sort; command -v python3; exit 3")
    pod = cluster.pod(cluster.arguments(cluster.offer(packed.archive)), agents=installed)
    assert pod.start().wait(120) == 0, pod.serial
    report = cluster.report()
    assert report is not None
    assert (report.phase, report.exit_code, report.boot_id) == (
        HostPhase.EXITED, 3, pod.environment["BASTION_POD_UID"]
    )  # fmt: skip
    assert pod.message == "worker 0: command exited with 3"
    claim = protocol.read(Claim, cluster.store.get(keys.claim(RUN, cluster.key.claim_tag)).data)
    assert claim.address.startswith("127.0.0.1:")
    lines = [line.removeprefix("stdout F ") for line in cluster.log()]
    variables = dict(line.split("=", 1) for line in lines if "=" in line)
    assert variables["TPU_WORKER_HOSTNAMES"] == "127.0.0.1"
    assert variables["HOME"] == str(pod.folder / "home")
    assert (pod.folder / "home").is_dir()
    assert str(Path(sys.executable).parent / "python3") in lines
    own = {name for name in pod.environment if name.startswith("BASTION_")} - {"BASTION_EMULATED_TPU", "BASTION_VM"}
    assert own & set(variables) == set()
    assert cluster.key.text not in "\n".join(lines)


def test_two_pods_begin_together_with_the_file_of_an_init_container(
    cluster: Cluster, packed: PackedAgent, installed: Path
) -> None:
    file = cluster.folder / "agent.tar"
    file.write_bytes(packed.archive)
    cluster.order("echo $TPU_WORKER_ID of $TPU_WORKER_HOSTNAMES")
    arguments = cluster.arguments(packed.sha256, hosts_per_slice=2, accelerator_type="v4-16")
    pods = [cluster.pod(arguments, worker=worker, agents=installed) for worker in (0, 1)]
    for pod in pods:
        pod.environment["BASTION_AGENT_FILE"] = str(file)
    # GKE names the hosts of multi-host slices.
    pods[1].environment |= {"TPU_WORKER_HOSTNAMES": "127.0.0.1,127.0.0.2", "TPU_WORKER_ID": "1"}
    first = pods[0].start()
    until(lambda: cluster.report() is not None and pods[0].said("waiting for the report of host 1"))
    assert cluster.store.head(keys.claim(RUN, cluster.key.claim_tag)) is None
    second = pods[1].start()
    assert (first.wait(120), second.wait(120)) == (0, 0)
    assert cluster.log(0) == ["stdout F 0 of b-x-slice-0-0.b-x,b-x-slice-0-1.b-x"]
    assert cluster.log(1) == ["stdout F 1 of 127.0.0.1,127.0.0.2"]
    assert pods[1].message == "worker 1: command exited with 0"


def test_a_pod_that_is_deleted_lets_its_command_save(cluster: Cluster, packed: PackedAgent, installed: Path) -> None:
    cluster.order("trap 'sleep 0.1; echo saved; exit 5' TERM; echo up; while :; do sleep 0.02; done")
    pod = cluster.pod(cluster.arguments(cluster.offer(packed.archive)), agents=installed)
    container = pod.start()
    until(lambda: "stdout F up" in cluster.log())
    # The kubelet signals the container's first process alone.
    container.send_signal(signal.SIGTERM)
    assert container.wait(60) == 0
    report = cluster.report()
    assert report is not None
    assert (report.phase, report.error, report.exit_code) == (HostPhase.STOPPED, "HostShutDown", 5)
    assert "stdout F saved" in cluster.log()
    assert pod.message == "worker 0: the host shut down; command exited with 5"


def test_an_agent_that_crashes_is_started_again_and_the_container_lives_on(
    cluster: Cluster, packed: PackedAgent, installed: Path
) -> None:
    cluster.order("echo up; sleep 300")
    pod = cluster.pod(cluster.arguments(cluster.offer(packed.archive)), agents=installed)
    container = pod.start()
    until(lambda: "stdout F up" in cluster.log())
    (agent,) = [
        member
        for member in processes.marked("BASTION_VM", pod.marker)
        if b"\0-m\0bastion.wiring.agent" in Path(f"/proc/{member.pid}/cmdline").read_bytes()
    ]
    agent.signal(signal.SIGKILL)
    assert container.wait(60) == 0
    report = cluster.report()
    assert report is not None
    assert (report.phase, report.error) == (HostPhase.FAILED, "HostRestarted")
    assert "a try never runs twice" in pod.message


def without_python(folder: Path, *names: str) -> str:
    """The script on an image with these programs alone; they say that they are no Python 3.10."""
    programs = folder / "programs"
    programs.mkdir()
    for name in names:
        (programs / name).write_text("#!/bin/bash\nexit 1\n")
        (programs / name).chmod(0o755)
    (programs / "mkdir").symlink_to("/bin/mkdir")
    assert SCRIPT.count(FOLDERS) == 1
    return SCRIPT.replace(FOLDERS, str(programs))


@pytest.mark.parametrize("names", [(), ("python3", "python3.12")], ids=["none", "old ones"])
def test_an_image_without_python_ends_with_64_and_says_so(cluster: Cluster, names: tuple[str, ...]) -> None:
    pod = cluster.pod(cluster.arguments("0" * 64))
    pod.environment["PATH"] = ""
    assert pod.start(script=without_python(cluster.folder, *names)).wait(60) == 64
    assert pod.message == "there is no Python 3.10 or later in this image; the agent needs one"
    until(lambda: pod.said(f"bastion: {pod.message}"))


def test_an_image_whose_python_has_no_wheels_ends_with_64_and_says_which(cluster: Cluster) -> None:
    later = sys.version_info.minor + 1
    archive = stand_in(needs={"needed": f"cp3{later}-none-any"})
    pod = cluster.pod(cluster.arguments(cluster.offer(archive)))
    assert pod.start().wait(60) == 64
    assert pod.message.startswith("no Python in this image can run the agent; give the daemon wheels for one of them: ")
    assert "missing wheels: needed" in pod.message
    assert f"which supports Python 3.{later}" in pod.message


def test_an_agent_that_this_image_cannot_import_ends_with_64_and_the_error(cluster: Cluster) -> None:
    pod = cluster.pod(cluster.arguments(cluster.offer(stand_in(agent="import no_such_package\n"))))
    assert pod.start().wait(60) == 64
    assert pod.message.startswith("no Python in this image can run the agent; ")
    until(lambda: pod.said("No module named 'no_such_package'"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda _: "", "BASTION_AGENT is malformed: "),
        (lambda _: "{", "BASTION_AGENT is malformed: "),
        (lambda text: json.dumps(json.loads(text) | {"agent": "x"}), "BASTION_AGENT names no agent: 'x' is not a SHA"),
        (lambda text: json.dumps(json.loads(text) | {"root": "x"}), "BASTION_AGENT names no bucket: 'x'"),
        (lambda text: json.dumps(json.loads(text) | {"root": "/a\n$(touch x)"}), "BASTION_AGENT names an invalid path"),
    ],
)
def test_malformed_arguments_end_with_64(cluster: Cluster, change: Callable[[str], str], message: str) -> None:
    pod = cluster.pod(change(cluster.arguments("0" * 64).to_bytes().decode()))
    assert pod.start().wait(60) == 64
    assert pod.message.startswith(message)
    assert {path.name for path in pod.folder.iterdir()} == {"home", "termination-log"}


@pytest.mark.parametrize("there", [True, False], ids=["another file", "no file"])
def test_a_wrong_file_of_an_init_container_ends_with_64(cluster: Cluster, there: bool) -> None:
    file = cluster.folder / "agent.tar"
    if there:
        file.write_bytes(stand_in())
    pod = cluster.pod(cluster.arguments("0" * 64))
    pod.environment["BASTION_AGENT_FILE"] = str(file)
    assert pod.start().wait(60) == 64
    if there:
        assert pod.message.startswith(f"{file} has a wrong SHA-256: expected {'0' * 64}, got ")
    else:
        assert pod.message == f"the pod's init container did not bring the agent: there is no {file}"


def test_a_pod_that_the_agent_cannot_identify_ends_with_64(
    cluster: Cluster, packed: PackedAgent, installed: Path
) -> None:
    pod = cluster.pod(cluster.arguments(cluster.offer(packed.archive)), agents=installed)
    pod.environment["BASTION_WORKER"] = "first"
    assert pod.start().wait(120) == 64
    assert pod.message == "the agent cannot start: BASTION_WORKER is 'first', not a number"


def test_what_may_get_better_is_tried_again(cluster: Cluster) -> None:
    archive = stand_in(agent="import sys\nif __name__ == '__main__':\n    sys.exit(0)\n")
    pod = cluster.pod(cluster.arguments(hashlib.sha256(archive).hexdigest()))
    container = pod.start()
    until(lambda: pod.said("bastion: cannot read "))
    assert container.poll() is None
    assert pod.message == ""
    cluster.offer(archive)
    assert container.wait(60) == 0


def test_the_reason_is_at_most_as_long_as_kubernetes_keeps(cluster: Cluster) -> None:
    pod = cluster.pod(cluster.arguments("0" * 64))
    pod.environment["BASTION_AGENT_FILE"] = "/" + "x" * 5000
    assert pod.start().wait(60) == 64
    assert len(pod.termination_log.read_bytes()) == 4096
