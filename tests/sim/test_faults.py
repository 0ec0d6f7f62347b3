"""Invariants under random faults: lost requests and replies, lost nodes, late creates, stockouts, dead daemons, users
who change their minds, names used again, quota changes, and two daemons that act at the same time.

Each seed is one history. What must hold in every one of them is written as checks that run after every step.
"""

from __future__ import annotations

import itertools
import os
import random
import re
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

import pytest

from bastion.adapters.forwarding_store import ForwardingStore
from bastion.core import limits
from bastion.core.bucket import host_errors, keys
from bastion.core.model.gangs import GangState
from bastion.core.model.job_record import JobRecord
from bastion.core.model.lease import LeaseDocument
from bastion.daemon.daemon import Daemon
from bastion.ports import ObjectStore
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.scripted_hosts import Script, runs_for
from tests.support.store_calls import WRITES, T

POOL = 64
# `make soak` runs thousands.
SEEDS = int(os.environ.get("BASTION_SIM_SEEDS", "12"))
STEPS = 160
NAMES = 8


class InterruptedStore(ForwardingStore):
    """A daemon's way to its bucket, on which another daemon's whole tick happens now and then, before a write."""

    def __init__(self, store: ObjectStore, chances: random.Random) -> None:
        super().__init__(store)
        self._chances = chances
        self._lock = threading.Lock()
        self._busy = False
        self.rival: Daemon | None = None

    def _call(self, method: str, key: str, call: Callable[[], T]) -> T:
        if method in WRITES:
            self._interrupt()
        return call()

    def _interrupt(self) -> None:
        with self._lock:
            if self.rival is None or self._busy or self._chances.random() > 0.1:
                return
            self._busy = True
        self.rival.tick()
        self._busy = False


def ignore_the_lease(daemon: Daemon) -> Daemon:
    """As if it had been paused within a tick, and another had taken over: it acts on what it remembers."""
    daemon._lease._mine = LeaseDocument(owner="", epoch=1, fenced_epoch=1)
    daemon._lease.hold = lambda: True  # type: ignore[method-assign]
    daemon._lease.may_act = lambda: True  # type: ignore[method-assign]
    daemon._executor._may_act = lambda: True
    return daemon


