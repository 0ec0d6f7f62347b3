"""What the emulator remembers, and what its fault files say."""

from __future__ import annotations

import json
from pathlib import Path

from bastion.emulators.tpu.events import EventLog
from bastion.emulators.tpu.faults import Faults
from bastion.emulators.tpu.records import HostRecord, Ledger, NodeRecord, NodeState, OperationRecord

LOCATION = "projects/a-project/locations/us-central2-b"


def _node() -> NodeRecord:
    return NodeRecord(
        name=f"{LOCATION}/nodes/b-x-1",
        key="b-x-1-abcd1234",
        accelerator_type="v4-8",
        service_account="",
        metadata={"bastion-token": "t"},
        sent="",
        created=1.5,
        create_operation=f"{LOCATION}/operations/o",
        state=NodeState.READY,
        hosts=(HostRecord(worker=0, vm_id="b-x-1-abcd1234-0", ip="127.100.1.1", port=9254, process="12:34"),),
    )


def _operation(number: int, *, done: bool = True) -> OperationRecord:
    operation = OperationRecord(name=f"{LOCATION}/operations/{number:06d}", target="t", verb="create", created=1.0)
    return operation.finished() if done else operation


def test_a_ledger_reads_back_as_it_was_saved_and_is_private(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    ledger = Ledger.load(path)
    ledger.nodes[_node().name] = _node()
    ledger.operations["o"] = _operation(1)
    ledger.save(path)
    assert Ledger.load(path) == ledger
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_ledger_of_the_first_format_is_still_read(tmp_path: Path) -> None:
    # As an emulator without queued resources wrote it.
    first = {
        "format": 1,
        "machine": "another boot",
        "nodes": {
            _node().name: {
                "name": _node().name,
                "key": "b-x-1-abcd1234",
                "accelerator_type": "v4-8",
                "service_account": "",
                "metadata": {"startup-script": "x" * 1000},
                "sent": "",
                "created": 1.5,
                "create_operation": "o",
                "delete_operation": "",
                "state": 2,
                "health_description": "",
                "hosts": [{"worker": 0, "vm_id": "v", "ip": "127.100.1.1", "port": 9254, "process": "12:34"}],
            }
        },
        "operations": {"o": {"name": "o", "target": "t", "verb": "create", "created": 1.0, "ended": 2.0}},
    }
    path = tmp_path / "state.json"
    path.write_text(json.dumps(first))
    ledger = Ledger.load(path)
    node = ledger.nodes[_node().name]
    assert (node.state, node.metadata, node.queued) == (NodeState.READY, {"startup-script": "x" * 1000}, "")
    assert list(ledger.operations) == ["o"]
    ledger.save(path)
    assert Ledger.load(path) == ledger


def test_a_startup_script_is_written_once_however_many_nodes_have_it(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    script = "#!/bin/bash\n" * 1000
    ledger = Ledger()
    for number in range(200):
        name = f"{LOCATION}/nodes/b-{number}"
        ledger.nodes[name] = _node().model_copy(update={"name": name, "metadata": {"startup-script": script}})
    ledger.save(path)
    assert path.stat().st_size < 200 * 1000 + len(script) * 2
    assert {node.metadata["startup-script"] for node in Ledger.load(path).nodes.values()} == {script}


def test_the_event_log_keeps_two_files_and_a_full_disk_costs_it_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path, max_bytes=100)
    for number in range(10):
        log.note("ready", f"n{number}", "v4-8", 8)
    lines = path.read_text().splitlines()
    assert {"event": "ready", "name": "n9", "type": "v4-8", "units": 8}.items() <= json.loads(lines[-1]).items()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["events.jsonl", "events.jsonl.1"]
    assert path.stat().st_mode & 0o777 == 0o600
    EventLog(tmp_path / "missing" / "events.jsonl").note("ready")


def test_a_ledger_of_another_boot_knows_no_process(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    ledger = Ledger(machine="another boot", nodes={_node().name: _node()})
    ledger.save(path)
    (host,) = Ledger.load(path).nodes[_node().name].hosts
    assert host.supervisor is None
    assert not host.alive
    assert host.vm_id == "b-x-1-abcd1234-0"


def test_a_ledger_that_cannot_be_read_is_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for content in (b"", b"{", b"[]", json.dumps({"nodes": {"n": {}}}).encode()):
        path.write_bytes(content)
        assert Ledger.load(path).nodes == {}
        assert (tmp_path / "state.json.unreadable").read_bytes() == content


def test_old_finished_operations_are_forgotten_and_running_ones_never(tmp_path: Path) -> None:
    ledger = Ledger()
    ledger.operations = {str(n): _operation(n, done=n != 3) for n in range(600)}
    ledger.save(tmp_path / "state.json")
    assert "3" in ledger.operations
    assert "599" in ledger.operations
    assert len(ledger.operations) == 501


def test_a_failing_creation_is_used_up_by_one_creation(tmp_path: Path) -> None:
    faults = Faults(tmp_path / "faults")
    assert faults.take_create_failure("z") is None
    faults.fail_creations(2)
    for _ in range(2):
        failure = faults.take_create_failure("us-central2-b")
        assert failure is not None
        assert failure.code == 8
        assert 'no more capacity in the zone "us-central2-b"' in failure.message
    assert faults.take_create_failure("z") is None


def test_a_fault_can_be_any_failure_in_any_words(tmp_path: Path) -> None:
    faults = Faults(tmp_path / "faults")
    faults.fail_creations(1, code=13, message="an internal error has occurred")
    failure = faults.take_create_failure("z")
    assert failure is not None
    assert (failure.code, failure.message) == (13, "an internal error has occurred")


def test_a_delay_is_a_number_of_seconds_or_none(tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    assert faults.create_delay_seconds() == 0.0
    faults.delay_creations(1.5)
    assert faults.create_delay_seconds() == 1.5
    (tmp_path / "create-delay-seconds").write_text("soon")
    assert faults.create_delay_seconds() == 0.0


def test_a_preemption_waits_until_it_has_happened(tmp_path: Path) -> None:
    faults = Faults(tmp_path)
    faults.preempt("b-x-1")
    (fault,) = faults.node_faults()
    assert (fault.fault_type, fault.node_id) == ("preempt", "b-x-1")
    faults.happened(fault)
    faults.happened(fault)
    assert faults.node_faults() == []
