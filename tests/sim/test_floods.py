"""Thousands of bad specs in one inbox: they cost their writer time, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bastion.adapters.forwarding_store import ForwardingStore
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.model.identity import Inbox
from bastion.daemon.observe.job_views import JobViews
from bastion.daemon.observe.observer import by_turns
from bastion.ports import ObjectStore
from bastion.testing.cluster import Cluster
from bastion.testing.counting_store import CountingStore
from bastion.testing.manual_clock import ManualClock
from bastion.testing.memory_store import MemoryStore

BAD = 200
USERS = {"alice": Inbox(member="user:alice@example.com"), "bob": Inbox(member="user:bob@example.com")}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(limits, "SPECS_READ_AT_ONCE", 10)
    monkeypatch.setattr(limits, "SPECS_REFUSED_MAX", 10)
    yield


def flooded(cluster: Cluster) -> None:
    cluster.use_inboxes(USERS)
    cluster.settle(3)
    for number in range(BAD):
        cluster.put_spec(f"bad-{number}", b"{}", "alice")
    cluster.clock.advance(2)


def test_a_flood_in_one_inbox_holds_up_no_job_of_another() -> None:
    cluster = Cluster()
    flooded(cluster)
    cluster.submit("honest", user="bob", inbox="bob", project="b", instance_type="tpu-v4-8")
    assert cluster.run_until(lambda: cluster.slices.created) <= 2
    assert len(cluster.listed(keys.JOBS_INVALID)) < BAD / 2
    cluster.run_until(lambda: len(cluster.listed(keys.JOBS_INVALID)) == BAD)


def test_each_tick_answers_a_bounded_number_of_bad_specs_and_all_are_answered() -> None:
    cluster = Cluster()
    counting = CountingStore(cluster.store)
    cluster.daemon = cluster.new_daemon(counting)
    flooded(cluster)
    answered, ticks = 0, 0
    while answered < BAD:
        counting.reset()
        cluster.step()
        now = len([key for key in counting.written if key.startswith(keys.JOBS_INVALID)])
        assert now <= 2 * limits.SPECS_REFUSED_MAX
        assert len([key for key in counting.read if key.startswith(keys.INBOX)]) <= 2 * limits.SPECS_REFUSED_MAX
        answered, ticks = answered + now, ticks + 1
        assert ticks <= BAD / limits.SPECS_REFUSED_MAX + 3
    counting.reset()
    cluster.settle(2)
    assert not [key for key in (*counting.read, *counting.written) if key.startswith((keys.INBOX, keys.JOBS_INVALID))]


class _SlowAnswers(ForwardingStore):
    """A bucket that takes a second for each explanation."""

    def __init__(self, store: ObjectStore) -> None:
        super().__init__(store)
        self.clock: ManualClock | None = None

    def put(self, key: str, data: bytes, *, generation: int | None) -> ObjectMeta:
        if key.startswith(keys.JOBS_INVALID) and self.clock is not None:
            self.clock.advance(1)
        return super().put(key, data, generation=generation)


def test_a_job_starts_although_the_answers_take_longer_than_the_lease() -> None:
    cluster = Cluster()
    slow = _SlowAnswers(cluster.store)
    cluster.daemon = cluster.new_daemon(slow)
    flooded(cluster)
    slow.clock = cluster.clock
    cluster.submit("honest", user="bob", inbox="bob", project="b", instance_type="tpu-v4-8")
    ticks = cluster.run_until(lambda: cluster.slices.created, steps=10)
    assert ticks <= 3
    assert 0 < len(cluster.listed(keys.JOBS_INVALID)) < BAD


def test_specs_are_read_in_turns_the_oldest_of_each_inbox_first() -> None:
    def meta(key: str, updated: float) -> ObjectMeta:
        store = MemoryStore(now=lambda: updated)
        return store.put(key, b"", generation=0)

    assert by_turns(
        {
            "a": meta(keys.active("a", "alice"), 3),
            "b": meta(keys.active("b", "alice"), 1),
            "c": meta(keys.active("c", "alice"), 2),
            "d": meta(keys.active("d", "bob"), 9),
        }
    ) == ["b", "d", "c", "a"]
    assert by_turns({"a": meta(keys.active("a"), 2), "b": meta(keys.active("b"), 1)}) == ["b", "a"]


@pytest.mark.parametrize("mode", ["open", "inbox"])
def test_bad_specs_that_nobody_deletes_are_judged_once(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[str] = []
    new_view = JobViews._new_view

    def counted(self: JobViews, name: str, *rest: object) -> object:
        judged.append(name)
        return new_view(self, name, *rest)  # type: ignore[arg-type]

    cluster = Cluster()
    if mode == "inbox":
        flooded(cluster)
    else:
        for number in range(BAD):
            cluster.put_spec(f"bad-{number}", b"{}")
        cluster.clock.advance(2)
    cluster.run_until(lambda: len(cluster.listed(keys.JOBS_INVALID)) == BAD)
    cluster.settle(3)
    monkeypatch.setattr(JobViews, "_new_view", counted)
    cluster.settle(3)
    assert not judged


def test_a_bad_spec_that_is_corrected_is_judged_again() -> None:
    cluster = Cluster()
    cluster.put_spec("job", b"{}")
    cluster.put_spec("other", b"{}")
    cluster.settle(5)
    assert len(cluster.listed(keys.JOBS_INVALID)) == 2
    present = cluster.store.head(keys.active("job"))
    assert present is not None
    cluster.store.delete(present.key, generation=present.generation)
    cluster.submit("job", instance_type="tpu-v4-8")
    cluster.put_spec("other", b"[1]")
    cluster.run_until(lambda: cluster.slices.created)
    cluster.settle(3)
    assert [key for key in cluster.listed(keys.JOBS_INVALID) if "other" in key]
    assert len(cluster.listed(keys.JOBS_INVALID)) == 1
