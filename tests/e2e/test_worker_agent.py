"""The agent as a process of its own, on a folder as bucket: by the bastion's own host, and by a VM's startup script."""

from __future__ import annotations

import http.server
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import bastion
from bastion import processes
from bastion.adapters import agent_packer
from bastion.adapters.bastion_host import BastionHostProvisioner
from bastion.core.bucket import keys, protocol, segment_proofs
from bastion.core.bucket.agent_archive import PackedAgent
from bastion.core.bucket.protocol import AgentArguments, Claim, HostPhase, Order, OrderAction, Report
from bastion.core.errors import NotFound
from bastion.core.model.gangs import GangRef, GangRequest, GangState
from bastion.core.run_keys import RunKey
from bastion.processes import ProcessId
from bastion.wiring.roots import open_root
from tests.support.stored_logs import stored_text
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]

RUN = "abcdefghij-1"
NODE = f"b-{RUN}"
# What is told to end here does so at once; on a busy machine that may take a while.
GRACE_SECONDS = 30.0
STARTUP = Path(bastion.__file__).parent / "agent" / "startup.sh"


class Bastion:
    """A bucket in a folder, and what a daemon would do with it."""

    def __init__(self, folder: Path) -> None:
        bucket = folder / "bucket"
        bucket.mkdir()
        self.folder = folder
        self.root = f"{bucket}/team-bastion"
        self.store = open_root(self.root)
        self.key = RunKey(secrets.token_bytes(32))
        self.hosts = BastionHostProvisioner(folder / "hosts", delete_grace_seconds=GRACE_SECONDS)

    def arguments(self, **changes: object) -> AgentArguments:
        arguments = AgentArguments(
            root=self.root,
            bastion="team-bastion",
            job="job",
            run=RUN,
            run_key=self.key.text,
            raw_log=keys.log("job"),
            poll_seconds=0.1,
            beat_seconds=1.0,
            order_lost_seconds=600.0,
            interpreter=sys.executable,
        )
        return arguments.model_copy(update=changes)

    def order(self, command: str, *, stop: str = "") -> None:
        action = OrderAction.STOP if stop else OrderAction.RUN
        order = Order(run=RUN, action=action, command=command, reason=stop, grace_seconds=GRACE_SECONDS)
        meta = self.store.head(keys.order(RUN))
        self.store.put(keys.order(RUN), order.to_bytes(), generation=0 if meta is None else meta.generation)

    def offer(self, packed: PackedAgent) -> None:
        self.store.put(keys.agent_file(packed.sha256), packed.archive, generation=0)

    def launch(self, command: str) -> None:
        self.order(command)
        request = GangRequest(
            ref=GangRef(name=NODE),
            bastion="team-bastion",
            run=RUN,
            token=self.key.public,
            accelerator_type="",
            agent_arguments=self.arguments().to_bytes().decode(),
        )
        self.hosts.create(request)

    def report(self) -> Report | None:
        try:
            return protocol.read(Report, self.store.get(keys.report(RUN, 0)).data)
        except NotFound:
            return None

    def final(self) -> Report:
        until(lambda: (report := self.report()) is not None and report.phase.final)
        report = self.report()
        assert report is not None
        return report

    def log(self) -> list[str]:
        text = stored_text(self.store, keys.log_segments("job", RUN, 0))
        return [line.split(" ", 1)[1] for line in text.splitlines()]

    def command_processes(self) -> list[ProcessId]:
        return processes.marked("BASTION_COMMAND", f"{RUN}.0.{self.key.public[:8]}")

    def end(self) -> None:
        self.hosts.delete(GangRef(name=NODE))
        until(lambda: not self.hosts.list())
        assert self.command_processes() == []


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedAgent:
    return agent_packer.pack(tmp_path_factory.mktemp("kept"))


@pytest.fixture
def bastion(tmp_path: Path) -> Iterator[Bastion]:
    bastion = Bastion(tmp_path)
    yield bastion
    bastion.end()


def test_a_command_on_the_bastions_own_host_is_claimed_run_reported_and_logged(bastion: Bastion) -> None:
    bastion.launch("echo hi; exit 7")
    report = bastion.final()
    assert (report.phase, report.exit_code) == (HostPhase.EXITED, 7)
    claim = protocol.read_signed(
        Claim, bastion.store.get(keys.claim(RUN, bastion.key.claim_tag)).data, bastion.key.public
    )
    assert (claim.opened, claim.boot_id) == (True, processes.boot_id())
    assert bastion.log() == ["stdout F hi"]
    key = keys.log_segment("job", RUN, 0, 1)
    text = segment_proofs.proved(key, bastion.store.get(key).data, bastion.key.public)
    assert text is not None and text.endswith(b" stdout F hi\n")
    assert bastion.store.get(keys.log("job")).data == b"hi\n"
    assert bastion.store.head(keys.beat(RUN, 0)) is not None
    # The agent ends, and its node waits to be deleted.
    agent = ProcessId.parse((bastion.folder / "hosts" / NODE / "process").read_text())
    assert agent is not None
    until(lambda: not agent.alive)
    assert [status.state for status in bastion.hosts.list()] == [GangState.READY]


