"""What the metadata server says about a VM's near future, and what its host makes of it."""

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from bastion.adapters.system_clock import SystemClock
from bastion.agent.command import execution, one_try
from bastion.agent.metadata_server import MetadataServer
from bastion.agent.vm_notices import VmNotice, VmNotices, Watch, maintenance, preempted
from bastion.core.bucket import keys
from bastion.core.bucket.protocol import HostPhase
from bastion.emulators.tpu.host import HostFolder, HostSpec
from bastion.emulators.tpu.metadata import MetadataServer as EmulatedServer
from bastion.testing.manual_clock import ManualClock
from tests.support.waiting import until
from tests.support.worker_stage import RUN, Stage, command_processes


class Scripted:
    """A metadata server that gives these answers, one each, whatever is asked; and remembers what was asked."""

    def __init__(self, *answers: tuple[int, str, str]) -> None:
        asked: list[str] = []
        remaining = list(answers)

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.append(self.path.removeprefix("/computeMetadata/v1/instance/"))
                status, body, tag = remaining.pop(0)
                self.send_response(status)
                if tag:
                    self.send_header("ETag", tag)
                self.end_headers()
                self.wfile.write(body.encode())

            def log_message(self, *_: object) -> None:
                pass

        self.asked = asked
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.told: list[tuple[str, str]] = []
        self.watch = Watch(
            MetadataServer(f"127.0.0.1:{self.server.server_port}"),
            "preempted",
            preempted,
            clock=ManualClock(),
            rng=Random(1),
            notify=lambda error, message: self.told.append((error, message)),
        )

    def __enter__(self) -> "Scripted":
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.mark.parametrize(("value", "seen"), [("TRUE", True), ("TRUE\n", True), ("FALSE", False), ("", False)])
def test_a_vm_is_preempted_when_its_metadata_says_so(value: str, seen: bool):
    assert (preempted(value) is not None) is seen


@pytest.mark.parametrize(
    ("value", "seen"),
    [("TERMINATE_ON_HOST_MAINTENANCE", True), ("MIGRATE_ON_HOST_MAINTENANCE", False), ("NONE", False), ("", False)],
)
def test_a_maintenance_that_ends_the_vm_counts_and_one_that_moves_it_does_not(value: str, seen: bool):
    assert (maintenance(value) is not None) is seen


def test_a_change_is_waited_for_where_the_server_is_and_told_once():
    with Scripted((200, "FALSE", "a"), (200, "FALSE", "a"), (200, "TRUE", "b")) as server:
        assert server.watch.look() == 0.0
        assert server.watch.look() == 1.0
        assert server.told == []
        assert server.watch.look() is None
        assert [error for error, _ in server.told] == ["Preempted"]
        waits = "preempted?wait_for_change=true&last_etag=a&timeout_sec=60"
        assert server.asked == ["preempted", waits, waits]


def test_a_server_in_trouble_is_asked_again_ever_more_slowly():
    with Scripted(*[(503, "", "")] * 8, (200, "TRUE", "a")) as server:
        delays = [server.watch.look() for _ in range(8)]
        assert 0.5 <= delays[0] <= 1.0
        assert 15.0 <= delays[-1] <= 30.0
        assert server.watch.look() is None
        assert server.told


def test_what_a_server_does_not_have_is_not_asked_for_again():
    with Scripted((404, "", "")) as server:
        assert server.watch.look() is None
        assert server.told == []


class Vm:
    """The emulator's metadata server, whose host gets notices."""

    def __init__(self, path: Path) -> None:
        self.folder = HostFolder(path)
        listener = socket.create_server(("127.0.0.1", 0))
        address, port = listener.getsockname()[:2]
        spec = HostSpec(
            vm_id="vm",
            node_id="b-x-1",
            project="p",
            zone="z",
            worker=0,
            addresses=(address,),
            port=port,
            accelerator_type="v4-8",
            topology="2x2x1",
            service_account="a@b",
            metadata={},
            state_dir=str(path),
            orphan_seconds=60.0,
            grace_seconds=1.0,
        )
        self.folder.prepare(spec)
        self._server = EmulatedServer(spec, self.folder, listener)
        self._server.start(stop_poll_seconds=0.01)
        self.notices = VmNotices(MetadataServer(f"{address}:{port}"), clock=SystemClock(), rng=Random(1))

    def stop(self) -> None:
        # The threads wait for a change; this is one.
        self.notices.stop()
        self.folder.preempted.touch()
        self.folder.maintenance.write_text("TERMINATE_ON_HOST_MAINTENANCE")
        self._server.stop()


