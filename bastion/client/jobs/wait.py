"""Wait for the end of jobs, with one poll loop for all of them.

A poll asks whether the status document has changed, and reads it only then. Only jobs that it no longer has are looked
at one by one. So waiting for 1,000 jobs costs the same as for one, and a few reads for each job that ends.

Invariant: a job is its name and its uid; the end of a namesake is never taken for its end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from bastion.client.concurrently import concurrently
from bastion.client.daemon_health import DaemonHealth
from bastion.client.jobs.client import Client
from bastion.client.jobs.follow_events import Ended, Noted
from bastion.client.jobs.job_info import JobInfo, Stage
from bastion.client.jobs.results import Result
from bastion.client.request_meter import RequestMeter
from bastion.core.errors import EXIT_CANCELLED, EXIT_REFUSED, Refused, StoreError, StoreUnavailable

_LEASE_SECONDS = 20.0
# A spec that its owner deletes before it is accepted changes no status.
_SPECS_SECONDS = 10.0
# Requests of one poll that the pace counts; a batch of ends must not stop the polling for minutes.
_REQUESTS_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Awaited:
    """A job that is waited for.

    Attributes:
        generation: Of its spec, if the daemon has not accepted it: until then its uid is our guess.
        ended: Known from the start.
    """

    name: str
    uid: str
    generation: int = 0
    ended: Ended | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    """The job of that name has ended."""

    name: str
    ended: Ended


def ended_with(result: Result) -> Ended:
    return Ended(result=result, exit_code=result.exit_code, message=result.message)


def find(client: Client, names: Sequence[str]) -> list[Awaited]:
    """The jobs of these names, in order. Jobs in the status document cost nothing more.

    Raises:
        Refused: there is no job of one of the names; the message says which.
    """
    entries = client.entries()
    missing = [name for name in names if name not in entries]
    answers = concurrently([partial(_look, client, name) for name in missing], connections=client.pace.connections)
    looked: dict[str, JobInfo] = {}
    unknown = []
    for name, answer in zip(missing, answers, strict=True):
        if isinstance(answer, StoreError):
            raise answer
        if answer is None:
            unknown.append(name)
        elif isinstance(answer, Refused):
            raise answer
        else:
            looked[name] = answer
    if unknown:
        error = client.unknown(unknown[0])
        raise Refused(f"{error} ({len(unknown)} of the names are unknown)") if len(unknown) > 1 else error
    return [_awaited(looked[name]) if name in looked else Awaited(name=name, uid=entries[name].uid) for name in names]


def _look(client: Client, name: str) -> JobInfo | Refused | None:
    try:
        return client.look(name)
    except Refused as error:
        return error


def _awaited(info: JobInfo) -> Awaited:
    generation = info.generation if info.stage is Stage.SUBMITTED else 0
    return Awaited(name=info.name, uid=info.uid, generation=generation, ended=_end(info))


def _end(info: JobInfo) -> Ended | None:
    if info.stage is Stage.INVALID:
        return Ended(result=None, exit_code=EXIT_REFUSED, message=f"the spec is refused: {info.problem}")
    return ended_with(info.result) if info.result is not None else None


def wait(client: Client, jobs: Sequence[Awaited], *, until: float | None = None) -> Iterator[JobEnded | Noted]:
    """Yield each job's end as it comes, and notes; return after the last one, or when the time is up.

    Args:
        until: Monotonic seconds; None: no limit.

    Raises:
        StoreError: other than `StoreUnavailable`, which is reported once and tried again.
    """
    yield from (JobEnded(name=job.name, ended=job.ended) for job in jobs if job.ended is not None)
    meter = RequestMeter(client.store)
    watching = Client(meter, client.root, client.clock)
    watching.learn_from(client)
    names = {job.name for job in jobs if job.ended is None}
    watching.want_only(lambda name, *_: name in names)
    waiting = _Waiting(watching, [job for job in jobs if job.ended is None])
    silent, clock = False, client.clock
    while waiting.left:
        before = meter.requests
        try:
            yield from waiting.poll()
            if silent:
                silent = False
                yield Noted(text="the bucket answers again")
        except StoreUnavailable as error:
            if not silent:
                silent = True
                yield Noted(text=f"the bucket does not answer; retrying: {error}")
        pause = client.pace.pause(min(meter.requests - before, _REQUESTS_MAX))
        if until is not None:
            pause = min(pause, until - clock.monotonic())
        if not waiting.left or pause <= 0:
            return
        clock.sleep(pause)


class _Waiting:
    """The jobs that have not ended yet."""

    def __init__(self, client: Client, jobs: Sequence[Awaited]) -> None:
        self.left = {job.name: job for job in jobs}
        self._client = client
        self._seen = -1
        self._gone: dict[str, int] = {}
        self._health = DaemonHealth(client.store, client.clock, local=client.root.local)
        self._problem = ""
        self._lease_at = self._specs_at = client.clock.monotonic()
        self._unaccepted = False
        # Jobs that the document has had, or that are no specs any more: their end is to be looked for.
        self._absent: set[str] = set()

    def poll(self) -> Iterator[JobEnded | Noted]:
        now = self._client.clock.monotonic()
        if now - self._lease_at >= _LEASE_SECONDS:
            self._lease_at = now
            yield from self._daemon()
        entries = self._client.entries()
        changed = self._client.status_generation != self._seen or not self._seen
        if changed or (self._unaccepted and now - self._specs_at >= _SPECS_SECONDS):
            self._seen, self._specs_at = self._client.status_generation, now
            self._absent = {
                name for name, job in self.left.items() if name not in entries or entries[name].uid != job.uid
            }
            self._unaccepted = bool(self._absent)
            if self._absent:
                # What is only submitted is in no status: one listing tells, however many there are.
                submitted = set(self._client.unread(again=False))
                status = self._client.status(again=False)
                refused = {spec.name for spec in status.invalid} if status is not None else set()
                self._absent -= submitted - refused
        yield from self._look_at(sorted(self._absent))

    def _look_at(self, names: Sequence[str]) -> Iterator[JobEnded]:
        calls: list[Callable[[], Any]] = [partial(self._ended, self.left[name]) for name in names]
        answers = concurrently(calls, connections=self._client.pace.connections)
        failed: StoreError | None = None
        for name, answer in zip(names, answers, strict=True):
            if isinstance(answer, StoreError):
                failed = failed or answer
            elif answer is not None:
                del self.left[name]
                self._absent.discard(name)
                yield JobEnded(name=name, ended=answer)
        if failed is not None:
            raise failed

    def _ended(self, job: Awaited) -> Ended | None:
        result = self._client.result(job.name, job.uid) if job.uid else None
        if result is not None:
            return ended_with(result)
        info = self._client.look(job.name)
        if info is not None and info.record is not None and job.generation == info.record.generation:
            job = replace(job, uid=info.uid)
            self.left[job.name] = job
        if info is not None and info.uid == job.uid:
            self._gone.pop(job.name, None)
            return _end(info)
        # Neither spec, state nor result of its own, twice in a row: one look may fall between two writes.
        self._gone[job.name] = self._gone.get(job.name, 0) + 1
        if self._gone[job.name] < 2:
            return None
        text = "its spec was deleted or replaced, and no result of it is left"
        return Ended(result=None, exit_code=EXIT_CANCELLED, message=text)

    def _daemon(self) -> Iterator[Noted]:
        problem = self._health.look()
        if bool(problem) != bool(self._problem):
            yield Noted(
                text=f"{problem}; running jobs continue, and no job ends until a daemon runs again"
                if problem
                else "a daemon is running again"
            )
        self._problem = problem
