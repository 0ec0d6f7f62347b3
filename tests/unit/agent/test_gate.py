"""The worker gate."""

import pytest

from bastion.agent.gate import Gate, GateVerdict
from bastion.agent.identity import HostIdentity
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import AgentArguments, Claim
from bastion.core.errors import StoreUnavailable
from bastion.testing.faulty_store import Fault, FaultyStore
from bastion.testing.memory_store import MemoryStore

RUN = "abcdefghij-1"


def gate(store, *, worker: int = 0, boot: str = "boot-1", token: str = "ours", reported: bool = False) -> Gate:
    arguments = AgentArguments(
        root="/b/t-bastion", bastion="t-bastion", job="j", run=RUN, token=token, hosts_per_slice=2
    )
    identity = HostIdentity(arguments=arguments, worker=worker, peers=("10.0.0.1", "10.0.0.2"))
    return Gate(
        store,
        identity,
        boot_id=boot,
        coordinator=lambda: "10.0.0.1:8482",
        reported_by_other_boot=reported,
    )


def claim(store) -> Claim:
    return protocol.read(Claim, store.get(keys.claim(RUN)).data)


def put(store, document: bytes) -> None:
    store.put(keys.claim(RUN), document, generation=0)


def test_host_0_claims_and_passes(store: MemoryStore):
    passage = gate(store).look()
    assert (passage.verdict, passage.coordinator) == (GateVerdict.OPEN, "10.0.0.1:8482")
    assert claim(store) == Claim(run=RUN, token="ours", boot_id="boot-1", address="10.0.0.1:8482")


def test_other_hosts_wait_for_the_claim_and_learn_the_coordinator(store: MemoryStore):
    other = gate(store, worker=1, boot="boot-of-1")
    assert other.look().verdict is GateVerdict.WAIT
    assert store.head(keys.claim(RUN)) is None
    gate(store).look()
    passage = other.look()
    assert (passage.verdict, passage.coordinator) == (GateVerdict.OPEN, "10.0.0.1:8482")


@pytest.mark.parametrize("worker", [0, 1])
def test_a_closed_gate_refuses_everybody_and_says_why(store: MemoryStore, worker: int):
    put(store, Claim(run=RUN, closed="cancelled by ann").to_bytes())
    passage = gate(store, worker=worker).look()
    assert passage.verdict is GateVerdict.REFUSED
    assert "cancelled by ann" in passage.message


@pytest.mark.parametrize("worker", [0, 1])
def test_a_claim_of_another_token_refuses(store: MemoryStore, worker: int):
    gate(store, token="theirs").look()
    assert gate(store, worker=worker).look().verdict is GateVerdict.REFUSED


@pytest.mark.parametrize("worker", [0, 1])
def test_an_unreadable_claim_refuses(store: MemoryStore, worker: int):
    put(store, b"{")
    assert gate(store, worker=worker).look().verdict is GateVerdict.REFUSED


@pytest.mark.parametrize("fault", Fault)
def test_a_lost_request_or_reply_is_not_a_second_claim(store: MemoryStore, fault: Fault):
    faulty = FaultyStore(store)
    host = gate(faulty)
    faulty.fail_next("put", fault=fault)
    with pytest.raises(StoreUnavailable):
        host.look()
    assert host.look().verdict is GateVerdict.OPEN
    assert claim(store).token == "ours"


def test_a_new_agent_of_the_same_boot_passes_its_own_claim(store: MemoryStore):
    gate(store).look()
    assert gate(store).look().verdict is GateVerdict.OPEN


def test_host_0_does_not_pass_its_claim_of_another_boot(store: MemoryStore):
    gate(store, boot="boot-1").look()
    assert gate(store, boot="boot-2").look().verdict is GateVerdict.RESTARTED


def test_another_host_that_booted_anew_after_the_claim_does_not_pass(store: MemoryStore):
    gate(store).look()
    assert gate(store, worker=1, boot="boot-2", reported=True).look().verdict is GateVerdict.RESTARTED


def test_another_host_that_booted_anew_before_the_claim_passes(store: MemoryStore):
    other = gate(store, worker=1, boot="boot-2", reported=True)
    assert other.look().verdict is GateVerdict.WAIT
    gate(store).look()
    assert other.look().verdict is GateVerdict.OPEN
