"""Mode `inbox`: which user's object is the spec of a name, and whose request about a job counts.

A name belongs to whom was accepted first, until the job's state is gone. Then it belongs to the oldest object that was
not refused.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field

from bastion.core.bucket import keys
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.model.authority import may_end
from bastion.core.model.job_record import JobRecord
from bastion.core.model.world import OutsideObject
from quota import Policy

ByUser = Mapping[str, ObjectMeta]


@dataclass(slots=True)
class Claims:
    """Whose objects count.

    Attributes:
        specs, requests: By job, the one that counts.
        refused_requests: By job that is live, those of users who may not make them.
        outside: Specs that no job comes from.
    """

    specs: dict[str, ObjectMeta] = field(default_factory=dict)
    requests: dict[str, ObjectMeta] = field(default_factory=dict)
    refused_requests: dict[str, tuple[ObjectMeta, ...]] = field(default_factory=dict)
    outside: list[OutsideObject] = field(default_factory=list)


def resolve(
    specs: Mapping[str, ByUser],
    requests: Mapping[str, ByUser],
    records: Mapping[str, JobRecord],
    *,
    frozen: Container[str],
    waiting: Container[str],
    refused: Mapping[tuple[str, str], int],
    problem: Callable[[ObjectMeta], str],
    policy: Policy | None,
) -> Claims:
    """Choose among the objects of several users.

    Args:
        records: Of live jobs.
        frozen: Jobs whose states cannot be read: nobody's object is refused.
        waiting: Names of specs that a limit of the queue keeps out.
        refused: By name and user, the generation that was refused before.
        problem: Says why an object may not be that user's; empty if it is.
        policy: Names who else may cancel a job.
    """
    found = Claims()
    for name, record in records.items():
        meta = specs[name].get(record.owner) if name in specs else None
        if meta is not None:
            found.specs[name] = meta
        elif record.pin is None:  # accepted before the bastion had inboxes; only the daemon writes there now
            updated, generation = record.queued_at, record.generation
            found.specs[name] = ObjectMeta(key=keys.active(name), size=0, generation=generation, updated=updated)
    for name, by_user in specs.items():
        known = records.get(name)
        if known is None:
            meta = _first(name, by_user, {} if name in frozen else refused, problem)
            if meta is not None:
                found.specs[name] = meta
        elif len(by_user) == 1 and known.owner in by_user:
            continue  # nearly all
        if name not in frozen:
            chosen = found.specs.get(name)
            taken = _taken(name, known, chosen if name in waiting else None)
            found.outside += _others(name, by_user, taken, chosen, refused, problem)
    for name, by_user in requests.items():
        _sort_requests(found, name, by_user, records.get(name), problem, policy)
    return found


def _first(
    name: str, by_user: ByUser, refused: Mapping[tuple[str, str], int], problem: Callable[[ObjectMeta], str]
) -> ObjectMeta | None:
    """The oldest object that may become the job."""
    candidates = [
        (meta.updated, user, meta)
        for user, meta in by_user.items()
        if refused.get((name, user)) != meta.generation and not problem(meta)
    ]
    return min(candidates)[2] if candidates else None


def _taken(name: str, record: JobRecord | None, waiting: ObjectMeta | None) -> str:
    """Why nobody else gets the name now; empty while it is open whose it becomes."""
    if record is None and waiting is None:
        return ""
    owner = record.owner if record is not None else keys.inbox_user(waiting.key if waiting is not None else "")
    return (
        f"the name {name} belongs to a job of {owner}; choose another name, or submit it again when that job has ended"
    )


def _others(
    name: str,
    by_user: ByUser,
    taken: str,
    chosen: ObjectMeta | None,
    refused: Mapping[tuple[str, str], int],
    problem: Callable[[ObjectMeta], str],
) -> list[OutsideObject]:
    found = []
    for user, meta in by_user.items():
        if chosen is not None and meta.key == chosen.key:
            continue
        known = refused.get((name, user)) == meta.generation  # maybe 100,000 of them, each with its explanation
        why = "it was refused before" if known else problem(meta) or taken
        found.append(OutsideObject(name=name, owner=user, generation=meta.generation, problem=why))
    return found


def _sort_requests(
    found: Claims,
    name: str,
    by_user: ByUser,
    record: JobRecord | None,
    problem: Callable[[ObjectMeta], str],
    policy: Policy | None,
) -> None:
    if record is None:
        owner = keys.inbox_user(found.specs[name].key) if name in found.specs else ""
        allowed = [meta for user, meta in by_user.items() if user == owner and not problem(meta)]
    else:
        allowed = [
            meta
            for user, meta in by_user.items()
            if (user == record.owner or may_end(user, record.job, policy)) and not problem(meta)
        ]
        refused = tuple(meta for meta in by_user.values() if meta not in allowed)
        if refused:
            found.refused_requests[name] = refused
    if allowed:
        found.requests[name] = min(allowed, key=lambda meta: (meta.updated, meta.key))
