"""Steady time passes from one holder of the lease to the next, and follows the bucket's clock slowly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.core.bucket import keys
from bastion.core.errors import StoreUnavailable
from bastion.daemon.lease import Lease
from bastion.daemon.steady_time import SLEW
from bastion.ports import ObjectStore
from bastion.testing.faulty_store import Fault, FaultyStore
from bastion.testing.manual_clock import ManualClock
from bastion.testing.memory_store import MemoryStore

TTL = 60.0
HOUR = 3600.0
DAY = 24 * HOUR


def lease_of(owner: str, store: ObjectStore, clock: ManualClock, *, boot: str = "boot-1") -> Lease:
    return Lease(store, clock, owner=owner, host_identity=f"{boot}/pid:[1]", process="1:1", ttl_seconds=TTL)


def held_for(lease: Lease, clock: ManualClock, seconds: float) -> None:
    passed = 0.0
    while passed < seconds:
        assert lease.hold()
        clock.advance(10)
        passed += 10
    assert lease.hold()


def test_it_begins_at_server_time_and_not_at_this_machines(clock: ManualClock) -> None:
    lease = lease_of("a", MemoryStore(now=clock.now), clock)
    server = clock.now()
    assert lease.hold()
    clock.step_wall(HOUR)
    clock.advance(10)
    assert lease.steady.now() == pytest.approx(server + 10)


@pytest.mark.parametrize("step", [-HOUR, HOUR])
@pytest.mark.parametrize("watched", [False, True])
def test_on_another_machine_with_a_folder_a_step_is_not_taken_for_time(
    clock: ManualClock, step: float, watched: bool
) -> None:
    """With a folder server time is the writers' own; who saw the last renewal knows better."""
    store = MemoryStore(now=clock.now)
    owner, rival = lease_of("a", store, clock), lease_of("b", store, clock, boot="boot-2")
    assert owner.hold()
    for _ in range(20):
        clock.advance(10)
        assert owner.hold()
        if watched:
            assert not rival.hold()
    clock.step_wall(step)
    while not rival.hold():
        clock.advance(10)
    difference = rival.steady.now() - owner.steady.now()
    if watched or step < 0:
        assert -TTL <= difference <= 2 * TTL
    else:
        assert difference == pytest.approx(step, abs=TTL)  # nobody could tell it from an hour without a daemon


def test_an_hour_without_any_daemon_counts_on_another_machine(clock: ManualClock) -> None:
    store = MemoryStore(now=clock.unset)
    owner = lease_of("a", store, clock)
    held_for(owner, clock, 100)
    clock.advance(HOUR)
    clock.step_wall(-5 * HOUR)
    rival = lease_of("b", store, clock, boot="boot-2")
    while not rival.hold():
        clock.advance(10)
    assert rival.steady.now() == pytest.approx(owner.steady.now(), abs=1)


def test_a_third_daemon_goes_on_though_the_second_died_at_once(clock: ManualClock) -> None:
    store = MemoryStore(now=clock.unset)
    owner = lease_of("a", store, clock)
    held_for(owner, clock, 100)
    for name in ("b", "c"):
        clock.advance(HOUR)
        rival = lease_of(name, store, clock, boot=name)
        while not rival.hold():
            clock.advance(10)
        assert rival.steady.now() == pytest.approx(owner.steady.now(), abs=1)


def test_a_daemon_whose_answer_was_lost_goes_on_from_its_predecessor(clock: ManualClock) -> None:
    store = MemoryStore(now=clock.now)
    owner = lease_of("a", store, clock)
    held_for(owner, clock, 100)
    owner.release()
    clock.step_wall(HOUR)
    faulty = FaultyStore(store)
    faulty.fail_next("put", key=keys.LEASE, fault=Fault.AFTER)
    rival = lease_of("b", faulty, clock)
    with pytest.raises(StoreUnavailable):
        rival.hold()
    assert rival.hold()
    assert rival.steady.now() == pytest.approx(owner.steady.now(), abs=1)


@pytest.mark.parametrize("steady", ["9999-12-31T23:59:59Z", "1970-01-01T00:00:00Z"])
def test_a_lease_that_somebody_else_wrote_moves_no_time(clock: ManualClock, steady: str) -> None:
    store = MemoryStore(now=clock.now)
    point = f'{{"steady": "{steady}", "server": "2027-01-15T08:00:00Z", "boot_id": "boot-1", "boot_seconds": 1}}'
    document = f'{{"owner": "x", "epoch": 3, "released": true, "steady": {point}}}'
    store.put(keys.LEASE, document.encode(), generation=0)
    lease = lease_of("a", store, clock)
    assert lease.hold()
    assert lease.steady.now() == pytest.approx(clock.now())


def test_who_comes_back_goes_on_behind_what_it_had_written(clock: ManualClock) -> None:
    store = MemoryStore(now=clock.now)
    owner = lease_of("a", store, clock)
    held_for(owner, clock, 100)
    before = owner.steady.now()
    meta = store.head(keys.LEASE)
    assert meta is not None
    store.put(keys.LEASE, b"somebody's", generation=meta.generation)
    clock.step_wall(-HOUR)
    clock.advance(TTL)
    assert not owner.hold()
    clock.advance(TTL + 1)
    assert owner.hold()
    assert owner.steady.now() >= before + 2 * TTL


@given(moves=st.lists(st.tuples(st.floats(0.5, 40), st.sampled_from([0.0, 0.0, 5.0, -5.0, HOUR, -HOUR, DAY, -DAY]))))
def test_it_only_goes_forward_and_nearly_as_fast_as_time(moves: list[tuple[float, float]]) -> None:
    clock = ManualClock()
    lease = lease_of("a", MemoryStore(now=clock.now), clock)
    assert lease.hold()
    for seconds, step in moves:
        clock.step_wall(step)
        before = lease.steady.now()
        lease.hold()
        clock.advance(seconds)
        passed = lease.steady.now() - before
        assert seconds * (1 - SLEW) - 1e-5 <= passed <= seconds * (1 + SLEW) + 1e-5
