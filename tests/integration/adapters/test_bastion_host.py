"""The bastion's own host as a provisioner; the general contract is in `tests/contract/test_provisioner.py`."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bastion import processes
from bastion.adapters.bastion_host import MARKER, BastionHostProvisioner, _Gang
from bastion.core.errors import GangExists, ProvisionerRefused, ProvisionerUnavailable, Stockout
from bastion.core.model.gangs import GangRef, GangRequest, GangState
from bastion.processes import ProcessId
from tests.support.waiting import until

# Stands for Python running the agent: its file of arguments is $3's value.
AGENT = """#!/bin/bash
file="${3#--arguments-file=}"
test -e "$file" || exit 64
source "$file"
"""


@pytest.fixture
def place(tmp_path: Path):
    """A folder for nodes, and an interpreter that runs each node's arguments as shell code."""
    interpreter = tmp_path / "agent"
    interpreter.write_text(AGENT)
    interpreter.chmod(0o700)
    place = Place(tmp_path / "nodes", interpreter)
    yield place
    place.end()


class Place:
    def __init__(self, directory: Path, interpreter: Path) -> None:
        self.directory = directory
        self.interpreter = interpreter
        self.provisioner = self.another()

    def another(self, **options) -> BastionHostProvisioner:
        """What a daemon that starts anew has."""
        options.setdefault("interpreter", str(self.interpreter))
        options.setdefault("delete_grace_seconds", 0.3)
        return BastionHostProvisioner(self.directory, **options)

    def create(self, node_id: str = "b-aaaaaaaaaa-1", code: str = "sleep 60", token: str = "token") -> None:
        self.provisioner.create(request(node_id, code, token))

    def state(self, node_id: str = "b-aaaaaaaaaa-1") -> GangState | None:
        status = self.provisioner.get(GangRef(name=node_id))
        return None if status is None else status.state

    def process(self, node_id: str = "b-aaaaaaaaaa-1") -> ProcessId:
        found = ProcessId.parse((self.directory / node_id / "process").read_text())
        assert found is not None
        return found

    def end(self) -> None:
        provisioner = self.another()
        for status in provisioner.list():
            provisioner.delete(status.ref)
        until(lambda: not provisioner.list())


def request(node_id: str, code: str = "sleep 60", token: str = "token", accelerator: str = "") -> GangRequest:
    return GangRequest(
        ref=GangRef(name=node_id),
        bastion="t-bastion",
        run=node_id.removeprefix("b-"),
        token=token,
        accelerator_type=accelerator,
        agent_arguments=code,
    )


def test_a_node_is_an_agent_that_outlives_nobodys_call(place: Place):
    place.create(token="secret")
    (status,) = place.provisioner.list()
    assert status == place.provisioner.get(GangRef(name="b-aaaaaaaaaa-1"))
    assert (status.ref.name, status.run, status.token) == ("b-aaaaaaaaaa-1", "aaaaaaaaaa-1", "secret")
    assert status.state is GangState.READY
    assert status.labels == {"bastion": "t-bastion", "bastion-run": "aaaaaaaaaa-1"}
    assert os.getsid(place.process().pid) == place.process().pid


def test_a_daemon_that_starts_anew_finds_its_agents(place: Place):
    place.create()
    again = place.another()
    assert [status.state for status in again.list()] == [GangState.READY]
    with pytest.raises(GangExists):
        again.create(request("b-aaaaaaaaaa-1"))
    process = place.process()
    again.delete(GangRef(name="b-aaaaaaaaaa-1"))
    until(lambda: again.get(GangRef(name="b-aaaaaaaaaa-1")) is None)
    assert not process.alive


def test_an_agent_that_died_is_lost_and_its_last_words_are_told(place: Place):
    place.create(code="echo oh no; kill -9 $$")
    until(lambda: place.state() is GangState.LOST)
    assert "oh no" in place.provisioner.list()[0].message


def test_an_agent_that_ended_after_its_report_is_not_lost(place: Place):
    place.create(code='mkdir "$BASTION_STATE_DIR/r.0"; touch "$BASTION_STATE_DIR/r.0/reported"')
    until(lambda: not place.process().alive)
    assert place.state() is GangState.READY


def test_deletion_returns_while_the_node_still_has_its_grace_period(place: Place):
    place.provisioner = place.another(delete_grace_seconds=60.0)
    place.create(code="trap '' TERM; touch up; until test -e go; do sleep 0.02; done")
    folder = place.directory / "b-aaaaaaaaaa-1"
    until(lambda: (folder / "up").exists())
    process = place.process()
    for _ in range(2):
        place.provisioner.delete(GangRef(name="b-aaaaaaaaaa-1"))
        assert process.alive
        assert place.state() is GangState.DELETING
    (folder / "go").touch()
    until(lambda: place.state() is None)
    assert not process.alive


def test_deletion_ends_everything_of_the_node(place: Place):
    place.create(code="trap '' TERM; setsid sleep 60 & touch up; sleep 60")
    folder = place.directory / "b-aaaaaaaaaa-1"
    until(lambda: (folder / "up").exists())
    marker = next(iter(_markers(place.process())))
    place.provisioner.delete(GangRef(name="b-aaaaaaaaaa-1"))
    until(lambda: place.state() is None)
    assert processes.marked(MARKER, marker) == []
    until(lambda: [path.name for path in place.directory.iterdir()] == [".lock"])  # renamed first, then removed


