"""The jobs of a group: those whose specs name it in `limits.group`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from bastion.client.concurrently import concurrently
from bastion.client.jobs.client import Client
from bastion.client.jobs.job_info import Cancelled, Stage
from bastion.client.jobs.results import Result
from bastion.core import limits
from bastion.core.errors import NotFound, ObjectTooLarge, Refused, StoreError
from bastion.core.model import job_spec
from bastion.core.model.lifecycle import Status
from bastion.core.status.document import JobEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A job of a group.

    Attributes:
        uid: Empty if it is not known.
        queued_at: When it was accepted; None if it is not, or if nobody knows.
        entry, result: Of a live, and of a completed job.
    """

    name: str
    uid: str
    user_id: str
    stage: Stage
    queued_at: float | None = None
    entry: JobEntry | None = None
    result: Result | None = None

    @property
    def never_ran(self) -> bool:
        """Whether it still waits for its first attempt, so that it has no output."""
        if self.entry is None:
            return self.stage is Stage.SUBMITTED
        return self.entry.status is Status.PENDING and not self.entry.attempts_before


def members(
    client: Client, group: str, user_id: str | None = None, *, completed: int = 0, unread: int | None = None
) -> list[Member]:
    """The group's jobs, the oldest first, those that are not accepted yet last.

    Args:
        user_id: Only this user's; None: all users'.
        completed: Search this many of the newest results, too.
        unread: Read at most this many of the specs that are not accepted yet, each for a request; None: all of them.
    """
    found = []
    if completed:
        results, _ = client.completed(limit=completed)
        for result in results:
            user = result.user_id
            if result.group == group and user_id in (None, user):
                found.append(
                    Member(
                        name=result.name,
                        uid=result.uid,
                        user_id=user,
                        stage=Stage.COMPLETED,
                        queued_at=result.queued_at,
                        result=result,
                    )
                )
    ended = {member.uid for member in found}
    for name, entry in client.entries().items():
        if entry.group == group and user_id in (None, entry.user_id) and entry.uid not in ended:
            member = Member(
                name=name,
                uid=entry.uid,
                user_id=entry.user_id,
                stage=Stage.KNOWN,
                queued_at=entry.queued_at,
                entry=entry,
            )
            found.append(member)
    found.sort(key=lambda member: (member.queued_at or 0.0, member.name))
    return found + _not_accepted(client, group, user_id, unread)


def _not_accepted(client: Client, group: str, user_id: str | None, most: int | None) -> list[Member]:
    specs = client.unread_specs(again=False, most=most)
    answers = concurrently([partial(_spec, client, *each) for each in specs], connections=client.pace.connections)
    found = []
    for answer in answers:
        if isinstance(answer, StoreError):
            raise answer
        if answer is not None and answer.limits.group == group and user_id in (None, answer.user_id):
            found.append(Member(name=answer.name, uid="", user_id=answer.user_id, stage=Stage.SUBMITTED))
    return found


def _spec(client: Client, name: str, key: str) -> job_spec.JobSpec | None:
    try:
        data = client.store.get(key, max_bytes=limits.SPEC_MAX_BYTES).data
        return job_spec.parse(data, name=name, bastion=client.bastion)
    except (NotFound, ObjectTooLarge, Refused):
        return None


def cancel_group(
    client: Client, group: str, user_id: str, *, by: str, begin: Callable[[int], None] = lambda _jobs: None
) -> list[Cancelled]:
    """Request the end of all live jobs of the user's group; those that are ending already are left out.

    Args:
        begin: Is told how many there are, before the first request.

    Raises:
        StoreError: some requests could not be written; try again.
    """

    names = [member.name for member in members(client, group, user_id)]
    begin(len(names))
    return cancel_all(client, names, by=by)


def cancel_all(client: Client, names: Sequence[str], *, by: str, only_of: str | None = None) -> list[Cancelled]:
    """Request the end of the jobs; those that are ending already are left out, as are those of others than `only_of`.

    Raises:
        StoreError: some requests could not be written; try again.
    """

    def cancel(name: str) -> Cancelled | None:
        try:
            return client.cancel(name, by=by, only_of=only_of)
        except Refused:  # it has ended meanwhile
            return None

    answers = concurrently([partial(cancel, name) for name in names], connections=client.pace.connections)
    for answer in answers:
        if isinstance(answer, StoreError):
            raise answer
    return [answer for answer in answers if isinstance(answer, Cancelled)]
