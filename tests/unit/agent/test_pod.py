"""A host that is a pod: its identity, and its termination message."""

from pathlib import Path
from typing import Any

import pytest

from bastion.agent import coordinator
from bastion.agent.identity import HostIdentity
from bastion.agent.pod import TERMINATION_MESSAGE_MAX_BYTES, ending_message, read_identity, write_termination_message
from bastion.core import documents
from bastion.core.bucket import protocol
from bastion.core.bucket.protocol import AgentArguments, HostPhase, Report
from bastion.core.errors import InvalidDocument

RUN = "abcdefghij-1"


def arguments(**changes: Any) -> AgentArguments:
    made = AgentArguments(
        root="gs://team/t-bastion",
        bastion="t-bastion",
        job="train",
        run=RUN,
        run_key="ab" * 32,
        num_slices=2,
        hosts_per_slice=2,
        accelerator_type="v4-16",
        devices_per_host=4,
    )
    return made.model_copy(update=changes)


def environ(made: AgentArguments | None = None, **more: str) -> dict[str, str]:
    return {
        "BASTION_AGENT": (made or arguments()).to_bytes().decode(),
        "BASTION_POD_NAME": f"b-{RUN}-slice-1-1-abcde",
        "BASTION_POD_UID": "5f0c9a1e-0000-4000-8000-000000000001",
        "BASTION_POD_IP": "10.8.0.12",
        "BASTION_SLICE_INDEX": "1",
        "BASTION_WORKER": "1",
        "BASTION_PEERS": f"b-{RUN}-slice-1-0.b-{RUN},b-{RUN}-slice-1-1.b-{RUN}",
        **more,
    }


def test_a_pod_is_who_its_environment_says():
    identity = read_identity(environ())
    assert (identity.slice_index, identity.worker, identity.host, identity.num_hosts) == (1, 1, 3, 4)
    assert identity.peers == (f"b-{RUN}-slice-1-0.b-{RUN}", f"b-{RUN}-slice-1-1.b-{RUN}")
    assert (identity.address, identity.slices_address) == ("10.8.0.12", "")
    assert identity.boot_id == "5f0c9a1e-0000-4000-8000-000000000001"
    assert identity.tpu_variables == {}


def test_what_the_platform_says_comes_first():
    platform = {
        "TPU_WORKER_HOSTNAMES": "10.8.0.11,10.8.0.12",
        "TPU_WORKER_ID": "1",
        "MEGASCALE_COORDINATOR_ADDRESS": f"b-{RUN}-slice-0-0.b-{RUN}:8080",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
    }
    identity = read_identity(environ(**platform, TPU_TOPOLOGY="2x2x2"))
    assert identity.peers == ("10.8.0.11", "10.8.0.12")
    assert identity.slices_address == platform["MEGASCALE_COORDINATOR_ADDRESS"]
    assert identity.tpu_variables == platform


def test_the_only_host_of_a_slice_is_its_own_peer_by_address():
    identity = read_identity(
        environ(
            arguments(num_slices=1, hosts_per_slice=1),
            BASTION_SLICE_INDEX="0",
            BASTION_WORKER="0",
            BASTION_POD_NAME=f"b-{RUN}-slice-0-0-abcde",
        )
    )
    assert identity.peers == ("10.8.0.12",)


def test_a_job_without_tpus_needs_no_peers():
    given = environ(arguments(accelerator_type="", devices_per_host=0))
    del given["BASTION_PEERS"]
    assert read_identity(given).peers == ()


