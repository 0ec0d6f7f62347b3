"""The worker gate."""

import pytest

from bastion.agent.gate import Gate, GateVerdict
from bastion.agent.identity import HostIdentity
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import AgentArguments, Claim, HostPhase, Report
from bastion.core.errors import StoreUnavailable
from bastion.core.run_keys import RunKeys
from bastion.testing.counting_store import CountingStore
from bastion.testing.faulty_store import Fault, FaultyStore
from bastion.testing.memory_store import MemoryStore

RUN = "abcdefghij-1"


KEY = RunKeys(b"r" * 32).of(RUN, "token")
THEIRS = RunKeys(b"r" * 32).of(RUN, "of another attempt")
CLAIM = keys.claim(RUN, KEY.claim_tag)


def gate(store, *, worker: int = 0, boot: str = "boot-1", reported: bool = False) -> Gate:
    arguments = AgentArguments(
        root="/b/t-bastion", bastion="t-bastion", job="j", run=RUN, run_key=KEY.text, hosts_per_slice=2
    )
    identity = HostIdentity(arguments=arguments, worker=worker, peers=("10.0.0.1", "10.0.0.2"))
    return Gate(
        store,
        identity,
        boot_id=boot,
        coordinator=lambda: "10.0.0.1:8482",
        reported_by_other_boot=reported,
    )


def signed(document: Claim | Report) -> bytes:
    return protocol.sign(document, KEY).to_bytes()


def claim(store) -> Claim:
    return protocol.read_signed(Claim, store.get(CLAIM).data, KEY.public)


def put(store, document: bytes) -> None:
    store.put(CLAIM, document, generation=0)


def test_host_0_claims_and_passes(store: MemoryStore):
    passage = gate(store).look()
    assert (passage.verdict, passage.coordinator) == (GateVerdict.OPEN, "10.0.0.1:8482")
    made = claim(store)
    assert (made.run, made.opened, made.boot_id, made.address) == (RUN, True, "boot-1", "10.0.0.1:8482")


def test_other_hosts_wait_for_the_claim_and_learn_the_coordinator(store: MemoryStore):
    other = gate(store, worker=1, boot="boot-of-1")
    assert other.look().verdict is GateVerdict.WAIT
    assert store.head(CLAIM) is None
    gate(store).look()
    passage = other.look()
    assert (passage.verdict, passage.coordinator) == (GateVerdict.OPEN, "10.0.0.1:8482")


@pytest.mark.parametrize("worker", [0, 1])
def test_a_closed_gate_refuses_everybody_and_says_why(store: MemoryStore, worker: int):
    put(store, signed(Claim(run=RUN, closed="cancelled by ann")))
    passage = gate(store, worker=worker).look()
    assert passage.verdict is GateVerdict.REFUSED
    assert "cancelled by ann" in passage.message


@pytest.mark.parametrize("worker", [0, 1])
@pytest.mark.parametrize(
    "document",
    [
        Claim(run=RUN, boot_id="boot-1"),
        Claim(run=RUN, closed="by a stranger"),
        protocol.sign(Claim(run=RUN, boot_id="boot-1"), THEIRS),
        protocol.sign(Claim(run="abcdefghij-2", boot_id="boot-1"), KEY),
        protocol.sign(Claim(run=RUN, boot_id="boot-1"), KEY).model_copy(update={"address": "6.6.6.6:1"}),
    ],
)
def test_a_claim_that_the_runs_key_did_not_sign_refuses(store: MemoryStore, worker: int, document: Claim):
    put(store, document.to_bytes())
    passage = gate(store, worker=worker).look()
    assert passage.verdict is GateVerdict.REFUSED
    assert "stranger" not in passage.message


@pytest.mark.parametrize("name", [RUN, f"{RUN}.", f"{RUN}.{THEIRS.claim_tag}", f"{RUN}.{KEY.public}"])
def test_a_claim_made_in_advance_under_a_name_that_others_can_know_does_not_count(store: MemoryStore, name: str):
    store.put(f"jobs/claims/{name}", protocol.sign(Claim(run=RUN, closed="early"), THEIRS).to_bytes(), generation=0)
    assert gate(store, worker=1).look().verdict is GateVerdict.WAIT
    assert gate(store).look().verdict is GateVerdict.OPEN
    assert gate(store, worker=1).look().verdict is GateVerdict.OPEN


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
    assert claim(store).opened


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


