"""The storage proxy beside a command: real processes, and a stand-in for the proxy itself."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion import processes
from bastion.agent.child_processes import ChildProcesses
from bastion.agent.host import Host
from bastion.agent.sidecar import die_with_parent
from bastion.agent.sidecar.sidecar import SidecarTimes
from bastion.core.bucket.protocol import HostPhase
from tests.support.waiting import until
from tests.support.worker_stage import KEY, RUN, Stage

MAPPING = "lake:projects/p/locations/global/keyRings/r/cryptoKeys/k"
STAND_IN = (sys.executable, str(Path(__file__).parents[3] / "support" / "proxy_stand_in.py"))
TIMES = SidecarTimes(ready=20.0, back=60.0, deaths=120.0, end=20.0, first_backoff=0.01, bypass=3600.0)


class Scene(Stage):
    """A host whose job has a proxy."""

    def launch(
        self, command: str, *, asked: str = "ready", times: SidecarTimes = TIMES, env: dict[str, str] | None = None,
        most: int = 1,
    ) -> Host:  # fmt: skip
        """Orders a command beside a stand-in with that wish, and starts a host."""
        self.order(command, proxy=MAPPING, env={"GCS_PROXY_STAND_IN": asked, **(env or {})}, most=most)
        host = self.host(on_vm=True, proxy_program=STAND_IN, proxy_times=times)
        self.start(host)
        return host

    @property
    def folder(self) -> Path:
        return self.state_dir / f"{RUN}.0" / "proxy"

    def starts(self) -> list[dict[str, object]]:
        """What the stand-in noted at each start."""
        path = self.folder / "starts"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def proxies(self) -> list[processes.ProcessId]:
        return processes.marked("BASTION_PROXY", f"{RUN}.0.{KEY.public[:8]}")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.end()
    assert scene.proxies() == []


def test_the_command_begins_beside_a_proxy_that_serves_and_is_told_where_it_is(scene: Scene, tmp_path: Path) -> None:
    folder = tmp_path / f"{RUN}.0" / "proxy-certificates"
    scene.launch(
        f"test -e {folder}/mitmproxy-ca-cert.pem && echo $https_proxy $SSL_CERT_FILE $GCS_RETRY_CONFIG_MAX_RETRIES",
        env={"DEBUG_LEVEL": "1", "SSL_CERT_FILE": "/mine", "GCS_PROXY_LISTEN": "0.0.0.0:1", "LR": "1"},
    )
    assert (scene.final().phase, scene.final().exit_code) == (HostPhase.EXITED, 0)
    assert f"stdout F http://127.0.0.1:9080 {folder}/ca-bundle.pem 0" in scene.log()
    assert "stderr F bastion: bastion overrides these variables of the job: SSL_CERT_FILE" in scene.log()
    (start,) = scene.starts()
    environment = start["env"]
    assert isinstance(environment, dict)
    assert environment["GCP_KMS_BUCKET_KEY_MAPPING"] == MAPPING
    assert environment["GCS_PROXY_LISTEN"] == "127.0.0.1:9080"
    assert environment["DEBUG_LEVEL"] == "1"
    assert {"LR", "https_proxy", "SSL_CERT_FILE", "BASTION_COMMAND"} & set(environment) == set()


def test_the_proxy_is_ended_after_the_command_and_its_output_lies_beside_the_commands(scene: Scene) -> None:
    scene.launch("echo mine")
    scene.final()
    assert (scene.folder / "ended").exists()
    assert scene.proxies() == []
    assert scene.log(source="proxy") == [
        "stderr F the stand-in serves at 127.0.0.1:9080",
        "stderr F the stand-in ends",
    ]
    assert scene.log() == ["stdout F mine"]


def test_a_job_without_a_proxy_has_none(scene: Scene) -> None:
    scene.order("echo ${https_proxy:-none}")
    scene.start(scene.host(on_vm=True, proxy_program=STAND_IN))
    scene.final()
    assert scene.log() == ["stdout F none"]
    assert not scene.folder.exists()
    assert scene.log(source="proxy") == []


def test_the_proxy_outlives_a_command_that_is_told_to_stop_and_saves(scene: Scene) -> None:
    save = f"kill -0 $(cat {scene.folder}/pid) && echo saved; exit 0"
    scene.launch(f"trap '{save}' TERM; echo up; sleep 60 & wait")
    until(lambda: "stdout F up" in scene.log())
    scene.order(stop="CANCELLED: now")
    assert scene.final().phase is HostPhase.STOPPED
    assert "stdout F saved" in scene.log()
    assert scene.proxies() == []


def test_one_proxy_serves_all_tries_of_an_attempt(scene: Scene) -> None:
    scene.launch("exit 3", most=2)
    assert scene.final().exit_code == 3
    (proxy,) = scene.proxies()
    scene.order("exit 4", number=2, most=2, proxy=MAPPING, env={"GCS_PROXY_STAND_IN": "ready"})
    assert scene.final(number=2).exit_code == 4
    assert [start["pid"] for start in scene.starts()] == [proxy.pid]
    assert scene.proxies() == []


def test_a_configuration_that_makes_no_sense_is_the_users_and_is_tried_once(scene: Scene) -> None:
    scene.launch("echo never", asked="64", most=3)
    report = scene.final()
    assert (report.phase, report.error, report.exit_code) == (HostPhase.FAILED, "ProxyRefused", 64)
    assert "exited with code 64 (the stand-in cannot begin, 1)" in report.message
    assert len(scene.starts()) == 1
    assert "stdout F never" not in scene.log()


def test_a_key_service_that_is_out_of_reach_for_a_while_only_delays_the_command(scene: Scene) -> None:
    scene.launch("echo done", asked="75x7")
    assert scene.final().exit_code == 0
    assert len(scene.starts()) == 8
    assert scene.log()[-1] == "stdout F done"
    assert any("exited with code 75" in line and "restarting it" in line for line in scene.log())


def test_one_that_stays_out_of_reach_is_the_infrastructures_failure(scene: Scene) -> None:
    scene.launch("echo never", asked="75", times=SidecarTimes(back=0.5, first_backoff=0.01))
    report = scene.final()
    assert (report.phase, report.error, report.exit_code) == (HostPhase.FAILED, "ProxyFailed", None)
    assert "exited with code 75" in report.message and "has not served for" in report.message
    assert "stdout F never" not in scene.log()


def test_a_proxy_that_never_serves_is_killed_and_given_up(scene: Scene) -> None:
    scene.launch("echo never", asked="never", times=SidecarTimes(ready=0.3, first_backoff=0.01))
    report = scene.final()
    assert (report.phase, report.error) == (HostPhase.FAILED, "ProxyFailed")
    assert "did not start in time, 5 times within 120 s" in report.message
    assert "stdout F never" not in scene.log()


def test_a_killed_proxy_comes_back_at_its_place_and_the_job_goes_on(scene: Scene, tmp_path: Path) -> None:
    scene.launch(f"echo up; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo done")
    until(lambda: "stdout F up" in scene.log())
    os.kill(scene.proxies()[0].pid, signal.SIGKILL)
    until(lambda: any("the storage proxy recovered" in line for line in scene.log()))
    (tmp_path / "go").touch()
    assert scene.final().exit_code == 0
    first, second = scene.starts()
    assert first["pid"] != second["pid"]
    assert (first["env"], second["stale"]) == (second["env"], False)
    assert scene.log() == [
        "stdout F up",
        "stderr F bastion: the storage proxy was killed by signal 9; restarting it",
        "stderr F bastion: the storage proxy recovered",
        "stdout F done",
    ]


def test_a_proxy_that_ends_again_and_again_ends_the_command_too(scene: Scene) -> None:
    scene.launch("echo $https_proxy; sleep 60", asked="crash")
    report = scene.final()
    assert (report.phase, report.error) == (HostPhase.FAILED, "ProxyFailed")
    assert "exited with code 3" in report.message and "5 times within 120 s" in report.message
    assert len(scene.starts()) == 5


def test_a_command_that_fails_for_want_of_the_proxy_is_not_to_blame(scene: Scene) -> None:
    # It ends while the proxy is down, and that turns out to be for good.
    down = "while [ -e $PROXY_CERT_PATH/mitmproxy-ca-cert.pem ]; do sleep 0.02; done"
    scene.launch(f"kill -9 $(cat {scene.folder}/pid); {down}; exit 1", asked="once")
    report = scene.final()
    assert (report.phase, report.error) == (HostPhase.FAILED, "ProxyFailed")


def test_a_proxy_that_a_dead_agent_left_is_ended_by_the_next_one(scene: Scene) -> None:
    left = subprocess.Popen(
        STAND_IN,
        env={
            "BASTION_PROXY": f"{RUN}.0.{KEY.public[:8]}",
            "GCS_PROXY_STATE_PATH": str(scene.state_dir),
            "PROXY_CERT_PATH": str(scene.state_dir),
            "GCS_PROXY_STAND_IN": "never",
        },
    )
    until(lambda: scene.proxies())
    scene.launch("echo done")
    assert scene.final().exit_code == 0
    assert left.wait(20) != 0


def test_a_command_that_goes_around_the_proxy_is_told_of_in_its_log(scene: Scene, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as service:
        port = service.getsockname()[1]
        scene.launch(
            f"exec 3<>/dev/tcp/127.0.0.1/{port}; until [ -e {tmp_path}/go ]; do sleep 0.05; done",
            env={"GCS_PROXY_UPSTREAM": f"http://127.0.0.1:{port}"},
            times=SidecarTimes(first_backoff=0.01, bypass=0.05),
        )
        until(
            lambda: any(
                "is connected to 127.0.0.1 directly, not through the storage proxy" in line for line in scene.log()
            )
        )
        (tmp_path / "go").touch()
        assert scene.final().exit_code == 0
    assert sum("directly, not through" in line for line in scene.log()) == 1


# An agent adopts what loses its parent; here a program of its own does, lest the test itself should.
SUBREAPER = """
import os, sys, threading
from pathlib import Path
from bastion import processes
from bastion.agent.child_processes import ChildProcesses
from bastion.agent.command.process import Command

