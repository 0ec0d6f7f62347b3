"""Invariants under faults in time.

Three daemons on machines of their own freeze in mid-request for longer than the lease. Writes land up to a minute late,
listings lack what is new, reads fail for a while, gangs return from the dead, wall clocks jump.

Each seed is one history. Every batch of them must have met every class of fault.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from bastion.core.bucket import keys
from bastion.core.errors import StoreUnavailable
from bastion.core.model.gangs import GangState
from bastion.core.model.job_record import JobRecord
from bastion.core.model.job_record import read as read_record
from bastion.core.model.lifecycle import Status
from bastion.daemon.fence import Fence
from bastion.daemon.observe.job_views import JobViews
from bastion.daemon.observe.observer import Provisioners
from bastion.daemon.tick import TickReport
from bastion.testing.cluster import Cluster
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.frozen import Frozen, SteppedClock, WatchedProvisioner
from bastion.testing.scripted_hosts import runs_for
from bastion.testing.slow_bucket import SlowBucket
from tests.sim.test_faults import POOL, History

# `make soak` runs 20,000.
HISTORIES = int(os.environ.get("BASTION_SIM_HISTORIES", "75"))
BATCH = 75 if HISTORIES <= 300 else 500  # large enough to meet every class
STEPS = 28
MACHINES = 3
# Jobs that are submitted as soon as a history begins.
EARLY = 5
# Wall clocks that jump by an hour.
CLOCK_STEPS = True
CLASSES = {
    "write held back",
    "state landed late",
    "order landed late",
    "claim landed late",
    "result landed late",
    "history landed late",
    "start landed after the fence",
    "state landed after its job's end",
    "frozen",
    "frozen beyond the lease",
    "frozen in a write",
    "frozen in a creation",
    "killed while frozen",
    "takeover",
    "unread state",
    "object missing in a listing",
    "gang returned",
    "gang of an ended job returned",
    *(["clock step"] if CLOCK_STEPS else []),
}
_LANDED = {
    keys.JOBS_STATES: "state landed late",
    keys.JOBS_CLAIMS: "claim landed late",
    keys.JOBS_COMPLETE: "result landed late",
    "history/": "history landed late",
    keys.RUNS: "order landed late",
}


# How likely the writes to a folder are held back.
_HELD = {keys.JOBS_STATES: 0.15, keys.JOBS_CLAIMS: 0.5, keys.JOBS_COMPLETE: 0.15, keys.RUNS: 0.15}
_WRITES = ("put", "append", "delete")
# Where a machine may freeze; each with how many of such moments a tick has, about.
_FREEZES: tuple[tuple[Callable[[str, str], bool], int], ...] = (
    (lambda _method, _key: True, 40),
    (lambda method, _key: method in _WRITES, 12),
    (lambda method, key: method == "put" and key.startswith(keys.JOBS_STATES), 3),
    (lambda method, key: method == "put" and key.startswith((keys.JOBS_CLAIMS, keys.RUNS)), 2),
    (lambda method, key: method == "put" and key.startswith(keys.JOBS_COMPLETE), 1),
    (lambda method, _key: method == "create", 2),
)


class Machine:
    """A daemon's machine: its clock, its ways to the bucket and to the gangs, its tick that may freeze."""

    def __init__(self, history: TimeHistory) -> None:
        self._history = history
        self._cluster = history.cluster
        self.clock = SteppedClock(self._cluster.clock)
        self.frozen: Frozen | None = None
        self.until = 0.0
        self._since = 0.0
        self.unread: set[str] = set()
        self.boot()

    def boot(self) -> None:
        """Starts a daemon that knows nothing."""
        way = self._history.bucket.way()
        way.delay, way.moment = self._delay, self._moment
        self._doomed = False
        self._epoch = 0
        self.daemon = self._cluster.new_daemon(
            way,
            provisioners=Provisioners(
                slices=WatchedProvisioner(self._cluster.slices, self._moment),
                bastion_host=WatchedProvisioner(self._cluster.bastion_host, self._moment),
            ),
            clock=self.clock,
            elsewhere=True,
        )

    def _delay(self, _method: str, key: str) -> float | None:
        history, chances = self._history, self._history.random
        likely = next((chance for start, chance in _HELD.items() if key.startswith(start)), 0.03)
        if not history.trouble or chances.random() >= likely:
            return None
        history.hits["write held back"] += 1
        if key.startswith(keys.JOBS_STATES) and self._cluster.store.head(key) is None:
            return chances.choice([10.0, 60.0])  # its creation: by then the job may be over
        # What takes its requests away often takes the machine, too.
        if key.startswith(keys.JOBS_STATES) and chances.random() < 0.4:
            self._doomed = True
            history.rushes += 1
            return chances.choice([10.0, 25.0, 60.0])
        return chances.choice([0.0, 0.5, 4.0, 10.0, 25.0, 60.0])

    def _moment(self, method: str, key: str) -> None:
        self._history.bucket.land()
        if self.frozen is not None:
            self.frozen.moment(method, key)
        if method == "get" and key in self.unread:
            self._history.hits["unread state"] += 1
            raise StoreUnavailable("the read failed by the test's plan")

    def tick(self) -> None:
        now, hits = self._cluster.clock.monotonic(), self._history.hits
        if self.frozen is not None:
            if now < self.until:
                return
            if now - self._since > 5.0:
                hits["frozen beyond the lease"] += 1
            self.frozen.revive()
            self.frozen = None
            return
        chances = self._history.random
        if self._history.trouble and chances.random() < 0.08:
            when, moments = chances.choice(_FREEZES)
            self.frozen = Frozen(self.daemon.tick, when, chances.randint(1, moments))
            self.frozen.start()
            if self.frozen.over:
                self.frozen = None
            else:
                assert self.frozen.at is not None
                self._since, self.until = now, now + chances.choice([3.0, 8.0, 20.0, 60.0])
                hits["frozen"] += 1
                self._history.rushes += self.frozen.at[0] == "put"
                hits["frozen in a write"] += self.frozen.at[0] in _WRITES
                hits["frozen in a creation"] += self.frozen.at[0] == "create"
        else:
            self.daemon.tick()
        if self._doomed:
            self.die()
            return
        epoch = self.daemon._lease.epoch
        hits["takeover"] += epoch > 1 and epoch != self._epoch
        self._epoch = epoch

    def die(self) -> None:
        if self.frozen is not None:
            self._history.hits["killed while frozen"] += 1
            self.frozen.kill()
            self.frozen = None
        self.boot()


