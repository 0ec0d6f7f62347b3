"""How awaited jobs ended that are not live any more. Each is looked up once, as a result never changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import NotFound, ObjectTooLarge, StoreError
from bastion.core.model.awaiting import EndedJob
from bastion.core.model.job_limits import Dependency
from bastion.core.reconcile.finish import ended_job, whose_result
from bastion.daemon.observe.inbox import Inbox
from bastion.daemon.thread_pool import ThreadPool
from bastion.ports import ObjectStore


class EndedJobs:
    """Results by uid.

    Attributes:
        known: By uid, what was found of the jobs that are awaited now.
        problems: Failures of the last `look_up`, for people; these jobs are looked up again.
    """

    def __init__(self, store: ObjectStore, *, root: str, inbox: Inbox) -> None:
        self._store = store
        self._inbox = inbox
        self._root = root
        self.known: dict[str, EndedJob] = {}
        self.problems: list[str] = []

    def start_anew(self) -> None:
        """Forget what another daemon may have found otherwise: a new epoch begins."""
        self.known.clear()

    def look_up(self, wanted: Mapping[str, Dependency], threads: ThreadPool) -> bool:
        """Read the results of those not known yet, and forget all others; return whether anything was found."""
        self.known = {uid: found for uid, found in self.known.items() if uid in wanted}
        self.problems = []
        new = [each for uid, each in wanted.items() if uid not in self.known]
        answers: Iterable[EndedJob | str | None] = threads.each(self._find, new)
        for each, answer in zip(new, answers, strict=True):
            if isinstance(answer, str):
                self.problems.append(f"the result of {each.job}, which others await, could not be read: {answer}")
            elif answer is not None:
                self.known[each.uid] = answer
        del self.problems[limits.ALARMS_OF_JOBS_MAX :]
        return any(each.uid in self.known for each in new)

    def _find(self, wanted: Dependency) -> EndedJob | str | None:
        """How the job ended; None if it may still come, a text if the bucket does not answer."""
        name, uid = wanted.job, wanted.uid
        try:
            for key in (keys.complete(name), keys.former_result(name, uid), keys.former_result_before(name, uid)):
                try:
                    data = self._store.get(key, max_bytes=limits.RESULT_MAX_BYTES).data
                except (NotFound, ObjectTooLarge):
                    continue
                if whose_result(data)[1] == uid:
                    return ended_job(data)
            # A listing without the spec proves nothing, and what follows is final.
            for key in self._inbox.keys_of(name) if self._inbox.on else (keys.active(name),):
                found = self._store.head(key)
                owner = keys.inbox_user(key)
                if found is not None and keys.job_uid(self._root, name, found.generation, owner=owner) == uid:
                    return None
        except StoreError as error:
            return str(error)
        return EndedJob(outcome="")