def test_an_agent_that_was_killed_says_so_when_it_starts_again_and_leaves_nothing_running(bastion: Bastion) -> None:
    bastion.launch("echo before; (setsid sleep 300 &); sleep 300")
    until(lambda: bastion.log() == ["stdout F before"])
    node = bastion.folder / "hosts" / NODE
    agent = ProcessId.parse((node / "process").read_text())
    assert agent is not None
    until(lambda: len(bastion.command_processes()) >= 2)
    agent.signal(signal.SIGKILL)
    until(lambda: bastion.hosts.list()[0].state is GangState.LOST)
    assert len(bastion.command_processes()) >= 2
    again = subprocess.run(
        [sys.executable, "-m", "bastion.wiring.agent", f"--arguments-file={node / 'arguments.json'}"],
        env=os.environ | {"BASTION_STATE_DIR": str(node / "state")},
        stderr=subprocess.DEVNULL,
        check=False,
        timeout=60,
    )
    assert again.returncode == 0
    report = bastion.final()
    assert (report.phase, report.error) == (HostPhase.FAILED, "HostRestarted")
    assert bastion.command_processes() == []
    assert bastion.log()[0] == "stdout F before"
    assert bastion.log()[1].startswith("gap F ")


def test_deleting_a_node_ends_its_command_and_the_agent_still_reports_it(bastion: Bastion) -> None:
    bastion.launch("echo up; sleep 300")
    until(lambda: "stdout F up" in bastion.log())
    bastion.hosts.delete(GangRef(name=NODE))
    until(lambda: bastion.hosts.get(GangRef(name=NODE)) is None)
    report = bastion.report()
    assert report is not None
    assert (report.phase, report.error) == (HostPhase.STOPPED, "HostShutDown")
    assert bastion.command_processes() == []


def test_a_save_that_a_command_starts_when_asked_to_stop_has_the_grace_period(bastion: Bastion) -> None:
    save = bastion.folder / "save.py"
    save.write_text("import time; time.sleep(0.5); print('saved', flush=True)")
    bastion.launch(f"trap '{sys.executable} {save}; exit 3' TERM; echo up; while :; do sleep 0.05; done")
    until(lambda: "stdout F up" in bastion.log())
    bastion.order("", stop="evicted")
    assert bastion.final().phase is HostPhase.STOPPED
    assert "stdout F saved" in bastion.log(), "the save was ended by a second SIGTERM"


@pytest.mark.parametrize("stopped", [False, True])
def test_what_drops_its_session_and_its_environment_ends_with_the_command(bastion: Bastion, stopped: bool) -> None:
    note = bastion.folder / "note"
    hidden = f"(env -i setsid bash -c 'echo $$ > {note}.new; mv {note}.new {note}; exec sleep 300' > /dev/null 2>&1 &)"
    seen = bastion.folder / "seen"
    bastion.launch(f"{hidden}; until test -e {seen}; do sleep 0.02; done; {'sleep 300' if stopped else 'exit 0'}")
    until(note.exists)
    process = ProcessId.of(int(note.read_text()))
    assert process is not None
    assert process not in bastion.command_processes()
    seen.touch()
    if stopped:
        bastion.order("", stop="cancelled by ann")
    assert bastion.final().phase is (HostPhase.STOPPED if stopped else HostPhase.EXITED)
    assert not process.alive


def test_signals_that_the_daemons_starter_ignored_are_not_ignored_by_agent_and_command(bastion: Bastion) -> None:
    numbers = (signal.SIGCHLD, signal.SIGHUP, signal.SIGQUIT)
    before = [signal.signal(number, signal.SIG_IGN) for number in numbers]
    try:
        bastion.launch("grep SigIgn /proc/self/status; exit 7")
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
    report = bastion.final()
    assert (report.phase, report.exit_code) == (HostPhase.EXITED, 7)
    (line,) = bastion.log()
    ignored = int(line.rpartition("\t")[2], 16)
    assert not [number for number in numbers if ignored & 1 << (number - 1)]


