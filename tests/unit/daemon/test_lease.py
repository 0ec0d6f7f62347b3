"""The lease is taken over when it stood still for a whole TTL, by the clock of the one who watches it."""

from __future__ import annotations

from collections.abc import Callable

from bastion.adapters.forwarding_store import ForwardingStore
from bastion.core.bucket import keys
from bastion.daemon.lease import Lease
from bastion.ports import ObjectStore
from bastion.testing.manual_clock import ManualClock
from bastion.testing.memory_store import MemoryStore
from tests.support.store_calls import T

TTL = 60.0


class SlowReads(ForwardingStore):
    """A way to the bucket on which a read takes its time before it is answered."""

    def __init__(self, store: ObjectStore, clock: ManualClock, seconds: float) -> None:
        super().__init__(store)
        self._clock, self.seconds = clock, seconds

    def _call(self, method: str, key: str, call: Callable[[], T]) -> T:
        if method == "get":
            self._clock.advance(self.seconds)
        return call()


def lease_of(owner: str, store: ObjectStore, clock: ManualClock) -> Lease:
    return Lease(store, clock, owner=owner, host_identity=owner, process="1:1", ttl_seconds=TTL)


def test_a_slow_first_look_does_not_shorten_the_ttl_of_a_living_owner(clock: ManualClock) -> None:
    store = MemoryStore(now=clock.now)
    owner = lease_of("owner", store, clock)
    assert owner.hold()
    slow = SlowReads(store, clock, TTL - 5)
    rival = lease_of("rival", slow, clock)
    assert not rival.hold()  # what it sees was written before its look began, as far as it can know: at its end
    slow.seconds = 0
    clock.advance(10)
    assert not rival.hold()
    clock.advance(TTL - 10 - 1)
    assert not rival.hold()
    clock.advance(2)
    assert rival.hold()
    assert rival.epoch == 2


def test_a_lease_whose_owner_renews_it_is_never_taken(clock: ManualClock) -> None:
    store = MemoryStore(now=clock.now)
    owner, rival = lease_of("owner", store, clock), lease_of("rival", store, clock)
    for _ in range(40):
        assert owner.hold()
        assert not rival.hold()
        clock.advance(TTL / 3)
    meta = store.head(keys.LEASE)
    assert meta is not None
    assert owner.epoch == 1