@pytest.fixture
def vm(tmp_path: Path) -> Iterator[Vm]:
    vm = Vm(tmp_path / "vm")
    yield vm
    vm.stop()


@pytest.mark.parametrize("error", ["Preempted", "Maintenance"])
def test_a_notice_lets_the_command_save_its_work_and_is_the_reason_of_its_end(stage: Stage, vm: Vm, error: str):
    stage.run(
        "trap 'cat $BASTION_PREEMPT_FILE; exit 3' TERM; echo up; while :; do sleep 0.05; done",
        host=stage.host(on_vm=True, notices=vm.notices),
    )
    until(lambda: "stdout F up" in stage.log())
    if error == "Preempted":
        vm.folder.preempted.touch()
    else:
        vm.folder.maintenance.write_text("TERMINATE_ON_HOST_MAINTENANCE")
    final = stage.final()
    assert (final.phase, final.error, final.exit_code) == (HostPhase.STOPPED, error, 3)
    assert f"stdout F {final.message}" in stage.log()
    assert command_processes() == []


def test_a_host_that_is_shut_down_at_the_moment_of_the_notice_names_the_notice(stage: Stage, vm: Vm):
    stage.order("echo up; sleep 60")
    host = stage.host(on_vm=True, notices=vm.notices)
    thread = stage.start(host)
    until(lambda: "stdout F up" in stage.log())
    vm.notices.pending = VmNotice(error="Preempted", message="taken", deadline=time.monotonic() + 60)
    host.shut_down()
    thread.join(20.0)
    assert (stage.report().error, stage.report().message) == ("Preempted", "taken")


def test_a_notice_while_the_host_waits_ends_its_waiting(stage: Stage, vm: Vm):
    stage.start(stage.host(on_vm=True, notices=vm.notices))
    until(lambda: stage.phase() is HostPhase.WAITING)
    vm.folder.preempted.touch()
    final = stage.final()
    assert (final.phase, final.error, final.exit_code) == (HostPhase.STOPPED, "Preempted", None)


def test_a_command_that_was_ended_a_moment_before_the_notice_came_was_not_at_fault(stage: Stage, vm: Vm, monkeypatch):
    monkeypatch.setattr(execution, "SHUTDOWN_SIGNAL_SECONDS", 10.0)
    stage.run("echo up; kill -TERM $$", host=stage.host(on_vm=True, notices=vm.notices))
    until(lambda: stage.phase() is HostPhase.RUNNING and not command_processes())
    vm.folder.preempted.touch()
    final = stage.final()
    assert (final.phase, final.error, final.exit_code) == (HostPhase.STOPPED, "Preempted", 143)


def test_a_notice_after_the_commands_end_changes_nothing_about_it(stage: Stage, vm: Vm):
    stage.run("true", host=stage.host(on_vm=True, notices=vm.notices))
    final = stage.final()
    vm.folder.preempted.touch()
    until(lambda: vm.notices.pending is not None)
    time.sleep(0.1)
    assert stage.report() == final
    assert (final.phase, final.exit_code) == (HostPhase.EXITED, 0)


def test_a_host_that_goes_away_gives_its_report_though_its_log_cannot_be_stored(stage: Stage, vm: Vm, monkeypatch):
    monkeypatch.setattr(one_try, "SHUTDOWN_FLUSH_SECONDS", 0.2)
    stage.run(
        "trap 'echo bye; exit 1' TERM; echo up; while :; do sleep 0.05; done",
        host=stage.host(on_vm=True, notices=vm.notices),
    )
    until(lambda: "stdout F up" in stage.log())
    for number in range(1, 10):
        for method in ("get", "put"):
            stage.store.fail_next(method, key=keys.log_segment("job", RUN, 0, number), times=10_000)
    vm.folder.preempted.touch()
    assert stage.final().error == "Preempted"
    assert "stdout F bye" not in stage.log()
    # It uploads on for as long as it lives.
    stage.store.enabled = False
    until(lambda: "stdout F bye" in stage.log())
