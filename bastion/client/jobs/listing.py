"""The jobs of a bastion as rows: live ones in queue order, then those that are not accepted, refused and completed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from bastion.client.concurrently import concurrently
from bastion.client.jobs.overview import Overview
from bastion.client.jobs.results import Result
from bastion.client.jobs.selection import INVALID, SUBMITTED, Selection
from bastion.core import limits
from bastion.core.errors import NotFound, ObjectTooLarge, Refused, StoreError
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.job_spec import parse as parse_spec
from bastion.core.status.document import InvalidEntry, JobEntry, Phase

# There may be many specs beyond a queue limit, and each page of their names costs a request.
UNREAD_MAX = 1000
# Of a selection by what only the specs say, so many of them are read.
_SPECS_MAX = 20
# Live jobs first, those that hold slices before those that wait.
_ORDER = {Phase.STOPPING: 0, Phase.CLEANING: 0, Phase.RUNNING: 0, Phase.PROVISIONING: 1, Phase.QUEUED: 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRow:
    """One job, in seconds since the epoch and units.

    Attributes:
        status: One of `selection.STATUSES`, or a phase or an outcome of a newer version.
        user_id: Empty if it is not known.
        position: In the queue, from 1.
        started_at: The start of the present attempt, or of the first one of a completed job.
        running_since: When all hosts ran the command.
        ended_at: Of a completed job's last attempt.
        entry, result, problem: What there is of a live, a completed and a refused job.
    """

    name: str
    status: str
    uid: str = ""
    project_id: str = ""
    user_id: str = ""
    priority: int | None = None
    position: int | None = None
    instance_type: str | None = None
    num_replicas: int | None = None
    resources: Mapping[str, int] = field(default_factory=dict)
    queued_at: float | None = None
    started_at: float | None = None
    running_since: float | None = None
    ended_at: float | None = None
    entry: JobEntry | None = None
    result: Result | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What was found.

    Attributes:
        unread: Names of specs that the daemon has not read, or a queue limit keeps out (then at most `UNREAD_MAX`).
        unread_left_out: There may be more of them, which were not looked for.
        searched: Number of completed jobs that were read.
        completed: Number of completed jobs that there are.
    """

    rows: Sequence[JobRow]
    unread: Sequence[str] = ()
    unread_left_out: bool = False
    searched: int = 0
    completed: int = 0

    @property
    def totals(self) -> Mapping[str, int]:
        """Number of jobs by status, in the order of the rows."""
        return Counter(row.status for row in self.rows)


def listing(
    client: Overview,
    selection: Selection,
    *,
    completed: int = 0,
    since: float | None = None,
    specs: int | None = _SPECS_MAX,
) -> Listing:
    """List the jobs.

    Args:
        completed: Search this many of the newest completed jobs.
        since: Only completed jobs that ended since, in seconds since the epoch.
        specs: Read at most this many specs that are not accepted yet, each for a request; None: all of them.

    Raises:
        StoreError: the bucket does not answer.
    """
    results: list[Result] = []
    number = 0
    if not selection.wants_ended:
        status = client.status()
    if completed:
        results, number = client.completed(limit=completed, since=since)
    rows: list[JobRow] = []
    unread: list[str] = []
    left_out = False
    if not selection.wants_ended:
        every = selection.is_all
        live = [_live(entry) for entry in client.entries(again=False).values() if every or selection.entry(entry)]
        live.sort(key=_rank)
        unread, submitted, left_out = _submitted(client, selection, specs)
        refused = [
            JobRow(name=spec.name, status=INVALID, user_id=spec.user or "", problem=spec.problem)
            for spec in (status.invalid if status is not None else ())
            if spec.name not in client.entries(again=False) and _fits(spec, selection)
        ]
        rows = [*live, *submitted, *refused]
    rows += [_completed(result) for result in results if selection.result(result)]
    return Listing(rows=rows, unread=unread, unread_left_out=left_out, searched=len(results), completed=number)


