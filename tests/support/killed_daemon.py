"""A daemon that is killed before or after a write, and its successors."""

from __future__ import annotations

import re
from collections.abc import Callable

from bastion.adapters.forwarding_store import ForwardingStore
from bastion.ports import GangRef, GangRequest, ObjectStore
from bastion.testing.cluster import Cluster
from tests.support.store_calls import WRITES, T


class Killed(BaseException):
    """The daemon's process is gone: no handler of its own may catch this."""


class KillingStore(ForwardingStore):
    """Lets so many mutations pass, then kills its daemon: before the mutation, or right after it."""

    def __init__(self, store: ObjectStore, countdown: int, *, after: bool) -> None:
        super().__init__(store)
        self.countdown = countdown
        self._after = after

    def tick(self) -> bool:
        self.countdown -= 1
        if self.countdown < 0 or (self.countdown == 0 and not self._after):
            raise Killed
        return self.countdown == 0

    def _call(self, method: str, key: str, call: Callable[[], T]) -> T:
        last = method in WRITES and self.tick()
        answer = call()
        if last:
            raise Killed
        return answer


def kill_at(cluster: Cluster, countdown: int, *, after: bool) -> KillingStore:
    """Puts the daemon on a store that kills it, and on provisioners that count as mutations, too."""
    store = KillingStore(cluster.store, countdown, after=after)
    for provisioner in (cluster.slices, cluster.bastion_host):
        create, delete = provisioner.create, provisioner.delete

        def killing_create(request: GangRequest, create: Callable[[GangRequest], None] = create) -> None:
            last = store.tick()
            create(request)
            if last:
                raise Killed

        def killing_delete(ref: GangRef, delete: Callable[[GangRef], None] = delete) -> None:
            last = store.tick()
            delete(ref)
            if last:
                raise Killed

        provisioner.create, provisioner.delete = killing_create, killing_delete  # type: ignore[method-assign]
    cluster.daemon = cluster.new_daemon(store)
    return store


def revive(cluster: Cluster) -> None:
    """Replace the killed daemon by one that knows nothing."""
    for provisioner in (cluster.slices, cluster.bastion_host):
        del provisioner.create, provisioner.delete
    cluster.restart_daemon()


def survive(cluster: Cluster, store: KillingStore, done: Callable[[], object]) -> None:
    """Steps until `done`, replacing the killed daemon by one that knows nothing."""
    for _ in range(400):
        if done():
            store.countdown = 1_000_000  # this life is over; whoever ticks now is not killed any more
            return
        try:
            cluster.step()
        except Killed:
            revive(cluster)
    raise AssertionError(f"not done: {cluster.describe()}")


def check_history(cluster: Cluster, job: str) -> None:
    numbers = [int(re.search(r"#(\d+) ", line)[1]) for line in cluster.history(job)]  # type: ignore[index]
    assert numbers == list(range(1, len(numbers) + 1)), "a line of history is lost or doubled"
