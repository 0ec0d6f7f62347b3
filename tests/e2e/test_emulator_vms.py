"""Emulated VMs as real processes, under a real emulator process that is restarted, killed and killed again.

Each test ends by making sure that no process with its hosts' marker is left.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bastion import processes
from bastion.adapters.tpu.provisioner import CloudTpuProvisioner, CloudTpuSettings
from bastion.core.errors import ProvisionerUnavailable
from bastion.core.model.gangs import GangRef, GangRequest, GangState, GangStatus, Place
from bastion.emulators.markers import MARKER
from bastion.emulators.tpu import EmulatorAddress, locate
from bastion.emulators.tpu.faults import Faults
from bastion.emulators.tpu.host import HostFolder
from bastion.processes import ProcessId
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]

NODE = "b-aaaaaaaaaa-1"
# Far more than anything here takes: a busy machine must not fail a test.
PATIENCE_SECONDS = 60.0
# Notes its worker number and leaves a daemon behind that has shaken off its session, its parent and its terminal.
NOTES_ITSELF = """
curl --silent --fail --noproxy '*' -H 'Metadata-Flavor: Google' \
  "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/attributes/agent-worker-number" > "$BASTION_STATE_DIR/number"
(setsid sleep 1000 > /dev/null 2>&1 &)
mv "$BASTION_STATE_DIR/number" "$BASTION_STATE_DIR/worker"
exec sleep 1000
"""


@dataclass
class Machine:
    """One state folder and whatever emulator serves it."""

    folder: Path
    program: subprocess.Popen[bytes] | None = None
    vm_ids: set[str] = field(default_factory=set)

    def start(self, *options: str) -> EmulatorAddress:
        command = [sys.executable, "-m", "bastion.emulators.tpu", f"--state-dir={self.folder}", *options]
        with (self.folder.parent / "emulator.log").open("ab") as log:
            self.program = subprocess.Popen(command, stdout=log, stderr=log)
        until(lambda: self.address is not None)
        assert self.address is not None
        return self.address

    @property
    def address(self) -> EmulatorAddress | None:
        return locate(self.folder)

    def crash(self) -> None:
        assert self.program is not None
        self.program.kill()
        self.program.wait()

    def terminate(self) -> int:
        assert self.program is not None
        self.program.send_signal(signal.SIGTERM)
        return self.program.wait(timeout=PATIENCE_SECONDS)

    def hosts(self) -> list[HostFolder]:
        found = []
        for path in sorted(self.folder.glob("vms/*/*")):
            with contextlib.suppress(FileNotFoundError):  # not written yet, or its node goes just now
                host = HostFolder(path)
                self.vm_ids.add(host.read().vm_id)
                found.append(host)
        return found

    def alive(self) -> list[ProcessId]:
        """Every process of any host that this test has had."""
        self.hosts()
        assert self.vm_ids, "no host was ever seen"
        return [process for vm_id in self.vm_ids for process in processes.marked(MARKER, vm_id)]

    def settled(self, number: int) -> set[ProcessId]:
        """The hosts' processes once they are so many: a script's `mv` lives a moment longer than its effect."""
        until(lambda: len(self.alive()) == number)
        return set(self.alive())

    def supervisor(self, host: HostFolder) -> ProcessId:
        """The process that runs the host: its marked process whose parent is not marked."""
        marked = processes.marked(MARKER, host.read().vm_id)
        (found,) = [p for p in marked if b"bastion.emulators.tpu.vm" in Path(f"/proc/{p.pid}/cmdline").read_bytes()]
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path / "emulator")
    yield machine
    machine.hosts()  # notes their ids, so that the last line finds what a failed test left
    if machine.program is not None and machine.program.poll() is None:
        machine.terminate()
    for vm_id in machine.vm_ids:
        processes.end_marked(MARKER, vm_id, grace_seconds=0)


@pytest.fixture
def connect() -> Iterator[Callable[..., CloudTpuProvisioner]]:
    made: list[CloudTpuProvisioner] = []

    def client(address: EmulatorAddress, script: str) -> CloudTpuProvisioner:
        settings = CloudTpuSettings(
            project="a-project",
            zone="us-central2-b",
            bastion="team-bastion",
            startup_script=script,
            endpoint=address.endpoint,
            token=address.token,
        )
        made.append(CloudTpuProvisioner(settings))
        return made[-1]

    yield client
    for provisioner in made:
        provisioner.close()


def request(accelerator_type: str = "v4-8", node_id: str = NODE) -> GangRequest:
    return GangRequest(
        ref=GangRef(name=node_id),
        bastion="team-bastion",
        run=node_id.removeprefix("b-"),
        token="a-run-token",
        accelerator_type=accelerator_type,
        place=Place(runtime_version="tpu-ubuntu2204-base"),
        agent_arguments="{}",
    )


def look(client: CloudTpuProvisioner, node_id: str = NODE) -> GangStatus | None:
    """The node, through however many reconnections."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return client.get(GangRef(name=node_id))
        except ProvisionerUnavailable:  # noqa: PERF203 - repeating is what the loop is for
            assert time.monotonic() < deadline