class History:
    """One seeded history: a cluster, its users, and the trouble they meet.

    Attributes:
        uids: Every uid that a name's jobs may have: one for each spec object its users wrote.
        accepted: Name by uid, of jobs whose state was seen.
        acknowledged: Uids of jobs whose cancel was seen in their state, with the next attempt's number then.
        tail_steps: After the end of all jobs, so that deletions under way come to an end.
    """

    tail_steps = 40

    def __init__(self, seed: int, *, split: bool) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster()
        self.faulty = FaultyStore(self.cluster.store, seed=seed, before=0.01, after=0.01)
        self.split = split
        self._start_daemon()
        self.cluster.slices.ready_seconds = self.random.choice([0.0, 2.0, 5.0])
        self.cluster.slices.delete_seconds = self.random.choice([0.0, 3.0])
        self.cluster.slices.hide_new_seconds = self.random.choice([0.0, 3.0])
        self.uids: dict[str, set[str]] = defaultdict(set)
        self.accepted: dict[str, str] = {}
        self.acknowledged: dict[str, int] = {}
        self.attempts: dict[str, int] = {}
        self.pools = {self._quota_generation(): POOL}
        self.charged = 0
        self.once: Counter[tuple[str, int, int]] = Counter()
        self._results: dict[str, dict[str, object]] = {}
        self._began = 0

    def _start_daemon(self) -> None:
        if not self.split:
            self.cluster.daemon = self.cluster.new_daemon(self.faulty)
            return
        interrupted = InterruptedStore(self.faulty, self.random)
        interrupted.rival = ignore_the_lease(self.cluster.new_daemon(self.faulty))
        self.cluster.daemon = ignore_the_lease(self.cluster.new_daemon(interrupted))

    # -- what happens -------------------------------------------------------------------------------------------

    def step(self) -> None:
        self._user()
        self._trouble()
        self._step()

    def _step(self) -> None:
        before = self.charged
        self.cluster.step()
        self.check(before)

    def _user(self) -> None:
        chance = self.random.random()
        names = sorted(self.uids)
        if chance < 0.12:
            name = f"job-{self.random.randrange(NAMES)}"
            if self.cluster.store.head(keys.active(name)) is None or self.random.random() < 0.2:
                self._submit(name)
        elif not names:
            return
        elif chance < 0.15:
            self._cancel(self.random.choice(names))
        elif chance < 0.18:
            self._update(self.random.choice(names))
        elif chance < 0.19:
            meta = self.cluster.store.head(keys.active(self.random.choice(names)))
            if meta is not None:
                self.cluster.store.delete(meta.key, generation=meta.generation)
        elif chance < 0.20:
            self._change_quota(self.random.choice([16, 32, POOL, POOL]))

    def _submit(self, name: str, version: int | None = None) -> None:
        user, project = self.random.choice([("alice", "a"), ("bob", "b")])
        size = self.random.choice(["", "tpu-v4-8", "tpu-v4-16", "tpu-v4-32"])
        seconds = self.random.choice([1.0, 8.0, 40.0])
        code, failing = self.random.choice([0, 0, 3]), self.random.choice([None, 0, 1])
        self.cluster.hosts.scripts[name] = self._script(seconds, code, failing)
        for number in (2, 3):
            self.cluster.hosts.later_scripts[name, number] = self._script(seconds, self.random.choice([0, 3]), failing)
        self.cluster.hosts.storing[name, self.random.randrange(4)] = self.random.choice([0.0, 5.0, 30.0])
        cleanup = self.random.choice([None, None, "echo bye"])
        command = f"run {self.random.random()}"  # else two submissions are the same bytes: a touched spec
        uid = self.cluster.submit(
            name,
            user=user,
            project=project,
            instance_type=size,
            version=version,
            cleanup_command=cleanup,
            command=command,
            max_tries=self.random.choice([None, 2, 3]),
        )
        self.uids[name].add(uid)

    def _script(self, seconds: float, code: int, failing: int | None) -> Script:
        """A command that ends after so long; with a code other than 0 that host first (None: all at once)."""
        if code == 0 or failing is None:
            return runs_for(seconds, code)
        fails, ends = runs_for(seconds, code), runs_for(3 * seconds)
        return lambda host, elapsed: (fails if host == failing else ends)(host, elapsed)

    def _update(self, name: str) -> None:
        record = self.cluster.record(name)
        if record is not None and self.cluster.store.head(keys.active(name)) is not None:
            self._submit(name, version=(record.job.version or 0) + 1)

    def _cancel(self, name: str) -> None:
        record = self.cluster.record(name)
        if record is not None and self.cluster.store.head(keys.user_state(name)) is None:
            self.cluster.cancel(name, uid=record.uid)

    def _change_quota(self, pool: int) -> None:
        self.cluster.write_quota(QUOTA.replace(b"v4 = 64", f"v4 = {pool}".encode()))
        self.pools[self._quota_generation()] = pool

    def _quota_generation(self) -> int:
        meta = self.cluster.store.head(keys.PROJECT_QUOTAS)
        assert meta is not None
        return meta.generation

    def _trouble(self) -> None:
        slices = self.cluster.slices
        chance = self.random.random()
        if chance < 0.02:
            self.cluster.clock.advance(6)
            self._start_daemon()
        elif chance < 0.04:
            nodes = [status for status in slices.list() if status.state is GangState.READY]
            if nodes:
                lost = self.random.choice(nodes).ref
                slices.lose(lost.name, slice_index=self.random.randrange(lost.num_slices))
        elif chance < 0.06:
            slices.lose_replies += 1
        elif chance < 0.08:
            slices.late_creates += 1
        elif chance < 0.10:
            slices.stockouts += 1
        elif chance < 0.12:
            name, host = f"job-{self.random.randrange(NAMES)}", self.random.randrange(4)
            self.cluster.hosts.errors[name, host] = self.random.choice([host_errors.PREEMPTED, host_errors.HOST_FAILED])
        elif chance < 0.13:
            slices.waits = {} if slices.waits else {"": "WAITING_FOR_RESOURCES"}

    # -- what must hold -----------------------------------------------------------------------------------------

    def records(self) -> dict[str, JobRecord]:
        return {name: record for name in sorted(self.uids) if (record := self.cluster.record(name))}

    def in_use(self, records: Iterable[JobRecord]) -> int:
        """Units of nodes whose attempts are not over.

        A creation whose request was lost may still happen after its attempt was given up; its gate is closed then, and
        it is swept. Nobody can know of it before it exists, so it does not count.
        """
        runs = {f"{record.uid}-{record.attempt.number}" for record in records if record.attempt}
        return self.cluster.in_use(runs)

    def check(self, charged_before: int) -> None:
        records = self.records()
        self.charged = sum(r.attempt.charged.get("v4", 0) for r in records.values() if r.attempt)
        if not self.split:  # two daemons that both believe to be alone may give the same room away twice
            assert self.in_use(records.values()) <= POOL, "more is in use than the pool has"
            in_force = self.pools.get(self.cluster.daemon._policy.status.generation, 0)  # what the daemon last read
            assert self.charged <= max(in_force, charged_before), "something started beyond the quota in force"
        for name, uids in self.uids.items():
            live = self.cluster.hosts.live(name)
            assert len(live) <= 1, f"two incarnations of {name} run at once: {live}"
            tries = self.cluster.hosts.live_tries(name)
            assert len(tries) <= 1, f"two tries of {name} run at once: {tries}"
            record = records.get(name)
            if record is not None:
                self._check_record(record, uids)
        for uid, name in self.accepted.items():
            if name not in records or records[name].uid != uid:
                assert self.result(uid), f"{name} of {uid} is lost"
        for began in self.cluster.hosts.began[self._began :]:
            key = began.run, began.try_number, began.host
            self.once[key] += 1
            assert self.once[key] == 1, f"a host ran a try twice: {began}"
            assert began.run.partition("-")[0] in self.uids[began.job], "it belongs to no spec that was ever written"
        self._began = len(self.cluster.hosts.began)

    def _check_record(self, record: JobRecord, uids: set[str]) -> None:
        uid, number = record.uid, record.next_attempt
        assert uid in uids
        assert self.result(uid) is None or record.status.value == "COMPLETED", "a terminal job came back"
        assert number >= self.attempts.get(uid, 0), "attempts went back"
        self.attempts[uid] = number
        self.accepted[uid] = record.name
        if record.status.value == "CANCELLING":
            self.acknowledged.setdefault(uid, number)
        assert number == self.acknowledged.get(uid, number), "a cancel was undone"

    def result(self, uid: str) -> dict[str, object] | None:
        if uid not in self._results and uid in self.accepted:
            name = self.accepted[uid]
            for key in (keys.complete(name), keys.former_result(name, uid)):
                document = self.cluster.json(key)
                if document is not None and document["result"]["uid"] == uid:
                    self._results[uid] = dict(document["result"])
        return self._results.get(uid)

    def _updates(self, uid: str) -> int:
        """How often a newer version of its spec was taken up."""
        lines = [line for line in self.cluster.history(self.accepted[uid]) if f" {uid}#" in line]
        return len({mark[1] for line in lines if (mark := re.search(r"\bversion (\d+)", line))})

    def finish(self) -> None:
        """The trouble ends; everything must end well."""
        self.faulty.enabled = False
        self.cluster.slices.waits = {}
        self.cluster.hosts.errors.clear()
        self._change_quota(POOL)
        for _ in range(1500):
            if not self.cluster.listed("jobs/active/") and not self.cluster.listed("jobs/states/"):
                break
            self._step()
        assert not self.cluster.listed("jobs/active/"), self.cluster.describe()
        for uid in self.accepted:
            result = self.result(uid)
            assert result is not None, f"{uid} has no result"
            if uid in self.acknowledged:
                assert result["outcome"] == "cancelled"
            attempts = result["attempts"]
            assert isinstance(attempts, list)
            failed = [past["number"] for attempt in attempts for past in attempt["tries"]]
            anew = sum(number <= before for before, number in itertools.pairwise(failed))
            assert max(failed, default=0) <= 2, f"more tries of {uid} failed than it has: {failed}"
            assert anew <= self._updates(uid), f"the tries of {uid} were counted anew without an update: {failed}"
        for name in self.uids:
            marks = [re.search(r" (\w{10})#(\d+) ", line) for line in self.cluster.history(name)]
            numbers: dict[str, list[int]] = defaultdict(list)
            for mark in marks:
                assert mark is not None
                numbers[mark[1]].append(int(mark[2]))
            for uid, found in numbers.items():
                assert found == list(range(1, len(found) + 1)), f"history of {name} of {uid}: {found}"
                assert self.uids[name] >= {uid}
        for _ in range(self.tail_steps):
            self.cluster.step()
        self.cluster.daemon = self.cluster.new_daemon()  # one that knows the server's time by its lease
        self.cluster.outlive_late_requests()
        assert self.cluster.slices.list() == [], "a slice leaked"
        assert self.cluster.bastion_host.list() == [], "a process on the bastion leaked"
        left = [k for k in self.cluster.listed() if k.startswith(("jobs/states/", "jobs/claims/", "runs/", "beats/"))]
        assert left == []
        assert self.cluster.listed("jobs/user_states/") == []


@pytest.mark.parametrize("seed", range(SEEDS))
def test_invariants_hold_in_a_random_history(seed: int) -> None:
    history = History(seed, split=False)
    for _ in range(STEPS):
        history.step()
    history.finish()


@pytest.mark.parametrize("seed", range(SEEDS // 3))
@pytest.mark.parametrize("split", [False, True])
def test_invariants_hold_where_a_tick_lists_folders_piece_by_piece(
    seed: int, split: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LIST_PAGE_OBJECTS", 2)  # as in a bucket with thousands of jobs
    history = History(1000 + seed, split=split)
    for _ in range(STEPS):
        history.step()
    history.finish()


@pytest.mark.parametrize("seed", range(SEEDS // 2))
def test_two_daemons_that_both_act_break_nothing_but_the_room_they_share(seed: int) -> None:
    history = History(seed, split=True)
    for _ in range(STEPS):
        history.step()
    history.finish()