def _live(entry: JobEntry) -> JobRow:
    return JobRow(
        name=entry.name,
        status=entry.phase,
        uid=entry.uid,
        project_id=entry.project_id,
        user_id=entry.user_id,
        priority=entry.priority,
        position=entry.position,
        instance_type=entry.instance_type,
        num_replicas=entry.num_replicas,
        resources=entry.resources,
        queued_at=entry.queued_at,
        started_at=entry.started_at,
        running_since=entry.running_since,
        entry=entry,
    )


def _rank(row: JobRow) -> tuple[int, float, float, str]:
    waits = float("inf") if row.position is None else row.position
    return _ORDER.get(row.status, 1), waits, row.queued_at or 0.0, row.name  # type: ignore[call-overload]


def _fits(spec: InvalidEntry, selection: Selection) -> bool:
    """Whether a refused spec belongs to it: only its name, and in an inbox its user, are known."""
    if selection.projects or selection.types or selection.labels or selection.group is not None:
        return False
    user_fits = not selection.users or spec.user in selection.users
    return user_fits and selection.name(spec.name) and selection.status(INVALID)


def _submitted(client: Overview, selection: Selection, most: int | None) -> tuple[list[str], list[JobRow], bool]:
    """The names of specs that are not accepted, the rows of those selected, and whether some were not looked for."""
    if not selection.status(SUBMITTED):
        return [], [], False
    status = client.status(again=False)
    if selection.is_all:
        unread = client.unread(again=False, most=UNREAD_MAX if client.backlog(again=False) else None)
        return unread, [JobRow(name=name, status=SUBMITTED) for name in unread], False
    if most is not None and status is not None and (len(status.names) > UNREAD_MAX or status.backlog):
        return [], [], True  # their names alone would be pages
    found = client.unread_specs(again=False, most=None if most is None else UNREAD_MAX)
    specs = [each for each in found if selection.name(each[0])]
    if not selection.reads_specs:
        return [name for name, _ in specs], [JobRow(name=name, status=SUBMITTED) for name, _ in specs], False
    read = [spec for spec in _read(client, specs[:most]) if selection.spec(spec)]
    return [spec.name for spec in read], [_of_spec(spec) for spec in read], most is not None and len(specs) > most


def _read(client: Overview, specs: Sequence[tuple[str, str]]) -> list[JobSpec]:
    get = client.store.get
    answers = concurrently(
        [partial(get, key, max_bytes=limits.SPEC_MAX_BYTES) for _, key in specs], connections=client.pace.connections
    )
    found = []
    for (name, _), answer in zip(specs, answers, strict=True):
        if isinstance(answer, (NotFound, ObjectTooLarge)):
            continue
        if isinstance(answer, StoreError):
            raise answer
        try:
            found.append(parse_spec(answer.data, name=name, bastion=client.bastion))
        except Refused:
            continue  # the daemon will refuse it, too
    return found


def _of_spec(spec: JobSpec) -> JobRow:
    runner = spec.runner
    return JobRow(
        name=spec.name,
        status=SUBMITTED,
        project_id=spec.project_id,
        user_id=spec.user_id,
        priority=spec.priority,
        instance_type=spec.instance_type or None,
        num_replicas=runner.num_replicas if runner is not None else None,
    )


def _completed(result: Result) -> JobRow:
    first = result.attempts[0] if result.attempts else None
    last = result.attempts[-1] if result.attempts else None
    return JobRow(
        name=result.name,
        status=result.outcome,
        uid=result.uid,
        project_id=result.project_id,
        user_id=result.user_id,
        priority=result.priority,
        instance_type=result.instance_type,
        num_replicas=result.num_replicas,
        resources=result.resources,
        queued_at=result.queued_at,
        started_at=first.started_at if first is not None else None,
        running_since=last.running_since if last is not None else None,
        ended_at=last.ended_at if last is not None else None,
        result=result,
    )
