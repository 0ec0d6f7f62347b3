"""What jobs await: which of the jobs that their `limits.after` names are still to end, and which will never do.

A dependency is met when the awaited job is CLEANING or COMPLETED with the outcome that was asked for. What is met is
stored in the record (`after_met`), because results may be deleted later.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from bastion.core.bucket import keys
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.bucket.protocol import HostPhase
from bastion.core.instants import duration
from bastion.core.model.awaiting import Awaiting, EndedJob
from bastion.core.model.job_limits import NO_LIMITS, Dependency, On
from bastion.core.model.job_record import JobRecord
from bastion.core.model.lifecycle import Status
from bastion.core.model.world import JobView

_ENDED = (HostPhase.ENDED, HostPhase.EXITED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolved:
    """What the waiting jobs await.

    Attributes:
        awaiting: By name, of each waiting job that had not met all dependencies before.
        not_live: By uid, the awaited jobs that are no live jobs: their results decide.
    """

    awaiting: Mapping[str, Awaiting] = field(default_factory=dict)
    not_live: Mapping[str, Dependency] = field(default_factory=dict)


def resolve(
    jobs: Mapping[str, JobView], specs: Mapping[str, ObjectMeta], ended: Mapping[str, EndedJob], *, root: str
) -> Resolved:
    """Find out what the waiting jobs await.

    Args:
        specs: The listed spec objects by name, also those that are not read yet.
        ended: By uid, what is known of jobs that are not live.
    """
    waiting = {
        name: record
        for name, view in jobs.items()  # maybe 100,000, most of them without limits
        if view.record is not None
        and view.record.job.limits is not NO_LIMITS
        and (record := _waiting(view)) is not None
    }
    if not waiting:  # nearly always
        return Resolved()
    resolver = _Resolver(jobs, specs, ended, root)
    awaiting = {name: resolver.awaiting(record) for name, record in waiting.items()}
    for names in _cycles(resolver.live):
        for name in names:
            chain = " after ".join((*names[names.index(name) :], *names[: names.index(name)], name))
            awaiting[name] = Awaiting(names=awaiting[name].names, refusal=f"it would start after itself: {chain}")
    return Resolved(awaiting=awaiting, not_live=resolver.not_live)


def _waiting(view: JobView) -> JobRecord | None:
    record = view.record
    if record is None or not record.job.limits.after or record.status is not Status.PENDING or view.ghost:
        return None
    met = record.after_met or ()
    return None if all(each.uid in met for each in record.job.limits.after) else record


class _Resolver:
    def __init__(
        self,
        jobs: Mapping[str, JobView],
        specs: Mapping[str, ObjectMeta],
        ended: Mapping[str, EndedJob],
        root: str,
    ) -> None:
        self._jobs = jobs
        self._specs = specs
        self._ended = ended
        self._root = root
        # By uid, as many jobs may await one. None: it is live.
        self._known: dict[str, EndedJob | None] = {}
        self.not_live: dict[str, Dependency] = {}
        # By waiting job: those that it awaits among the live ones.
        self.live: dict[str, list[str]] = {}

    def awaiting(self, record: JobRecord) -> Awaiting:
        before = record.after_met or ()
        met, names, refusal, ending = [], [], "", False
        for each in record.job.limits.after:
            if each.uid in before:
                met.append(each.uid)
                continue
            ended = self._end_of(each)
            if ended is not None and ended.fulfills(each.on):
                met.append(each.uid)
                continue
            names.append(each.job)
            if each.uid not in self.not_live:
                self.live.setdefault(record.name, []).append(each.job)
            if ended is not None and not refusal:
                refusal = _refusal(each, ended)
            ending = ending or (ended is None and _ends(self._jobs.get(each.job)))
        return Awaiting(names=tuple(dict.fromkeys(names)), met=tuple(met), refusal=refusal, ending=ending)

    def _end_of(self, dependency: Dependency) -> EndedJob | None:
        """How the job ended; None if it is live, or if that is not known yet."""
        uid = dependency.uid
        if uid not in self._known:
            live, ended = self._live(dependency)
            if not live:
                self.not_live[uid] = dependency
                ended = self._ended.get(uid)
            self._known[uid] = ended
        return self._known[uid]

    def _live(self, dependency: Dependency) -> tuple[bool, EndedJob | None]:
        """Whether the job is among the live ones or a spec that may become one; and how it ended, if it has."""
        view, meta = self._jobs.get(dependency.job), self._specs.get(dependency.job)
        record = view.record if view is not None and not view.ghost else None
        if record is not None and record.uid == dependency.uid:
            over = record.status in (Status.CLEANING, Status.COMPLETED) and record.outcome is not None
            if not over or record.outcome is None:
                return True, None
            return True, EndedJob(outcome=record.outcome.outcome, exit_code=record.outcome.exit_code)
        if meta is not None and self._uid(dependency.job, meta) == dependency.uid:
            refused = view is not None and view.record is None and bool(view.spec_problem)
            return True, EndedJob(outcome="invalid") if refused else None
        # Without a readable state, nobody knows whose it is.
        return view is not None and view.record is None and bool(view.frozen), None

    def _uid(self, name: str, meta: ObjectMeta) -> str:
        return keys.job_uid(self._root, name, meta.generation, owner=keys.inbox_user(meta.key))


def _ends(view: JobView | None) -> bool:
    """Whether the attempt of a live job ends now: its hosts say so, or it is being stopped."""
    if view is None or view.record is None or view.record.attempt is None:
        return False
    if view.record.attempt.ending is not None:
        return True
    reports = view.attempt.reports.values()
    ended = [each for each in reports if each.phase in _ENDED]
    failed = any(each.phase is HostPhase.FAILED for each in reports) or any(each.exit_code for each in ended)
    return failed or len(ended) == view.record.job.hosts


def _refusal(dependency: Dependency, ended: EndedJob) -> str:
    job = dependency.job
    match ended.outcome:
        case "":
            return f"it was to start after {job} ({dependency.uid}), which is not known to this bastion"
        case "invalid":
            return f"it was to start after {job}, whose spec is refused"
        case "failed":
            how = f"failed with exit code {ended.exit_code}"
        case "succeeded" | "cancelled" | "refused":
            how = ended.outcome if ended.outcome == "succeeded" else f"was {ended.outcome}"
        case _:
            how = "ended without a known outcome"
    return f"it was to start after the success of {job}, which {how}"


def _cycles(after: Mapping[str, Collection[str]]) -> Iterator[list[str]]:
    """Yield the cycles of jobs that await one another, each as names that await the next one; no job is in two."""
    seen: set[str] = set()
    for first in after:
        path: dict[str, Iterator[str]] = {}
        name: str | None = first
        while name is not None:
            if name in path:
                names = list(path)
                yield names[names.index(name) :]
                break
            if name not in seen and name in after:
                seen.add(name)
                path[name] = iter(after[name])
            name = None
            while path and name is None:
                last = next(reversed(path))
                name = next(path[last], None)
                if name is None:
                    del path[last]


def too_late(record: JobRecord, awaiting: Awaiting, now: float) -> str:
    """Why the job waits no longer; empty if it goes on."""
    most = record.job.limits.after_at_most_seconds
    if most is None or not awaiting.names or awaiting.ending or now - record.queued_at < most:
        return ""
    names = ", ".join(awaiting.names[:3]) + (f" and {len(awaiting.names) - 3} more" if len(awaiting.names) > 3 else "")
    return f"waited for {names} for {duration(most)}, the limit set by --after_at_most"


def history_text(record: JobRecord, now: float) -> str:
    """The line for a job that awaits nobody any more."""
    after = record.job.limits.after
    names = ", ".join(f"{each.job} ({'success' if each.on is On.SUCCEEDED else 'end'})" for each in after)
    return f"waited for {names} for {duration(now - record.queued_at)}"


def refused(view: JobView, awaiting: Awaiting | None, now: float) -> str:
    """Why a waiting job never starts; empty if it may."""
    if awaiting is None or view.record is None:
        return ""
    return awaiting.refusal or too_late(view.record, awaiting, now)


def has_news(view: JobView, awaiting: Awaiting | None, now: float) -> bool:
    """Whether a waiting job is refused, or has met another dependency."""
    if awaiting is None or view.record is None:
        return False
    return awaiting.met != (view.record.after_met or ()) or bool(refused(view, awaiting, now))
