"""Requests about jobs: `requests/<job>/<id>`, or in mode `inbox` those in the inboxes; who may ask is decided here.

The oldest ones of each job are read, a bounded number in a tick. An idle tick reads nothing, and
lists the folder together with its neighbors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.keys import RequestKey
from bastion.core.model import job_request
from bastion.core.model.authority import may_end
from bastion.core.model.job_record import JobRecord
from bastion.core.model.job_request import JobRequest
from bastion.core.model.world import AskedOfJob
from bastion.daemon.observe.inbox import Inbox
from bastion.daemon.observe.object_cache import ObjectCache
from bastion.daemon.thread_pool import ThreadPool
from bastion.ports import ObjectMeta, ObjectStore
from quota import Policy


class JobRequests:
    """The requests that are there.

    Attributes:
        of_jobs: By job, the oldest ones in order, as far as they were read.
        unanswered: Those of no known job, and what is no request.
    """

    prefix = keys.REQUESTS

    def __init__(self, store: ObjectStore, inbox: Inbox) -> None:
        self._inbox = inbox
        self._cache: ObjectCache[JobRequest] = ObjectCache(
            store, "", lambda _, data: job_request.read(data), max_bytes=lambda _: limits.REQUEST_MAX_BYTES
        )
        self._listed: tuple[ObjectMeta, ...] = ()
        self.of_jobs: dict[str, list[AskedOfJob]] = {}
        self.unanswered: tuple[ObjectMeta, ...] = ()

    def take(self, found: Sequence[ObjectMeta]) -> None:
        self._listed = tuple(found)

    def forget(self, key: str) -> None:
        """Forget what was deleted."""
        self._cache.drop(key)
        self._listed = tuple(meta for meta in self._listed if meta.key != key)
        self._inbox.forget_job_request(key)

    def read(self, records: Mapping[str, JobRecord], policy: Policy | None, threads: ThreadPool) -> None:
        """Read what is new, after the states were read."""
        present = (*self._listed, *self._inbox.job_requests) if self._inbox.on else self._listed
        if not present:  # nearly always
            if self.of_jobs or self.unanswered:
                self._cache.take(())
                self.of_jobs, self.unanswered = {}, ()
            return
        by_job: dict[str, list[tuple[RequestKey, ObjectMeta]]] = {}
        unanswered = []
        for meta in sorted(present, key=lambda each: (each.updated, each.generation, each.key)):
            found = RequestKey.parse(meta.key)
            if found is None or found.job not in records or bool(found.user) is not self._inbox.on:
                unanswered.append(meta)
            elif len(some := by_job.setdefault(found.job, [])) < limits.REQUESTS_OF_JOB_AT_ONCE:
                some.append((found, meta))
        self.unanswered = tuple(unanswered)
        allowed = {
            meta.key: meta
            for each in islice((e for some in by_job.values() for e in some), limits.REQUESTS_AT_ONCE)
            if not self._denied(*each, records, policy)
            for meta in (each[1],)
        }
        self._cache.take(tuple(allowed.values()))
        self._cache.fetch(list(allowed), threads)
        self.of_jobs = {
            job: [asked for each in some if (asked := self._asked(*each, records, policy)) is not None]
            for job, some in by_job.items()
        }

    def _denied(
        self, key: RequestKey, meta: ObjectMeta, records: Mapping[str, JobRecord], policy: Policy | None
    ) -> str:
        """Why its author may not ask anything of that job; empty if he may."""
        if not key.user:
            return ""
        record = records[key.job]
        if key.user != record.owner and not may_end(key.user, record.job, policy):
            return f"{record.name} is the job of {record.owner}, who may ask this, as may administrators"
        return self._inbox.problem(meta)

    def _asked(
        self, key: RequestKey, meta: ObjectMeta, records: Mapping[str, JobRecord], policy: Policy | None
    ) -> AskedOfJob | None:
        """The request as the reconciler sees it; None if it is not read yet."""
        asked = AskedOfJob(
            key=meta.key,
            request_id=key.request_id,
            generation=meta.generation,
            written_at=meta.updated,
            owner=key.user,
            by=key.user,
        )
        denied = self._denied(key, meta, records, policy)
        if denied:
            return _refused(asked, denied, denied=True)
        if self._cache.generation(meta.key) != meta.generation:
            return None
        problem = self._cache.problems.get(meta.key)
        if problem is not None:
            return _refused(asked, problem, denied=False)
        said = self._cache.values[meta.key]
        return AskedOfJob(
            key=asked.key,
            request_id=asked.request_id,
            generation=asked.generation,
            written_at=asked.written_at,
            owner=asked.owner,
            kind=said.kind,
            uid=said.uid,
            by=key.user or said.by,
            reason=said.reason,
            worker=said.worker,
        )


def _refused(asked: AskedOfJob, problem: str, *, denied: bool) -> AskedOfJob:
    return AskedOfJob(
        key=asked.key,
        request_id=asked.request_id,
        generation=asked.generation,
        written_at=asked.written_at,
        owner=asked.owner,
        by=asked.by,
        problem=problem,
        denied=denied,
    )