def is_in(client: CloudTpuProvisioner, state: GangState, node_id: str = NODE) -> Callable[[], bool]:
    def check() -> bool:
        status = look(client, node_id)
        return status is not None and status.state is state

    return check


def notes(machine: Machine, name: str) -> list[str]:
    """What each host's script wrote into that file of its disk, by worker."""
    found = []
    for host in machine.hosts():
        with contextlib.suppress(FileNotFoundError):
            found.append((host.disk / name).read_text().strip())
    return found


def boot(machine: Machine, client: CloudTpuProvisioner, accelerator_type: str = "v4-8", ready: str = "worker") -> int:
    """Creates the node and waits until each host has written `ready`; how many hosts there are."""
    client.create(request(accelerator_type))
    until(is_in(client, GangState.READY))
    hosts = len(machine.hosts())
    until(lambda: len(notes(machine, ready)) == hosts)
    return hosts


def test_a_slice_comes_up_survives_a_crash_of_the_emulator_and_leaves_nothing_when_deleted(
    machine: Machine, connect
) -> None:
    before = machine.start()
    client = connect(before, NOTES_ITSELF)
    began = time.monotonic()
    assert boot(machine, client, "v4-32") == 4
    # 0.3 s on two idle cores. The bound finds hosts that wait for something; on a busy machine it must not find that.
    assert time.monotonic() - began < 15.0
    assert notes(machine, "worker") == ["0", "1", "2", "3"]
    hosts = machine.settled(4 * 3)  # supervisor, script, daemon

    machine.crash()
    assert locate(machine.folder) is None
    assert set(machine.alive()) == hosts
    after = machine.start()
    assert (after.endpoint, after.token) == (before.endpoint, before.token)
    assert is_in(client, GangState.READY)()
    assert set(machine.alive()) == hosts

    client.delete(GangRef(name=NODE))
    until(lambda: look(client) is None)
    assert machine.alive() == []
    assert list(machine.folder.glob("vms/*")) == []


