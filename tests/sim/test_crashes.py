"""The daemon is killed before and after every single write of a job's life; the job must not notice."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from bastion.adapters.forwarding_store import ForwardingStore
from bastion.ports import GangRef, GangRequest, ObjectStore
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for
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


def survive(cluster: Cluster, store: KillingStore, done: Callable[[], object]) -> None:
    """Steps until `done`, replacing the killed daemon by one that knows nothing."""
    for _ in range(400):
        if done():
            store.countdown = 1_000_000  # this life is over; whoever ticks now is not killed any more
            return
        try:
            cluster.step()
        except Killed:
            for provisioner in (cluster.slices, cluster.bastion_host):
                del provisioner.create, provisioner.delete
            cluster.restart_daemon()
    raise AssertionError(f"not done: {cluster.describe()}")


def check_history(cluster: Cluster, job: str) -> None:
    numbers = [int(re.search(r"#(\d+) ", line)[1]) for line in cluster.history(job)]  # type: ignore[index]
    assert numbers == list(range(1, len(numbers) + 1)), "a line of history is lost or doubled"


# A whole life takes about forty mutations; beyond them the countdown never strikes and the run is an ordinary one.
POINTS = range(1, 46)


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", POINTS)
def test_a_slice_job_survives_the_daemons_death_at_any_write(cluster: Cluster, point: int, after: bool) -> None:
    cluster.hosts.scripts["job"] = runs_for(4, code=7)
    uid = cluster.submit("job", instance_type="tpu-v4-16", cleanup_command="echo bye")
    store = kill_at(cluster, point, after=after)
    survive(cluster, store, lambda: cluster.result("job"))
    result = cluster.result("job")
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("failed", 7)
    began = [(b.run, b.host) for b in cluster.hosts.began]
    assert sorted(began) == [(f"{uid}-1", 0), (f"{uid}-1", 1), (f"{uid}-cleanup", 0)], "exactly one incarnation"
    check_history(cluster, "job")
    cluster.settle(15)
    assert cluster.slices.list() == []
    cluster.outlive_late_requests()
    assert [
        key for key in cluster.listed() if key.startswith(("runs/", "beats/", "jobs/claims/", "jobs/states/"))
    ] == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", range(1, 36))
def test_a_cancel_survives_the_daemons_death_at_any_write(cluster: Cluster, point: int, after: bool) -> None:
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.cancel("job")
    store = kill_at(cluster, point, after=after)
    survive(cluster, store, lambda: cluster.result("job"))
    result = cluster.result("job")
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("cancelled", 143)
    check_history(cluster, "job")
    cluster.settle(15)
    assert cluster.slices.list() == []


def test_a_killed_daemons_running_job_is_adopted_and_not_started_again(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(100)
    uid = cluster.submit("job", instance_type="tpu-v4-32")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    for _ in range(5):
        cluster.restart_daemon()
        cluster.settle(3)
        assert cluster.hosts.live("job") == [f"{uid}-1"]
    cluster.run_until(lambda: cluster.result("job"))
    assert len(cluster.hosts.began) == 4