processes.become_subreaper()
child_processes = ChildProcesses()
attendant = child_processes.start(["/bin/bash", "-c", "sleep 60 & wait"], variables=dict(os.environ), folder=Path("/"))
ended = threading.Event()
command = Command.start(
    "(setsid env -i sleep 0.2 &) ; setsid env -i sleep 60 & read line < " + sys.argv[1],
    variables=dict(os.environ), folder=Path("/"), marker=sys.argv[2], on_exit=ended.set,
    child_processes=child_processes,
)
codes = []
waiter = threading.Thread(target=lambda: codes.append(child_processes.wait(attendant)))
waiter.start()
while len(child_processes.pids()) < 2:
    pass
members = {member.pid for member in command.members()}
assert members and not members & child_processes.pids(), (members, child_processes.pids())
family = child_processes.pids()
attendant.kill()
waiter.join()
assert codes == [137], codes
with open(sys.argv[1], "w") as pipe:
    pipe.write("go\\n")
ended.wait()
assert command.exit_code == 0
for pid in family - {attendant.pid}:
    os.kill(pid, 9)
assert command.end(grace_seconds=0.0)
print("all is as it should be")
"""


def test_an_attendant_of_an_agent_that_adopts_is_none_of_the_command_and_keeps_its_exit_code(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    done = subprocess.run(
        [sys.executable, "-c", SUBREAPER, str(tmp_path / "pipe"), str(tmp_path)],
        capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": str(Path(die_with_parent.__file__).parents[3])},
    )  # fmt: skip
    assert done.stdout == "all is as it should be\n", done.stderr


def test_an_attendant_that_was_seen_dead_and_then_waited_for_by_its_own_thread_harms_nobody() -> None:
    child_processes = ChildProcesses()
    process = child_processes.start(["/bin/true"], variables={}, folder=Path("/"))
    with process:
        assert child_processes.wait(process) == 0
    child_processes.reap_other(process.pid)


def test_a_tied_program_dies_with_its_parent_and_does_not_hear_sigterm(tmp_path: Path) -> None:
    script = f"""
import os, subprocess, sys, time
bound = [sys.executable, "-I", "-S", {die_with_parent.__file__!r}, str(os.getpid())]
child = subprocess.Popen([*bound, "/bin/sleep", "60"])
print(child.pid, flush=True)
time.sleep(60)
"""
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.stdout.close()
    until(lambda: Path(f"/proc/{child}/comm").read_text() == "sleep\n")
    identity = processes.ProcessId.of(child)
    assert identity is not None
    identity.signal(signal.SIGTERM)
    time.sleep(0.05)
    assert identity.alive
    parent.kill()
    parent.wait()
    until(lambda: not identity.alive)


def test_a_tied_program_whose_parent_is_gone_already_is_not_begun(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, die_with_parent.__file__, "1", "/usr/bin/touch", str(tmp_path / "begun")], check=False
    )
    assert done.returncode == 1
    assert not (tmp_path / "begun").exists()
