"""The backlog: specs over the limits of the queue stay in the bucket until they fit, oldest first."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.model.cancel_request import CancelRequest
from bastion.core.model.job_record import JobRecord
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.lifecycle import Status
from bastion.core.model.queue_limits import Owner, QueueCounts
from bastion.core.status.document import BacklogEntry
from bastion.daemon.observe.object_cache import ObjectCache
from quota import Policy


@dataclass(frozen=True, slots=True)
class _Kept:
    generation: int
    written_at: float
    owner: tuple[str, str]  # project, user
    group: str


class Backlog(Collection[str]):
    """The names that are not accepted yet.

    Each tick calls `begin`, `sort_out` after each reading of specs, then `published`. A spec with a cancel request is
    accepted regardless of the limits, because it only ends.
    """

    def __init__(
        self,
        specs: ObjectCache[JobSpec],
        states: ObjectCache[JobRecord | Status],
        user_requests: ObjectCache[CancelRequest],
    ) -> None:
        self._specs = specs
        self._states = states
        self._user_requests = user_requests
        self._kept: dict[str, _Kept] = {}
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._groups: Counter[tuple[str, str]] = Counter()  # by user and group
        self._policy: Policy | None = None
        self._counts: QueueCounts | None = None

    def __contains__(self, name: object) -> bool:
        return name in self._kept

    def __iter__(self) -> Iterator[str]:
        return iter(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def holds(self, name: str, meta: ObjectMeta) -> bool:
        """Whether this object is in the backlog and need not be read."""
        kept = self._kept.get(name)
        return kept is not None and kept.generation == meta.generation

    def begin(self, policy: Policy | None) -> None:
        """Release specs that fit now, to be read again. Call it after reading the states."""
        self._policy, self._counts = policy, None
        if not self._kept:
            return
        specs, states, user_requests = self._specs.listed, self._states.listed, self._user_requests.listed
        for name in (self._kept.keys() - specs.keys()) | (self._kept.keys() & states.keys()):
            self._release(name)
        for name in self._kept.keys() & user_requests.keys():
            if self._ends(name):
                self._release(name)
        room = self._counted()
        free = {who: room.limit(room.owner(*who)).free for who in self._numbers}
        waiting: dict[Owner, list[str]] = {}
        if any(free.values()):
            for name, kept in self._kept.items():
                if free[kept.owner]:
                    waiting.setdefault(room.owner(*kept.owner), []).append(name)
        for owner, names in waiting.items():
            for name in heapq.nsmallest(room.limit(owner).free, names, key=self._age):
                self._release(name)

    def sort_out(self, names: Iterable[str]) -> None:
        """Add new specs without a state that are over the limits. The oldest are accepted first."""
        specs, states = self._specs, self._states.listed
        new = [
            name
            for name in names
            if name in specs.values and name in specs.listed and name not in states and not self._ends(name)
        ]
        if not new:
            return
        room = self._counted()
        for name in sorted(new, key=lambda name: (specs.listed[name].updated, name)):
            spec, meta = specs.values[name], specs.listed[name]
            owner = room.owner(spec.project_id, spec.user_id)
            if room.limit(owner).free:
                room.take(owner)
                continue
            self._release(name)
            self._kept[name] = _Kept(meta.generation, meta.updated, (spec.project_id, spec.user_id), spec.limits.group)
            self._numbers[self._kept[name].owner] += 1
            if spec.limits.group:
                self._groups[spec.user_id, spec.limits.group] += 1
            specs.forget(name)

    @property
    def groups(self) -> Mapping[str, Mapping[str, int]]:
        """The number of jobs by user and group, of those in one."""
        found: dict[str, dict[str, int]] = {}
        for (user, group), jobs in self._groups.items():
            if jobs:
                found.setdefault(user, {})[group] = jobs
        return found

    def published(self) -> list[BacklogEntry]:
        """By owner, largest first: the number of jobs not accepted, and the limit."""
        if not self._kept:
            return []
        room = self._counted()
        jobs: Counter[Owner] = Counter()
        for who, number in self._numbers.items():
            jobs[room.owner(*who)] += number
        shown = sorted(jobs, key=lambda owner: (-jobs[owner], owner.project_id, owner.user_id))
        found = []
        for owner in shown[: limits.BACKLOG_OWNERS_SHOWN]:
            limit = room.limit(owner)
            found.append(
                BacklogEntry(
                    project_id=owner.project_id or None,
                    user_id=owner.user_id or None,
                    jobs=jobs[owner],
                    queued=limit.queued,
                    limit=limit.limit,
                    rule=limit.rule or None,
                )
            )
        return found

    def _ends(self, name: str) -> bool:
        spec, meta, user_request = (
            self._specs.listed.get(name),
            self._user_requests.listed.get(name),
            self._user_requests.values.get(name),
        )
        if spec is None or meta is None or user_request is None:
            return False
        # A request with a uid is for an accepted job.
        return user_request.cancel and not user_request.uid and meta.updated >= spec.updated

    def _release(self, name: str) -> None:
        kept = self._kept.pop(name, None)
        if kept is not None:
            self._numbers[kept.owner] -= 1
            if not self._numbers[kept.owner]:
                del self._numbers[kept.owner]
            if kept.group:
                self._groups[kept.owner[1], kept.group] -= 1

    def _age(self, name: str) -> tuple[float, str]:
        return self._kept[name].written_at, name

    def _counted(self) -> QueueCounts:
        if self._counts is None:
            records = (value for value in self._states.values.values() if isinstance(value, JobRecord))
            self._counts = QueueCounts(self._policy, records)
        return self._counts