def gathering(store, *, worker: int = 0, hosts: int = 4) -> Gate:
    arguments = AgentArguments(
        root="/b/t-bastion", bastion="t-bastion", job="j", run=RUN, run_key=KEY.text, hosts_per_slice=hosts // 2,
        num_slices=2, gather_hosts=True,
    )  # fmt: skip
    identity = HostIdentity(arguments=arguments, worker=worker)
    return Gate(store, identity, boot_id="boot-1", coordinator=lambda: "10.0.0.1:8482", reported_by_other_boot=False)


def test_host_0_claims_when_every_host_of_every_slice_has_reported(store: MemoryStore):
    counting = CountingStore(store)
    host, other = gathering(counting), gathering(store, worker=1)
    for missing, text in (
        (0, "the reports of hosts 1, 2, 3"),
        (3, "the reports of hosts 1, 2"),
        (1, "the report of host 2"),
    ):
        if missing:
            store.put(keys.report(RUN, missing), report(missing, None), generation=0)
        before = counting.requests
        passage = host.look()
        assert (passage.verdict, passage.message) == (GateVerdict.WAIT, f"waiting for {text}")
        assert counting.requests - before <= 3, "a listing, the new report and the claim"
        assert other.look().verdict is GateVerdict.WAIT
        assert store.head(CLAIM) is None
    # Another run's report is none of this one's.
    store.put(keys.report("abcdefghij-12", 2), report(2, None), generation=0)
    assert host.look().verdict is GateVerdict.WAIT
    forged = [
        b"",
        Report(run=RUN, host=2, phase=HostPhase.WAITING).to_bytes(),
        protocol.sign(Report(run=RUN, host=2, phase=HostPhase.WAITING), THEIRS).to_bytes(),
        report(3, None),
    ]
    for data in forged:
        present = store.head(keys.report(RUN, 2))
        store.put(keys.report(RUN, 2), data, generation=present.generation if present else 0)
        assert host.look().message == "waiting for the report of host 2"
    store.put(keys.report(RUN, 2), report(2, None), generation=store.head(keys.report(RUN, 2)).generation)
    assert host.look().verdict is GateVerdict.OPEN
    assert other.look().verdict is GateVerdict.OPEN


def test_host_0_finds_a_closed_gate_and_its_own_claim_while_hosts_are_missing(store: MemoryStore):
    put(store, signed(Claim(run=RUN, closed="cancelled by ann")))
    assert gathering(store).look().verdict is GateVerdict.REFUSED


def test_a_later_try_passes_without_a_listing(store: MemoryStore):
    put(store, signed(Claim(run=RUN, boot_id="boot-1", address="a:1")))
    passage = gathering(store).look()
    assert (passage.verdict, passage.coordinator) == (GateVerdict.OPEN, "a:1")


def test_of_many_missing_hosts_the_message_names_some(store: MemoryStore):
    message = gathering(store, hosts=64).look().message
    assert message == "waiting for the reports of hosts 1, 2, 3, 4, 5, 6, 7, 8 and 55 more"


def with_gpus(store, host: int) -> Gate:
    arguments = AgentArguments(
        root="/b/t-bastion", bastion="t-bastion", job="j", run=RUN, run_key=KEY.text, num_slices=3, slice_index=host,
        accelerator_type="h100-8", gpus_per_host=8, gather_hosts=True,
    )  # fmt: skip
    identity = HostIdentity(arguments=arguments, worker=0, own_address=f"10.0.0.{host}")
    return Gate(store, identity, boot_id="boot-1", coordinator=lambda: "10.0.0.0:8482", reported_by_other_boot=False)


def report(host: int, address: str | None) -> bytes:
    return signed(Report(run=RUN, host=host, phase=HostPhase.WAITING, address=address))


def test_the_claim_of_hosts_with_gpus_has_the_addresses_of_their_reports(store: MemoryStore):
    store.put(keys.report(RUN, 1), report(1, "10.0.0.1"), generation=0)
    store.put(keys.report(RUN, 2), report(2, "10.0.0.2"), generation=0)
    assert with_gpus(store, 0).look().hosts == ("10.0.0.0", "10.0.0.1", "10.0.0.2")
    assert with_gpus(store, 2).look().hosts == ("10.0.0.0", "10.0.0.1", "10.0.0.2")


def test_without_the_address_of_each_host_the_claim_has_none(store: MemoryStore):
    store.put(keys.report(RUN, 1), report(1, "10.0.0.1"), generation=0)
    store.put(keys.report(RUN, 2), report(2, None), generation=0)
    passage = with_gpus(store, 0).look()
    assert (passage.verdict, passage.hosts) == (GateVerdict.OPEN, ())
