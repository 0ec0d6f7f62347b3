"""Follow one job to its end: its progress, its output and how it ended, as a stream of events.

`follow` polls the bucket and sleeps on the given clock; the caller shows the events and may stop at any time.

It works in slots (`bastion.client.jobs.poll_pace`). In the cloud a slot without news costs one request, and a slot that
needed more is followed by as many empty ones. It looks at the output of a quiet running job every 3 s on average, at
its state every 8 s, at the lease every 31 s. `RunLogs` says how long a line of one of many workers may wait.

Invariants:

* All output that is in the bucket when the job ends comes before `Ended`.
* A bucket that does not answer is reported once and polled again; it never ends the following.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from bastion.client.daemon_health import DaemonHealth
from bastion.client.jobs.client import Client
from bastion.client.jobs.follow_events import (
    CaughtUp,
    Ended,
    Event,
    FollowOptions,
    Logged,
    Noted,
    Progressed,
    Quiet,
    StartedAttempt,
)
from bastion.client.jobs.job_info import JobInfo, Stage
from bastion.client.jobs.poll_pace import Look, Rotation
from bastion.client.logs.folders import runs_of
from bastion.client.logs.pieces import LogPiece
from bastion.client.logs.reader import RunLogs
from bastion.client.request_meter import RequestMeter
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from bastion.core.errors import EXIT_CANCELLED, EXIT_REFUSED, NotFound, StoreUnavailable
from bastion.core.model import job_record
from bastion.core.model.job_record import JobRecord
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.lifecycle import Status
from bastion.core.model.run_public_keys import NOBODY, RunPublicKeys
from bastion.core.plurals import count as count_of
from bastion.core.status.document import BacklogEntry, JobEntry

# A slot that fails may have made many requests.
_SLOTS_AFTER_OUTAGE_MAX = 5
# Seconds between two looks of each kind, if there are enough slots.
_LEASE_PERIOD = 20.0
_SUBMITTED = {Look.STATE: 4.0, Look.SPEC: 8.0, Look.LEASE: _LEASE_PERIOD}
_WAITING = {Look.STATE: 4.0, Look.STATUS: 6.0, Look.LEASE: _LEASE_PERIOD}
_STARTING = {Look.LOGS: 4.0, Look.STATE: 5.0, Look.STATUS: 6.0, Look.LEASE: _LEASE_PERIOD}
# The rest of a running job's status (hosts that restarted, a refused new spec) is not urgent.
_RUNNING = {Look.LOGS: 2.0, Look.STATE: 5.0, Look.STATUS: 60.0, Look.LEASE: _LEASE_PERIOD}

EVERYTHING = FollowOptions()


def follow(
    client: Client, name: str, uid: str, *, generation: int = 0, what: FollowOptions = EVERYTHING
) -> Iterator[Event]:
    """Follow the job of that name and uid until it has ended and all its output was given.

    Args:
        generation: Of the spec just submitted. If the daemon spells the ROOT differently, and so gives the job another
            uid, the generation identifies it.

    Raises:
        StoreError: other than `StoreUnavailable`; a retry would not help.
    """
    meter = RequestMeter(client.store)
    watching = Client(meter, client.root, client.clock)
    watching.learn_from(client)
    following = _Following(
        watching,
        name,
        uid,
        generation,
        what,
    )
    silent = False
    while True:
        before, most = meter.requests, math.inf
        try:
            yield from following.slot()
            if silent:
                silent = False
                yield Noted(text="the bucket answers again")
            if following.ended is not None:
                yield following.ended
                return
            if following.unfinished and not following.news:
                yield Quiet()
        except StoreUnavailable as error:
            most = _SLOTS_AFTER_OUTAGE_MAX
            if not silent:
                silent = True
                yield Noted(text=f"the bucket does not answer; retrying: {error}")
        requests = 1 if following.news else min(meter.requests - before, most)
        client.clock.sleep(client.pace.pause(requests))


def left_out(count: int, below: str) -> str:
    """Tell that so many objects were not read; `below`: the folder of all of them."""
    return (
        f"left out {count_of(count, 'object')} below {below}: no host of this attempt proves to have written them, so "
        "others may have; use --unproved to see them"
    )


def slices_of(spec: JobSpec | None) -> int:
    """The number of slices that share the job's hosts equally."""
    return spec.runner.num_replicas if spec is not None and spec.runner is not None else 1