def test_a_stop_order_reaches_a_running_command(bastion: Bastion) -> None:
    bastion.launch("trap 'echo saving; exit 0' TERM; echo up; while :; do sleep 0.1; done")
    until(lambda: "stdout F up" in bastion.log())
    bastion.order("", stop="cancelled by ann")
    report = bastion.final()
    assert (report.phase, report.exit_code, report.message) == (HostPhase.STOPPED, 0, "cancelled by ann")
    assert "stdout F saving" in bastion.log()


class Vm:
    """A metadata server on loopback, and the startup script that asks it."""

    def __init__(self, folder: Path) -> None:
        attributes: dict[str, str] = {}

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                body = attributes.get(self.path.rpartition("/")[2], "").encode()
                self.send_response(200 if body else 404)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.attributes = attributes
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.folder = folder
        self.vm_id = secrets.token_hex(8)

    def describe(self, arguments: AgentArguments) -> None:
        self.attributes["worker-network-endpoints"] = "unused:0:127.0.0.1"
        self.attributes["agent-worker-number"] = "0"
        self.attributes["bastion-agent"] = arguments.to_bytes().decode()

    def boot(self) -> subprocess.Popen[str]:
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(self.folder),
            "BASTION_VM": self.vm_id,
            "BASTION_AGENT_DIR": str(self.folder / "agents"),
            "BASTION_STATE_DIR": str(self.folder / "vm"),
            "BASTION_EMULATED_BOOT_ID": "boot-1",
            "BASTION_EMULATED_TPU": "1",
            "GCE_METADATA_HOST": f"127.0.0.1:{self.server.server_port}",
        }
        return subprocess.Popen(["bash", str(STARTUP)], env=environment, stderr=subprocess.PIPE, text=True)

    def end(self) -> None:
        assert processes.end_marked("BASTION_VM", self.vm_id, grace_seconds=0)
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def vm(tmp_path: Path) -> Iterator[Vm]:
    vm = Vm(tmp_path)
    yield vm
    vm.end()


def test_a_startup_script_runs_the_agent_which_stays_until_the_vm_ends(
    bastion: Bastion, vm: Vm, packed: PackedAgent
) -> None:
    bastion.order("echo $TPU_WORKER_HOSTNAMES; command -v python3")
    bastion.offer(packed)
    vm.describe(
        bastion.arguments(
            accelerator_type="v4-8", devices_per_host=4, raw_log="", order_lost_seconds=0.0, agent=packed.sha256
        )
    )
    with vm.boot() as script:
        assert bastion.final().exit_code == 0
        # Commands of an emulated host use the daemon's Python, which has what the user installed; not the agent's.
        assert bastion.log() == ["stdout F 127.0.0.1", f"stdout F {Path(sys.executable).parent}/python3"]
        assert script.poll() is None
        # A crashed agent comes back, finds its last word in the bucket, and says nothing new.
        generation = bastion.store.head(keys.report(RUN, 0))
        (agent,) = [member for member in processes.marked("BASTION_VM", vm.vm_id) if _is_agent(member)]
        agent.signal(signal.SIGKILL)
        until(lambda: any(_is_agent(m) for m in processes.marked("BASTION_VM", vm.vm_id) if m != agent))
        assert bastion.store.head(keys.report(RUN, 0)) == generation
        script.send_signal(signal.SIGTERM)
        script.communicate(timeout=60)
    assert processes.marked("BASTION_VM", vm.vm_id) == []


def test_the_end_of_a_vm_ends_the_command(bastion: Bastion, vm: Vm, packed: PackedAgent) -> None:
    bastion.order("echo up; sleep 300")
    bastion.offer(packed)
    vm.describe(bastion.arguments(accelerator_type="v4-8", devices_per_host=4, agent=packed.sha256))
    with vm.boot() as script:
        until(lambda: "stdout F up" in bastion.log())
        script.send_signal(signal.SIGTERM)
        script.communicate(timeout=60)
    report = bastion.report()
    assert report is not None
    assert (report.phase, report.error) == (HostPhase.STOPPED, "HostShutDown")


def test_a_node_whose_command_has_ended_powers_itself_off_when_no_daemon_lives(
    bastion: Bastion, vm: Vm, packed: PackedAgent
) -> None:
    bastion.order("sleep 4.5")
    bastion.offer(packed)
    vm.describe(
        bastion.arguments(
            accelerator_type="v4-8", devices_per_host=4, raw_log="", power_off_seconds=4.0, agent=packed.sha256
        )
    )
    with vm.boot() as script:
        # Not while it runs, though that takes longer.
        assert (bastion.final().phase, bastion.final().exit_code) == (HostPhase.EXITED, 0)
        script.communicate(timeout=60)
    assert processes.marked("BASTION_VM", vm.vm_id) == []


def _is_agent(process: ProcessId) -> bool:
    try:
        return b"bastion.wiring.agent" in Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        return False