class BusyCluster(Cluster):
    """Its users want all sorts of priorities; its daemons are those of a history's machines."""

    def __init__(self, history: TimeHistory) -> None:
        super().__init__()
        self._history = history

    def submit(self, name: str, **wanted: Any) -> str:
        return super().submit(name, **{"priority": self._history.random.randint(2, 5), **wanted})

    def step(self, seconds: float = 1.0) -> TickReport:
        self._history.step_machines(seconds)
        return TickReport(acted=True)


class TimeHistory(History):
    """A history of three machines.

    Attributes:
        hits: How often each class of fault was met.
        rushes: So many users are about to want room at once, before all others.
    """

    tail_steps = 3

    def __init__(self, seed: int) -> None:
        self.hits: Counter[str] = Counter()
        self.rushes = 0
        self._landed = 0
        self._pace = 4.0
        self._read: dict[str, tuple[int, Any]] = {}
        self.machines: list[Machine] = []
        super().__init__(seed, split=False)
        self.trouble = True
        self.seen_results: dict[str, str] = {}
        self.newest: dict[str, list[str]] = {}
        self.cluster.slices.hide_new_seconds = 0.0  # listings of the bucket lag here, by longer

    def _start_daemon(self) -> None:
        self.cluster = BusyCluster(self)
        self.bucket = SlowBucket(self.cluster.store, self.cluster.clock)
        self.bucket.lag_seconds = self.random.choice([0.0, 1.5])
        self.cluster.store = self.cluster.hosts.store = self.bucket.way()
        self.faulty = FaultyStore(self.cluster.store)
        self.machines = [Machine(self) for _ in range(MACHINES)]

    # -- what happens -------------------------------------------------------------------------------------------

    def _user(self) -> None:
        super()._user()
        if len(self.uids) < EARLY:  # at first all of them, soon: a pool that has room for everybody shows little
            self._submit(f"job-{len(self.uids)}")
        if self.rushes or self.random.random() < 0.15:
            self.rushes = 0
            name = f"rush-{len(self.uids)}"
            self.cluster.hosts.scripts[name] = runs_for(20)
            user, project = self.random.choice([("alice", "a"), ("bob", "b")])
            wanted = {"instance_type": "tpu-v4-32", "priority": 1}
            self.uids[name].add(self.cluster.submit(name, user=user, project=project, **wanted))

    def _step(self) -> None:
        self.step_machines(self.random.choice([0.5, 1.0, 1.0, 2.0, 4.0]) if self.trouble else self._pace)
        self.check(self.charged)

    def step_machines(self, seconds: float) -> None:
        """Every machine may tick, every host acts, then time passes."""
        for machine in self.random.sample(self.machines, len(self.machines)):
            self.bucket.land()
            machine.tick()
        for key in self.bucket.landed[self._landed :]:
            self.hits[next((kind for start, kind in _LANDED.items() if key.startswith(start)), "other")] += 1
            gang = keys.gang(key.split("/")[1]) if key.startswith(keys.RUNS) else ""
            if gang in self.cluster.slices.vanished:
                self._resurrect(gang)  # the order finds its hosts again
        self._landed = len(self.bucket.landed)
        self.cluster.hosts.step([*self.cluster.slices.live_slices(), *self.cluster.bastion_host.live_slices()])
        self.cluster.clock.advance(seconds)

    def _change_quota(self, pool: int) -> None:
        """The pool stays as it is: which of three daemons has read what is another test's matter."""

    def _trouble(self) -> None:
        slices, chances = self.cluster.slices, self.random
        chance = chances.random()
        if chance < 0.03:
            chances.choice(self.machines).die()
        elif chance < 0.05:
            alive = [status for status in slices.list() if status.state is GangState.READY]
            if alive:
                lost = chances.choice(alive).ref
                slices.lose(lost.name, slice_index=chances.randrange(lost.num_slices))
        elif chance < 0.08:
            existing = [status.ref.name for status in slices.list()]
            if existing:
                slices.vanish(chances.choice(existing))
        elif chance < 0.14 and slices.vanished:
            self._resurrect(chances.choice(slices.vanished))
        elif chance < 0.16:
            slices.late_creates += 1
        elif chance < 0.17:
            slices.lose_replies += 1
        elif chance < 0.30:
            machine = chances.choice(self.machines)
            states = self.cluster.listed(keys.JOBS_STATES)
            machine.unread = set(states[: chances.randint(1, 2)]) if states and not machine.unread else set()
        elif chance < 0.33 and CLOCK_STEPS:
            self.hits["clock step"] += 1
            chances.choice(self.machines).clock.offset = chances.choice([-3600.0, 0.0, 3600.0])

    def _resurrect(self, gang: str) -> None:
        self.cluster.slices.resurrect(gang)
        self.hits["gang returned"] += 1
        self.hits["gang of an ended job returned"] += gang.split("-")[1] in self._results

    # -- reading, once per change --------------------------------------------------------------------------------

    def _once_per_change(self, key: str, read: Callable[[bytes], Any]) -> Any:
        """What `read` makes of the object; None if there is none."""
        meta = self.cluster.store.head(key)
        if meta is None:
            return None
        known = self._read.get(key)
        if known is None or known[0] != meta.generation:
            known = self._read[key] = meta.generation, read(self.cluster.store.get(key).data)
        return known[1]

    def records(self) -> dict[str, JobRecord]:
        found = {}
        for key in self.cluster.listed(keys.JOBS_STATES):
            name = key[len(keys.JOBS_STATES) :]
            record = self._once_per_change(key, lambda data, name=name: read_record(data, name=name))
            assert isinstance(record, JobRecord)
            found[name] = record
        return found

    # -- what must hold -----------------------------------------------------------------------------------------

    def check(self, charged_before: int) -> None:
        ended = set(self._results)
        lease = self._once_per_change(keys.LEASE, json.loads) or {"fenced_epoch": 0}
        records = self.records()
        counting = [r for r in records.values() if r.attempt and r.attempt.epoch >= lease["fenced_epoch"]]
        self.charged = sum(r.attempt.charged.get("v4", 0) for r in counting if r.attempt)
        assert self.charged <= POOL, f"{self.charged} of {POOL} units are charged"
        assert self.in_use(counting) <= POOL, "more is in use than the pool has"
        running = {run for name in self.uids for run in self.cluster.hosts.live(name)}
        assert self.cluster.in_use(running) <= POOL, "commands run on more than the pool has"
        for name, uids in self.uids.items():
            live = self.cluster.hosts.live(name)
            assert len(live) <= 1, f"two incarnations of {name} run at once: {live}"
            tries = self.cluster.hosts.live_tries(name)
            assert len(tries) <= 1, f"two tries of {name} run at once: {tries}"
            record = records.get(name)
            if record is not None and not self._just_landed(record):
                self._check_record(record, uids)
        for uid, name in self.accepted.items():
            if name not in records or records[name].uid != uid:
                assert self.result(uid), f"{name} of {uid} is lost"
        for began in self.cluster.hosts.began[self._began :]:
            key = began.run, began.try_number, began.host
            uid = began.run.partition("-")[0]
            self.once[key] += 1
            assert self.once[key] == 1, f"a host ran a try twice: {began}"
            assert uid in self.uids[began.job], "it belongs to no spec that was ever written"
            assert uid not in ended, f"it began after the result: {began}"
        self._began = len(self.cluster.hosts.began)
        self._check_results()

    def _just_landed(self, record: JobRecord) -> bool:
        """Whether this is the creation of a state that landed after its job's end; nothing may come of it."""
        fresh = record.status is Status.PENDING and record.next_attempt == 1
        landed = fresh and record.uid in self.accepted and self.result(record.uid) is not None
        self.hits["state landed after its job's end"] += landed
        return landed

    def _check_results(self) -> None:
        """Each result stays as it was first written, in one place; the newest job's lies under the name."""
        for key in self.cluster.listed(keys.JOBS_COMPLETE):
            name, _, aside = key[len(keys.JOBS_COMPLETE) :].partition(".")
            uid, text = self._once_per_change(key, _uid_and_text)
            assert self.seen_results.setdefault(uid, text) == text, f"the result of {uid} changed"
            if aside:
                assert aside == uid
                continue
            order = self.newest.setdefault(name, [uid])
            if order[-1] != uid:
                assert uid not in order, f"the result of {uid} displaced that of {order[-1]}, which is newer"
                order.append(uid)

    def finish(self) -> None:
        self.trouble = False
        for machine in self.machines:
            machine.unread = set()
            machine.until = 0.0
        self.cluster.slices.late_creates = self.cluster.slices.lose_replies = 0
        while self.bucket.under_way or any(machine.frozen for machine in self.machines):
            self._step()  # no fault ends before its last write has landed
        self.machines = [self.random.choice(self.machines)]
        self._pace = 20.0
        super().finish()
        self._check_histories()
        superseded = [line for name in self.uids for line in self.cluster.history(name) if "superseded" in line]
        self.hits["start landed after the fence"] += len(superseded)
        self.hits["object missing in a listing"] += self.bucket.hidden

    def _check_histories(self) -> None:
        for key in self.cluster.listed("history/projects/"):
            marks = Counter(re.findall(r" (\w{10}#\d+) ", self.cluster.store.get(key).data.decode()))
            assert not [mark for mark, count in marks.items() if count > 1], f"a line of {key} is doubled"


