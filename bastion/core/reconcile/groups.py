"""The jobs of a group, for a cleanup command that waits until no other one is left. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from bastion.core.model.job_limits import NO_LIMITS
from bastion.core.model.job_record import JobRecord
from bastion.core.model.lifecycle import Status
from bastion.core.model.world import JobView, World

_Group = tuple[str, str]  # its user and its name: nobody else's jobs are in it


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a group.

    Attributes:
        jobs: Known jobs, accepted or not.
        unread: Jobs that may belong to it, because nobody could read them yet.
    """

    jobs: int
    unread: int

    def __bool__(self) -> bool:
        return bool(self.jobs or self.unread)


class Groups:
    """The groups of one tick, counted when someone asks."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._counted: dict[_Group, int] | None = None
        self._unread = 0

    def left(self, record: JobRecord) -> Left:
        """What is left of the group of a job that cleans up after it. Those that do the same do not count."""
        if self._counted is None:
            self._count()
        assert self._counted is not None  # just counted
        spec = record.started_job
        return Left(self._counted.get((spec.user_id, spec.limits.group), 0), self._unread)

    def _count(self) -> None:
        backlog = self._world.backlog_groups.items()
        counted = {(user, group): jobs for user, groups in backlog for group, jobs in groups.items()}
        for view in self._world.jobs.values():  # maybe 100,000, most of them in no group
            record = view.record
            if record is not None and view.spec is None and record.job.limits is NO_LIMITS:
                continue
            if record is None:
                self._unread += _is_unread(view)
            for group in _groups(view):
                counted[group] = counted.get(group, 0) + 1
        self._counted = counted


def _is_unread(view: JobView) -> bool:
    """Whether there is a job of which nothing is known; a refused spec is none."""
    return view.spec is None and not view.spec_problem and (view.spec_meta is not None or view.unread)


def _groups(view: JobView) -> set[_Group]:
    """The groups of a name's jobs: of the present one, and of the next one, if its spec is there."""
    record, found = view.record, set()
    awaited = None
    if record is not None and not view.ghost:
        waits_too = record.started_job.limits.cleanup_after_group_seconds is not None
        if record.status is Status.CLEANING and waits_too:
            awaited = (record.started_job.user_id, record.started_job.limits.group)
        else:
            found.add((record.job.user_id, record.job.limits.group))
    # The next job of the name starts after the end of the present one, which must not wait for it in turn.
    if view.spec is not None and (view.spec.user_id, view.spec.limits.group) != awaited:
        found.add((view.spec.user_id, view.spec.limits.group))
    return {group for group in found if group[1]}