def test_a_script_finds_a_clean_environment_its_own_disk_and_home_and_our_python(
    machine: Machine, connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/secret")
    monkeypatch.setenv("BASTION_LOCAL_HOME", "/a/home")
    client = connect(machine.start(), 'cd "$BASTION_STATE_DIR" && env > env && which python3 > python && touch done')
    boot(machine, client, ready="done")
    (host,) = machine.hosts()
    environment = dict(line.partition("=")[::2] for line in notes(machine, "env")[0].splitlines())
    spec = host.read()
    metadata = f"{spec.address}:{spec.port}"
    boot_id = environment.pop("BASTION_EMULATED_BOOT_ID")
    assert len(boot_id) == 36
    assert environment.pop("PATH").startswith(str(Path(sys.executable).parent) + ":")
    assert {name: value for name, value in environment.items() if name not in ("PWD", "OLDPWD", "SHLVL", "_")} == {
        "BASTION_AGENT_DIR": os.environ["BASTION_AGENT_DIR"],
        "BASTION_EMULATED_TPU": "1",
        "BASTION_LOCAL_HOME": "/a/home",
        "BASTION_STATE_DIR": str(host.disk),
        "BASTION_VM": spec.vm_id,
        "GCE_METADATA_HOST": metadata,
        "GCE_METADATA_IP": metadata,
        "GCE_METADATA_ROOT": metadata,
        "HOME": str(host.home),
        "LANG": "C.UTF-8",
        "SHELL": "/bin/bash",
    }
    assert Path(notes(machine, "python")[0]).parent == Path(sys.executable).parent


def test_a_script_that_ends_is_not_started_again_and_its_output_outlives_the_node(machine: Machine, connect) -> None:
    client = connect(machine.start(), 'echo out; echo err >&2; echo x >> "$BASTION_STATE_DIR/runs"; exit 3')
    boot(machine, client, ready="runs")
    (host,) = machine.hosts()
    # Output and end come by different ways, so their order is not promised.
    said = ["bastion: startup-script exit status 3", "err", "out"]
    until(lambda: sorted(host.serial_log.read_text().splitlines()) == said)
    assert is_in(client, GangState.READY)()
    client.delete(GangRef(name=NODE))
    until(lambda: look(client) is None)
    (kept,) = machine.folder.glob("serial/*")
    assert "exit status 3" in kept.read_text()


def test_what_keeps_a_host_from_coming_up_is_told_by_its_node_until_it_is_over(machine: Machine, connect) -> None:
    script = """
echo > "$BASTION_STATE_DIR/worker"
echo 'bastion: no space left on device: \033[2Jinstalling the agent' >&2
echo 'bastion: the agent exited with code 1; restarting it' >&2
while ! [ -e "$BASTION_STATE_DIR/go" ]; do sleep 0.05; done
echo 'bastion: starting the agent' >&2
exec sleep 1000
"""
    client = connect(machine.start(), script)
    boot(machine, client, "v4-8")

    def message() -> str:
        status = look(client)
        assert status is not None
        return status.message

    until(lambda: message() == "worker 0: no space left on device:  [2Jinstalling the agent")
    (state,) = machine.folder.glob("vms/*/0/state")
    (state / "go").touch()
    until(lambda: message() == "")


def test_a_node_without_a_script_idles(machine: Machine, connect) -> None:
    client = connect(machine.start(), "")
    client.create(request("v4-16"))
    until(is_in(client, GangState.READY))
    until(lambda: ["idles" in path.read_text() for path in machine.folder.glob("vms/*/*/serial.log")] == [True] * 2)
    assert len(machine.alive()) == 2


def test_a_host_whose_supervisor_is_killed_is_ended_and_its_node_lost_while_others_go_on(
    machine: Machine, connect
) -> None:
    client = connect(machine.start(), NOTES_ITSELF)
    boot(machine, client, "v4-16")
    first, second = machine.hosts()
    machine.supervisor(first).signal(signal.SIGKILL)
    until(is_in(client, GangState.LOST))
    status = look(client)
    assert status is not None
    assert "worker 0 of 2 died" in status.message
    until(lambda: processes.marked(MARKER, first.read().vm_id) == [])
    until(lambda: len(processes.marked(MARKER, second.read().vm_id)) == 3)
    client.delete(GangRef(name=NODE))
    until(lambda: look(client) is None)
    assert machine.alive() == []


def test_when_emulator_and_supervisors_are_killed_the_next_emulator_sweeps(machine: Machine, connect) -> None:
    client = connect(machine.start(), NOTES_ITSELF)
    boot(machine, client, "v4-16")
    supervisors = [machine.supervisor(host) for host in machine.hosts()]
    machine.crash()
    for supervisor in supervisors:
        supervisor.signal(signal.SIGKILL)
    until(lambda: not any(supervisor.alive for supervisor in supervisors))
    machine.settled(4)  # the scripts and their daemons
    machine.start()
    until(is_in(client, GangState.LOST))
    until(lambda: machine.alive() == [])


def test_hosts_of_a_node_that_the_emulator_forgot_are_swept_at_its_start(machine: Machine, connect) -> None:
    client = connect(machine.start(), NOTES_ITSELF)
    boot(machine, client)
    machine.crash()
    (machine.folder / "state.json").unlink()
    machine.start()
    assert machine.alive() == []
    assert list(machine.folder.glob("vms/*")) == []
    assert look(client) is None


def test_hosts_end_by_themselves_when_their_emulator_has_no_successor(machine: Machine, connect) -> None:
    client = connect(machine.start("--orphan-seconds=0.5"), NOTES_ITSELF)
    boot(machine, client, "v4-16")
    machine.crash()
    until(lambda: machine.alive() == [])


def test_an_orderly_end_of_the_emulator_ends_every_vm(machine: Machine, connect) -> None:
    client = connect(machine.start(), NOTES_ITSELF)
    boot(machine, client, "v4-16")
    client.create(request("v4-8", "b-aaaaaaaaaa-2"))
    assert machine.terminate() == 0
    machine.hosts()
    assert machine.alive() == []
    assert locate(machine.folder) is None
    assert not (machine.folder / "emulator.json").exists()
    machine.start()
    assert look(client) is None


STUBBORN = """trap '' TERM; touch "$BASTION_STATE_DIR/worker"
while :; do sleep 0.1; done"""


def test_what_ignores_sigterm_is_killed_after_the_grace_period(machine: Machine, connect) -> None:
    client = connect(machine.start("--grace-seconds=1"), STUBBORN)
    boot(machine, client)
    (stubborn,) = machine.vm_ids
    began = time.monotonic()
    client.delete(GangRef(name=NODE))
    until(lambda: look(client) is None)
    assert time.monotonic() - began > 0.9
    assert processes.marked(MARKER, stubborn) == []


def test_a_node_that_is_long_in_ending_holds_up_nobody_else(machine: Machine, connect) -> None:
    client = connect(machine.start("--grace-seconds=600"), STUBBORN)
    boot(machine, client)
    try:
        client.delete(GangRef(name=NODE))
        other = connect(locate(machine.folder), "")
        other.create(request(node_id="b-bbbbbbbbbb-1"))
        until(is_in(other, GangState.READY, "b-bbbbbbbbbb-1"))
        status = look(client)
        assert status is not None
        assert status.state is GangState.DELETING
    finally:
        machine.crash()  # an orderly end would wait for it


def test_a_preempted_host_hears_of_it_and_is_ended_and_the_node_stays_until_deleted(machine: Machine, connect) -> None:
    client = connect(
        machine.start("--grace-seconds=30"),
        """trap 'sleep 0.5; curl --silent --noproxy "*" -H "Metadata-Flavor: Google" \
          "http://$GCE_METADATA_HOST/computeMetadata/v1/instance/preempted" > "$BASTION_STATE_DIR/heard"; exit' TERM
        touch "$BASTION_STATE_DIR/worker"
        while :; do sleep 0.05; done""",
    )
    boot(machine, client)
    (host,) = machine.hosts()
    Faults(machine.folder / "faults").preempt(NODE)
    until(is_in(client, GangState.LOST))
    until(lambda: machine.alive() == [])
    assert (host.disk / "heard").read_text() == "TRUE"
    assert "PREEMPTED" in look(client).message
    client.delete(GangRef(name=NODE))
    until(lambda: look(client) is None)


@pytest.mark.parametrize("delay", [0.5, 0.0])
def test_a_creation_that_was_accepted_before_a_crash_goes_on_after_it(machine: Machine, connect, delay: float) -> None:
    client = connect(machine.start(), NOTES_ITSELF)
    Faults(machine.folder / "faults").delay_creations(delay)
    client.create(request("v4-16"))
    machine.crash()
    machine.hosts()
    machine.start()
    until(is_in(client, GangState.READY))
    until(lambda: notes(machine, "worker") == ["0", "1"])
    assert client.failure(GangRef(name=NODE)) is None
    # Of a first try, nothing is left beside the hosts that count.
    counted = {host.read().vm_id for host in machine.hosts()}
    assert all(processes.marked(MARKER, vm_id) == [] for vm_id in machine.vm_ids - counted)


def test_a_deletion_that_was_accepted_before_a_crash_goes_on_after_it(machine: Machine, connect) -> None:
    client = connect(machine.start("--grace-seconds=2"), STUBBORN)
    boot(machine, client)
    client.delete(GangRef(name=NODE))
    machine.crash()
    machine.start("--grace-seconds=0.5")
    until(lambda: look(client) is None)
    assert machine.alive() == []


def test_dead_children_of_a_host_are_reaped(machine: Machine, connect) -> None:
    # The inner shell leaves an orphan that dies at once; without a reaper it stays as a zombie of the supervisor.
    script = """cd "$BASTION_STATE_DIR"; (setsid sh -c 'echo $$ > orphan' &)
        until [ -s orphan ]; do sleep 0.05; done; touch worker; exec sleep 1000"""
    client = connect(machine.start(), script)
    boot(machine, client)
    pid = int(notes(machine, "orphan")[0])
    until(lambda: not Path(f"/proc/{pid}").exists())


def test_a_second_emulator_on_the_same_folder_is_refused_in_words(machine: Machine) -> None:
    address = machine.start()
    command = [sys.executable, "-m", "bastion.emulators.tpu", f"--state-dir={machine.folder}"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert second.returncode == 1
    assert "an emulator already serves" in second.stderr
    assert "Traceback" not in second.stderr
    assert locate(machine.folder) == address
    assert os.kill(address.process.pid, 0) is None


def test_a_process_that_drops_its_session_and_its_environment_ends_with_its_vm(
    machine: Machine, connect: Callable[..., CloudTpuProvisioner]
) -> None:
    script = """
(env -i setsid bash -c 'echo $$ > "$0.new"; mv "$0.new" "$0"; exec sleep 1000' "$BASTION_STATE_DIR/worker" &)
exec sleep 1000
"""
    client = connect(machine.start(), script)
    client.create(request())
    until(lambda: any((host.disk / "worker").exists() for host in machine.hosts()))
    (host,) = machine.hosts()
    hidden = ProcessId.of(int((host.disk / "worker").read_text()))
    assert hidden is not None
    assert hidden not in machine.alive()
    client.delete(GangRef(name=NODE))
    until(lambda: look(client) is None)
    assert not hidden.alive