def _uid_and_text(data: bytes) -> tuple[str, str]:
    result = json.loads(data)["result"]
    return result["uid"], repr(result)


def live_through(seed: int) -> Counter[str]:
    history = TimeHistory(seed)
    try:
        for _ in range(STEPS):
            history.step()
        history.finish()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
    finally:
        for machine in history.machines:
            if machine.frozen is not None:
                machine.frozen.kill()
    return history.hits


def _breaks(seed: int) -> bool:
    try:
        live_through(seed)
    except AssertionError:
        return True
    return False


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("owner", "what", "instead", "known"),
    [
        (Fence, "late", lambda _fence, _record: False, 15),
        (JobViews, "_is_ghost", lambda _views, _view, _record: False, 17),
    ],
    ids=["late starts count", "ended jobs come back"],
)
def test_the_checks_fail_where_a_protection_is_missing(
    owner: type, what: str, instead: object, known: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`known`: a history that noticed it once; any other will do after a change that makes new ones of all seeds."""
    monkeypatch.setattr(owner, what, instead)
    assert any(_breaks(seed) for seed in (known, *range(200))), "no history noticed"


@pytest.mark.timeout(1800)  # a history takes about an eighth of a second of processor time
@pytest.mark.parametrize("first", range(0, HISTORIES, BATCH))
def test_invariants_hold_under_faults_in_time(first: int) -> None:
    hits: Counter[str] = Counter()
    for seed in range(first, min(first + BATCH, HISTORIES)):
        hits += live_through(seed)
    missed = sorted(kind for kind in CLASSES if not hits[kind])
    assert missed == [] or HISTORIES - first < BATCH, f"classes of faults that no history met; met: {hits}"