def test_a_late_deleter_does_not_remove_a_node_of_the_same_name_created_since(place: Place):
    place.create(code="exec sleep 60", token="first")
    old = place.another()
    (stale,) = place.directory.glob("b-*/node.json")
    before = stale.read_text()
    place.provisioner.delete(GangRef(name="b-aaaaaaaaaa-1"))
    until(lambda: place.state() is None)
    place.create(code="exec sleep 60", token="second")
    old._remove(_Gang(**json.loads(before)))
    assert place.provisioner.list()[0].token == "second"


def test_a_node_that_goes_away_while_it_is_looked_at_is_gone(place: Place, monkeypatch: pytest.MonkeyPatch):
    provisioner, ref = place.provisioner, GangRef(name="b-aaaaaaaaaa-1")
    state_of = provisioner._state

    def state_after_its_end(node: _Gang) -> tuple[GangState, str]:
        place.another().delete(ref)
        until(lambda: not (place.directory / ref.name).exists())
        return state_of(node)

    monkeypatch.setattr(provisioner, "_state", state_after_its_end)
    place.create(code="exec sleep 60")
    assert provisioner.get(ref) is None
    place.create(code="exec sleep 60")
    assert provisioner.list() == []


def test_deleting_what_does_not_exist_is_success(place: Place):
    place.provisioner.delete(GangRef(name="b-zzzzzzzzzz-1"))
    assert place.provisioner.list() == []


def test_a_deletion_that_a_crash_cut_short_goes_on_with_the_next_daemon(place: Place):
    place.create()
    process = place.process()
    (place.directory / "b-aaaaaaaaaa-1" / "deleting").touch()
    again = place.another()
    assert [status.state for status in again.list()] == [GangState.DELETING]
    until(lambda: again.list() == [])
    assert not process.alive


def test_a_crash_between_the_record_and_the_start_leaves_a_lost_node_that_can_be_deleted(place: Place):
    place.create(code="exec sleep 60")
    place.process().signal(signal.SIGKILL)
    folder = place.directory / "b-aaaaaaaaaa-1"
    until(lambda: place.state() is GangState.LOST)
    (folder / "process").unlink()
    # As long as its creator lives, it may be about to start it.
    assert place.state() is GangState.CREATING
    (folder / "node.json").write_text(
        (folder / "node.json").read_text().replace(str(ProcessId.of(os.getpid())), "999999:1")
    )
    assert place.state() is GangState.LOST
    place.provisioner.delete(GangRef(name="b-aaaaaaaaaa-1"))
    until(lambda: place.state() is None)


def test_a_crash_between_the_start_and_its_note_is_no_loss(place: Place):
    place.create()
    process = place.process()
    folder = place.directory / "b-aaaaaaaaaa-1"
    (folder / "process").unlink()
    # Found by its marker, which it carries once its program has begun.
    until(lambda: place.state() is GangState.READY)
    place.provisioner.delete(GangRef(name="b-aaaaaaaaaa-1"))
    until(lambda: place.state() is None)
    assert not process.alive


def test_a_node_of_another_boot_is_lost_and_deleting_it_touches_no_process(place: Place):
    place.create()
    process = place.process()
    elsewhere = place.another(host_identity="other-boot/pid:[1]")
    (status,) = elsewhere.list()
    assert status.state is GangState.LOST
    assert "another machine" in status.message
    assert process.alive


def test_names_that_are_no_folder_and_slices_are_refused(place: Place):
    for node_id in ("", "..", "a/b", ".hidden"):
        with pytest.raises(ProvisionerRefused):
            place.create(node_id)
    with pytest.raises(ProvisionerRefused, match="v4-8"):
        place.provisioner.create(request("b-aaaaaaaaaa-1", accelerator="v4-8"))
    assert place.provisioner.list() == []


def test_the_host_takes_only_so_many(place: Place):
    provisioner = place.another(max_gangs=1)
    provisioner.create(request("b-aaaaaaaaaa-1"))
    with pytest.raises(Stockout, match="the maximum is 1"):
        provisioner.create(request("b-bbbbbbbbbb-1"))


def test_an_agent_that_cannot_be_started_leaves_nothing(place: Place):
    provisioner = place.another(interpreter="/no/such/python")
    with pytest.raises(ProvisionerUnavailable, match="no/such"):
        provisioner.create(request("b-aaaaaaaaaa-1"))
    assert provisioner.list() == []
    place.create()
    assert place.state() is GangState.READY


def test_an_agent_whose_folder_is_gone_ends(tmp_path: Path):
    command = [sys.executable, "-m", "bastion.wiring.agent", f"--arguments-file={tmp_path / 'gone'}"]
    assert subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 64


def _markers(process: ProcessId) -> set[str]:
    environment = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
    return {entry.decode().partition("=")[2] for entry in environment if entry.startswith(MARKER.encode() + b"=")}