@pytest.mark.parametrize(
    "name",
    [
        "BASTION_AGENT",
        "BASTION_POD_IP",
        "BASTION_POD_NAME",
        "BASTION_POD_UID",
        "BASTION_SLICE_INDEX",
        "BASTION_WORKER",
        "BASTION_PEERS",
    ],
)
@pytest.mark.parametrize("value", [None, "", " "])
def test_a_missing_variable_is_named(name: str, value: str | None):
    given = environ()
    del given[name]
    if value is not None:
        given[name] = value
    with pytest.raises(InvalidDocument, match=f"the pod has no {name}"):
        read_identity(given)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("BASTION_AGENT", "{", "BASTION_AGENT: not a agentarguments"),
        ("BASTION_AGENT", '{"root": "x"}', "BASTION_AGENT: "),
        ("BASTION_POD_IP", "b-x-0", "BASTION_POD_IP is 'b-x-0', not an IP address"),
        ("BASTION_POD_NAME", "debug-copy", f"the pod debug-copy is a copy of a pod of run {RUN} and not a host of it"),
        ("BASTION_POD_NAME", "copied-slice-1-1-abcde", "is a copy of a pod"),
        ("BASTION_POD_NAME", f"b-{RUN}-slice-1-0-abcde", "is a copy of a pod"),
        ("BASTION_SLICE_INDEX", "first", "BASTION_SLICE_INDEX is 'first', not a number"),
        ("BASTION_SLICE_INDEX", "-1", "BASTION_SLICE_INDEX is '-1', not a number"),
        ("BASTION_SLICE_INDEX", "2", "this is slice 2, but the job has 2"),
        ("BASTION_WORKER", "\u0662", "not a number"),
        ("BASTION_WORKER", "9" * 5000, "not a number"),
        ("BASTION_WORKER", "2", "this host is worker 2, but its slice has 2 hosts"),
        ("BASTION_PEERS", "a", "BASTION_PEERS names 1 hosts, but the slice has 2"),
        ("BASTION_PEERS", "a,", "BASTION_PEERS: '' is not a host name or IP address"),
        ("BASTION_PEERS", "a,$(BASTION_SLICE_INDEX)", "is not a host name or IP address"),
        ("TPU_WORKER_HOSTNAMES", "a,b,c", "TPU_WORKER_HOSTNAMES names 3 hosts, but the slice has 2"),
    ],
)
def test_a_malformed_variable_is_named(name: str, value: str, message: str):
    with pytest.raises(InvalidDocument) as raised:
        read_identity(environ(**{name: value}))
    assert message in str(raised.value)


@pytest.mark.parametrize(("address", "expected"), [("10.8.0.12", "10.8.0.12:8482"), ("fd00::1", "[fd00::1]:8482")])
def test_the_coordinators_address_can_be_parsed_for_both_versions_of_ip(address: str, expected: str):
    assert coordinator.choose(address, run=RUN, emulated=False) == expected


def test_old_agents_read_new_arguments_and_new_agents_old_ones():
    fields = ("gather_hosts", "leave_when_done", "shutdown_seconds")
    old = documents.loads(arguments().to_bytes())
    for name in fields:
        del old[name]
    read = protocol.read(AgentArguments, documents.dumps(old))
    assert (read.gather_hosts, read.leave_when_done, read.shutdown_seconds) == (False, False, 0.0)
    assert read == arguments()
    later = protocol.read(AgentArguments, documents.dumps({**old, "of_a_later_version": [1]}))
    assert later == arguments()


def identity(**changes: Any) -> HostIdentity:
    made = arguments(**changes)
    return HostIdentity(arguments=made.model_copy(update={"slice_index": made.num_slices - 1}), worker=1)


def report(phase: HostPhase, **more: Any) -> Report:
    return Report(run=RUN, host=1, token="t", phase=phase, **more)


@pytest.mark.parametrize(
    ("said", "stored", "expected"),
    [
        (report(HostPhase.EXITED, exit_code=3), True, "worker 1: command exited with 3"),
        (
            report(HostPhase.EXITED, exit_code=0, message="not stored: x"),
            True,
            "worker 1: command exited with 0 (not stored: x)",
        ),
        (
            report(HostPhase.STOPPED, error="HostShutDown", message="the host shut down", exit_code=143),
            True,
            "worker 1: the host shut down; command exited with 143",
        ),
        (report(HostPhase.FAILED, error="HostFailed"), True, "worker 1: HostFailed"),
        (
            report(HostPhase.EXITED, exit_code=0),
            False,
            "worker 1: command exited with 0; the report could not be stored",
        ),
        (None, False, "worker 1 ended before the command started"),
    ],
)
def test_the_termination_message_says_in_a_line_how_the_host_ended(said: Report | None, stored: bool, expected: str):
    assert ending_message(identity(num_slices=1), said, stored=stored) == expected


def test_of_several_slices_it_names_the_slice():
    said = ending_message(identity(), report(HostPhase.EXITED, exit_code=1), stored=True)
    assert said == "slice 1, worker 1: command exited with 1"


def test_a_long_message_is_cut_between_characters(tmp_path: Path):
    path = tmp_path / "termination-log"
    path.write_text("from the startup script, and longer")
    write_termination_message({"BASTION_TERMINATION_LOG": str(path)}, "ab" + "\u20ac" * 4096)
    data = path.read_bytes()
    assert TERMINATION_MESSAGE_MAX_BYTES - 3 < len(data) <= TERMINATION_MESSAGE_MAX_BYTES
    assert set(data.decode()) == {"a", "b", "\u20ac"}
    write_termination_message({"BASTION_TERMINATION_LOG": str(path)}, "short")
    assert path.read_text() == "short"


def test_a_pod_without_a_termination_log_loses_nothing_else(tmp_path: Path):
    write_termination_message({}, "x")
    write_termination_message({"BASTION_TERMINATION_LOG": str(tmp_path)}, "x")
    assert list(tmp_path.iterdir()) == []
