"""The client's view of a whole bastion: its status document, queue, results and quota file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import islice
from typing import Protocol

import quota
from bastion.client.concurrently import concurrently
from bastion.client.jobs.poll_pace import LOCAL, REMOTE, Pace
from bastion.client.jobs.results import Result, read_result
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import InvalidDocument, NotFound, ObjectTooLarge, StoreError
from bastion.core.model.mode import Mode
from bastion.core.status import packing
from bastion.core.status.document import BacklogEntry, JobEntry, StatusDocument
from bastion.ports import Clock, ObjectStore


class BastionRoot(Protocol):
    """A bastion's folder (`bastion.wiring.roots.Root`); uids derive from `url`, `bastion` is its name."""

    @property
    def url(self) -> str: ...

    @property
    def bastion(self) -> str: ...

    @property
    def local(self) -> bool: ...


class Overview:
    """One bastion, read.

    Caches the status document (by its generation) and, where asked to, the quota file.

    Args:
        store: Its keys are relative to the bastion's ROOT.
        user: Whose inbox to use, if the bastion takes jobs from inboxes.
        inbox: The inbox to use instead, such as a project's.
    """

    def __init__(self, store: ObjectStore, root: BastionRoot, clock: Clock, *, user: str = "", inbox: str = "") -> None:
        self.user = user
        self.shared_inbox = inbox
        self.store = store
        self.root = root
        self.clock = clock
        self._status: StatusDocument | None = None
        self._wanted: packing.Wanted | None = None
        self._asked_mode = False
        self._status_generation = 0
        self._policy: quota.Policy | None = None

    def learn_from(self, other: Overview) -> None:
        """Take over whose inbox the other client of this bastion uses, and the status that it has read."""
        self.user, self.shared_inbox = other.user, other.shared_inbox
        self._status, self._status_generation = other._status, other._status_generation
        self._asked_mode = other._asked_mode

    @property
    def bastion(self) -> str:
        return self.root.bastion

    @property
    def inbox(self) -> str:
        return self.shared_inbox or self.user

    @property
    def takes_inboxes(self) -> bool:
        """Whether jobs and requests go to inboxes, by the status document; not if it cannot be read."""
        if self._status is None and not self._asked_mode:
            with contextlib.suppress(InvalidDocument):
                self.status(again=False)
        return self._status is not None and self._status.mode == Mode.INBOX

    @property
    def pace(self) -> Pace:
        """How often to poll this bastion's bucket."""
        return LOCAL if self.root.local else REMOTE

    def want_only(self, wanted: packing.Wanted) -> None:
        """Read only these jobs of the status document from now on."""
        self._wanted = wanted
        self._status = None

    def status(self, *, again: bool = True) -> StatusDocument | None:
        """Read `status/current.json`; None if no daemon has published one.

        Args:
            again: Ask for a newer one, even if this client has read one before.

        Raises:
            InvalidDocument: it has another format.
        """
        if self._status is not None and not again:
            return self._status
        self._asked_mode = True
        meta = self.store.head(keys.STATUS)
        if meta is None:
            return None
        if meta.size > limits.STATUS_MAX_BYTES:
            raise InvalidDocument(
                f"{keys.STATUS} is {meta.size} bytes long, so no daemon wrote it; try again in a minute"
            )
        if self._status is None or meta.generation != self._status_generation:
            try:
                stored = self.store.get(keys.STATUS, max_bytes=limits.STATUS_MAX_BYTES)
                document = packing.read(stored.data, wanted=self._wanted)
            except NotFound:
                return None
            except InvalidDocument as error:
                raise InvalidDocument(
                    f"{keys.STATUS}: {error}; use the same version of bastion as its daemon"
                ) from error
            self._status, self._status_generation = document, stored.meta.generation
        return self._status

    @property
    def status_generation(self) -> int:
        """Of the status document that was read last; 0 before."""
        return self._status_generation

    def entries(self, *, again: bool = True) -> Mapping[str, JobEntry]:
        """The status document's jobs by name."""
        status = self.status(again=again)
        return status.entries if status is not None else {}

    def unread(self, *, again: bool = True, most: int | None = None) -> list[str]:
        """Names of `unread_specs`."""
        return [name for name, _ in self.unread_specs(again=again, most=most)]

    def unread_specs(self, *, again: bool = True, most: int | None = None) -> list[tuple[str, str]]:
        """Names and keys of specs that the status document does not mention, in order.

        The daemon has not read them yet, or a queue limit keeps them out (`backlog`).

        Args:
            again: As in `status`.
            most: The maximum number of names.
        """
        status = self.status(again=again)
        known = status.names if status is not None else set()
        # Consoles make an object of the folder's name for an empty folder.
        return list(islice((each for each in self._specs() if each[0] and each[0] not in known), most))

    def _specs(self) -> Iterator[tuple[str, str]]:
        """Yield name and key of every spec where the daemon looks for them."""
        if not self.takes_inboxes:
            yield from (
                (meta.key.removeprefix(keys.JOBS_ACTIVE), meta.key) for meta in self.store.list(keys.JOBS_ACTIVE)
            )
            return
        for meta in self.store.list(keys.INBOX):
            found = keys.InboxKey.parse(meta.key)
            if found is not None and not found.request:
                yield found.job, meta.key

    def backlog(self, *, again: bool = True) -> tuple[BacklogEntry, ...]:
        """The users whose jobs a queue limit keeps out, the largest number of jobs first."""
        status = self.status(again=again)
        return status.backlog if status is not None else ()

    def backlog_of(self, project_id: str, user_id: str) -> BacklogEntry | None:
        """The entry of `backlog` that keeps out a job of that project and user; None if none does."""
        entries = {(entry.project_id, entry.user_id): entry for entry in self.backlog(again=False)}
        found = entries.get((project_id, user_id))
        if found is None and (None, None) in entries:
            try:
                outside = not self.policy().is_member(user_id, project_id)
            except (NotFound, quota.QuotaFileError):
                outside = True
            found = entries[None, None] if outside else None
        return found

    def completed(
        self, *, limit: int, among: int | None = None, since: float | None = None
    ) -> tuple[list[Result], int]:
        """Return the newest results, newest first, and how many there are.

        Args:
            among: List at most this many, in order of the names; each thousand costs a request.
            since: Only those written after this instant, by the store's clock.
        """
        listed = islice(self.store.list(keys.JOBS_COMPLETE), among)
        metas = sorted((meta for meta in listed if since is None or meta.updated > since), key=lambda m: -m.updated)
        wanted = [meta.key for meta in metas[:limit]]
        answers = concurrently(
            [partial(self.store.get, key, max_bytes=limits.RESULT_MAX_BYTES) for key in wanted],
            connections=self.pace.connections,
        )
        results = []
        for key, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, (NotFound, ObjectTooLarge)):
                continue  # expired meanwhile, or a foreign file
            if isinstance(answer, StoreError):
                raise answer
            with contextlib.suppress(InvalidDocument):  # a foreign file
                results.append(read_result(answer.data, name=key.removeprefix(keys.JOBS_COMPLETE)))
        return results, len(metas)

    def policy(self, *, again: bool = True) -> quota.Policy:
        """Read the quota file in the bastion's bucket.

        Args:
            again: Read it even if this client has read it before.

        Raises:
            NotFound: there is none here (it may be in a private bucket).
            quota.QuotaFileError: it is not valid.
        """
        if self._policy is None or again:
            self._policy = quota.load(self.store.get(keys.PROJECT_QUOTAS, max_bytes=limits.QUOTA_FILE_MAX_BYTES).data)
        return self._policy
