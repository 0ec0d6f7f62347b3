"""The public keys of a job's attempts: in its order, its state and its result, also after a hundred attempts."""

from __future__ import annotations

from bastion.client.jobs.results import read_result
from bastion.core import limits
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.keys import Run
from bastion.core.bucket.protocol import Order
from bastion.core.model.job_record import Cause, PastAttempt, keys_beyond
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for


def past(number: int, cause: Cause, *, ran: bool = False) -> PastAttempt:
    since = 1.0 if ran else None
    return PastAttempt(
        number=number, started_at=0, running_since=since, ended_at=2, cause=cause, message="", public_key=f"k{number}"
    )


def test_the_next_attempts_order_and_the_result_have_the_keys_of_the_attempts_before(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(5)
    uid = cluster.submit("job", instance_type="tpu-v4-8", output_dir="out", cleanup_command="true")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    first = cluster.run_keys.drawn(f"{uid}-1").public
    order = protocol.read(Order, cluster.store.get(keys.order(f"{uid}-1")).data)
    assert order.proofs == {}
    cluster.slices.lose(keys.gang(f"{uid}-1"))
    cluster.run_until(lambda: cluster.store.head(keys.order(f"{uid}-2")))
    order = protocol.read(Order, cluster.store.get(keys.order(f"{uid}-2")).data)
    assert order.proofs == {f"{uid}-1": first}
    record = cluster.record("job")
    assert record is not None
    assert record.public_keys.of(Run(uid, 1)) == first
    cluster.run_until(lambda: cluster.result("job"))
    result = read_result(cluster.store.get(keys.complete("job")).data, name="job")
    runs = [Run(uid, 1), Run(uid, 2), Run(uid, 0)]
    assert [result.public_keys.of(run) for run in runs] == [cluster.run_keys.drawn(str(run)).public for run in runs]
    assert result.public_keys.of(Run(uid, 3)) is None


def test_keys_of_attempts_that_may_have_stored_something_outlive_a_hundred_without_capacity() -> None:
    attempts = [past(1, Cause.INFRASTRUCTURE, ran=True), past(2, Cause.CAPACITY)]
    earlier: dict[str, str] = {}
    for number in range(3, 500):
        attempts.append(past(number, Cause.CAPACITY))
        earlier = keys_beyond(attempts, earlier)
        attempts = attempts[-limits.PAST_ATTEMPTS_KEPT :]
    assert earlier == {"1": "k1"}


def test_a_bounded_number_of_earlier_keys_is_kept_the_newest_ones() -> None:
    attempts = [past(number, Cause.EVICTED, ran=True) for number in range(1, 1000)]
    earlier = keys_beyond(attempts, {})
    most = limits.PAST_ATTEMPTS_KEPT
    assert list(earlier) == [str(number) for number in range(1000 - 2 * most, 1000 - most)]
    read_again = dict(sorted(earlier.items()))  # as JSON keeps them
    assert list(keys_beyond(attempts[-most - 1 :], read_again))[-1] == str(999 - most)