class _Following:
    """What has been seen of the job.

    Attributes:
        news: Whether the last slot found something.
        unfinished: Workers and streams whose last line has not ended.
        ended: The last event, once everything was given.
    """

    def __init__(self, client: Client, name: str, uid: str, generation: int, what: FollowOptions) -> None:
        self._client = client
        self._name = name
        self._uid = uid
        self._generation = generation
        self._what = what
        self._rotation = Rotation(client.clock, sparing=client.pace.sparing)
        self._health = DaemonHealth(client.store, client.clock, local=client.root.local)
        self._daemon_problem = ""
        self._shown: tuple[object, ...] | None = None
        self._minute: float | None = None  # of the last progress, while the job waits for capacity
        self._run: Run | None = None
        self._logs: RunLogs | None = None
        self._public_keys: RunPublicKeys | None = None
        self._told_unproved = 0  # of the present run
        self._caught_up = False
        # Look at the whole job next: at first, and whenever a single object is not enough.
        self._whole = True
        self._vanished = False
        self._stage = Stage.SUBMITTED
        self._record: JobRecord | None = None
        # Generations seen; -1: not looked at yet, 0: no such object.
        self._state_seen = -1
        self._spec_seen = -1
        self._refusal_seen = -1
        self._ask_refusal = False
        self.news = False
        self.unfinished: set[tuple[int, str]] = set()
        self.ended: Ended | None = None

    def slot(self) -> Iterator[Event]:
        """Make the looks of one slot; set `ended` once everything was given."""
        self.news = False
        if not self._whole:
            for look in self._rotation.due(self._periods()):
                for event in self._take(look):
                    self.news = True
                    yield event
        if self._whole:
            self.news = True
            yield from self._look_at_everything()

    def _periods(self) -> Mapping[Look, float]:
        if self._stage is Stage.SUBMITTED:
            return _SUBMITTED
        if self._logs is None:
            return _WAITING
        return _RUNNING if self._shown is not None and self._shown[0] == "running" else _STARTING

    def _take(self, look: Look) -> Iterator[Event]:
        match look:
            case Look.LOGS:
                yield from self._new_output()
            case Look.STATE:
                yield from self._look_at_state()
            case Look.STATUS:
                yield from self._look_at_status()
            case Look.SPEC:
                self._look_at_spec()
            case Look.LEASE:
                yield from self._look_at_lease()

    # -- everything at once -------------------------------------------------------------------------------------

    def _look_at_everything(self) -> Iterator[Event]:
        info = self._info()
        ended = self._end(info)
        attempt = None
        if info is not None:
            self._vanished = False
            self._remember(info)
            if info.stage is not Stage.COMPLETED:
                yield from self._progress(info.entry, self._client.kept_out(info))
            attempt = info.record.attempt.number if info.record is not None and info.record.attempt else None
        if self._what.logs:
            if attempt is None and not self._caught_up and info is not None and info.record and info.record.attempts:
                # It waits for another attempt: the output of the earlier ones is complete.
                for run in self._runs():
                    yield from self._all_of(run)
            yield from self._switch_to(attempt)
            yield from self._new_output()
        if not self._caught_up and ended is None:
            self._caught_up = True
            yield CaughtUp()
        if ended is not None:
            if self._what.logs:
                yield from self._drain()
            self.ended = ended
        self._whole = ended is None and info is None

    def _remember(self, info: JobInfo) -> None:
        self._stage = info.stage
        self._record = info.record
        self._public_keys = info.public_keys
        self._spec_seen = info.generation
        if info.stage is Stage.SUBMITTED:
            self._state_seen = max(self._state_seen, 0)
        for look in (Look.STATE, Look.STATUS, Look.SPEC):
            self._rotation.looked(look)

    def _info(self) -> JobInfo | None:
        info = self._client.look(self._name)
        if info is None or info.uid == self._uid:
            return info
        if info.record is not None and self._is_ours(info.record):
            return info
        # Somebody else's job may have the name.
        own = self._client.look_in_inbox(self._name)
        return own if own is not None and own.uid == self._uid else None

    def _is_ours(self, record: JobRecord) -> bool:
        if self._generation and record.generation == self._generation:
            self._uid = record.uid
        return record.uid == self._uid

    def _end(self, info: JobInfo | None) -> Ended | None:
        if info is not None and info.stage is Stage.INVALID:
            return Ended(result=None, exit_code=EXIT_REFUSED, message=f"the spec is refused: {info.problem}")
        if info is not None and info.stage is not Stage.COMPLETED:
            return None
        result = info.result if info else self._client.result(self._name, self._uid)
        if result is not None:
            self._public_keys = result.public_keys
            return Ended(result=result, exit_code=result.exit_code, message=result.message)
        return self._gone()

    def _gone(self) -> Ended | None:
        """Neither spec, state nor result, twice in a row: one look may fall between two writes."""
        if not self._vanished:
            self._vanished = True
            return None
        text = "its spec was deleted or replaced before the scheduler picked it up"
        return Ended(result=None, exit_code=EXIT_CANCELLED, message=text)

    # -- one object at a time -----------------------------------------------------------------------------------

    def _look_at_state(self) -> Iterator[Event]:
        try:
            stored = self._client.store.get(keys.state(self._name), max_bytes=limits.DOCUMENT_MAX_BYTES)
        except NotFound:
            self._whole = self._state_seen != 0
            self._state_seen = 0
            return
        # In the last step of the job's end the result appears, and the state does not change.
        ending = self._record is not None and self._record.status is Status.COMPLETED
        if stored.meta.generation == self._state_seen and not ending:
            return
        state = job_record.read(stored.data, name=self._name)
        if isinstance(state, JobRecord) and self._is_ours(state) and state.status is not Status.COMPLETED:
            self._record, self._stage = state, Stage.KNOWN
            self._public_keys = state.public_keys
            if self._what.logs:
                yield from self._switch_to(state.attempt.number if state.attempt else None)
            yield from self._look_at_status()
            self._rotation.looked(Look.STATUS)
        else:
            self._whole = True
        self._state_seen = stored.meta.generation

    def _look_at_status(self) -> Iterator[Event]:
        entry = self._client.entries().get(self._name)
        yield from self._progress(entry if entry is not None and entry.uid == self._uid else None)

    def _look_at_spec(self) -> None:
        """Look alternately whether the spec has changed, and whether it is refused."""
        self._ask_refusal = not self._ask_refusal
        key = self._client.refusal_key(self._name) if self._ask_refusal else self._client.spec_key(self._name)
        meta = self._client.store.head(key)
        generation = meta.generation if meta else 0
        if self._ask_refusal:
            # A refusal may be of an older spec.
            self._whole = generation not in (0, self._refusal_seen)
            self._refusal_seen = generation
        else:
            self._whole = generation != self._spec_seen

    def _look_at_lease(self) -> Iterator[Event]:
        problem = self._health.look()
        if bool(problem) != bool(self._daemon_problem):
            yield Noted(
                text=f"{problem}; running jobs continue, and other jobs wait until a daemon runs again"
                if problem
                else "a daemon is running again"
            )
        self._daemon_problem = problem

    def _progress(self, entry: JobEntry | None, kept_out: BacklogEntry | None = None) -> Iterator[Event]:
        if entry is None and self._shown is not None:
            return  # the daemon no longer publishes a job that has ended
        phase = entry.phase if entry else "submitted"
        shown: tuple[object, ...] = (phase,)
        if entry is not None:
            text = (entry.reason.code, entry.reason.message) if entry.reason else None
            shown = (phase, entry.attempt, entry.hosts_up, entry.stopping, text, entry.waiting, entry.try_number)
        minute = self._client.clock.now() // 60 if entry is not None and entry.waiting else None
        if shown != self._shown or minute != self._minute:
            again = shown == self._shown
            self._shown, self._minute = shown, minute
            yield Progressed(phase=phase, entry=entry, again=again, kept_out=kept_out)

    # -- output -------------------------------------------------------------------------------------------------

    def _new_output(self) -> Iterator[Event]:
        if self._logs is None:
            return
        pieces = self._logs.poll(sparing=self._client.pace.sparing)
        if pieces:
            yield self._logged(pieces)
        while self._logs.behind:
            pieces = self._logs.poll()
            if pieces:
                yield self._logged(pieces)
        yield from self._unproved(last=False)

    def _logged(self, pieces: list[LogPiece]) -> Logged:
        for piece in pieces:
            place = (piece.worker, piece.stream)
            if piece.ends:
                self.unfinished.discard(place)
            else:
                self.unfinished.add(place)
        return Logged(pieces=pieces)

    def _switch_to(self, number: int | None) -> Iterator[Event]:
        """Switch to the attempt of that number if it is newer than the present one."""
        if number is None or number < self._what.first_attempt or (self._run and number <= self._run.attempt):
            return
        after = self._run.attempt if self._run else self._what.first_attempt - 1
        # Include attempts that ended between two looks.
        if number > after + 1:
            for run in self._runs():
                if run.attempt < number:
                    yield from self._all_of(run)
        yield from self._begin(Run(self._uid, number))

    def _runs(self) -> list[Run]:
        """Later runs with output, without the cleanup command's."""
        after = self._run.attempt if self._run else self._what.first_attempt - 1
        runs = runs_of(self._client.store, self._name, self._uid)
        return [run for run in runs if run.attempt > after and self._key_of(run) != NOBODY]

    def _key_of(self, run: Run) -> str:
        if self._what.unproved:
            return ""
        known = self._public_keys.of(run) if self._public_keys is not None else None
        return NOBODY if known is None else known

    def _unproved(self, *, last: bool) -> Iterator[Event]:
        """Tell once that something was left out, and at the end of a run how much if it became more."""
        count = self._logs.unproved if self._logs is not None else 0
        if self._logs is not None and count > self._told_unproved and (last or not self._told_unproved):
            self._told_unproved = count
            yield Noted(text=left_out(count, self._logs.unproved_below))

    def _begin(self, run: Run) -> Iterator[Event]:
        """Finish the present run and switch to another."""
        if self._logs is not None:
            for pieces in self._logs.drain():
                yield Logged(pieces=pieces)
            yield from self._unproved(last=True)
        spec = self._record.job if self._record is not None else self._client.spec(self._name, self._uid)
        hosts = spec.hosts if spec else None
        what = self._what
        tail = None if self._caught_up else what.tail
        self._run = run
        self._told_unproved = 0
        self.unfinished.clear()
        self._logs = self._client.logs(
            self._name,
            run,
            hosts=hosts,
            worker=what.worker,
            since=what.since,
            tail=tail,
            source=what.source,
            public_key=self._key_of(run),
        )
        yield StartedAttempt(run=run, hosts=hosts, slices=slices_of(spec))

    def _all_of(self, run: Run) -> Iterator[Event]:
        yield from self._begin(run)
        assert self._logs is not None  # just begun
        for pieces in self._logs.drain():
            yield Logged(pieces=pieces)
        yield from self._unproved(last=True)

    def _drain(self) -> Iterator[Event]:
        if self._logs is not None:
            for pieces in self._logs.drain():
                yield Logged(pieces=pieces)
            yield from self._unproved(last=True)
        for run in self._runs():
            yield from self._all_of(run)
