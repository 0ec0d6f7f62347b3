"""Caches of the bucket's folders, filled by listings and by the daemon's own writes."""

from __future__ import annotations

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.protocol import Claim, Order, Report
from bastion.core.errors import InvalidDocument, InvalidSpec, UnknownInstanceType
from bastion.core.model import cancel_request, job_spec, refusal
from bastion.core.model.identity import Identity
from bastion.core.model.job_record import JobRecord
from bastion.core.model.job_record import read as read_record
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.lifecycle import Status
from bastion.core.model.refusal import Refusal
from bastion.daemon.observe.copies import Copies
from bastion.daemon.observe.heartbeats import Heartbeats
from bastion.daemon.observe.inbox import Inbox
from bastion.daemon.observe.job_requests import JobRequests
from bastion.daemon.observe.listings import ListedFolders, LoneObject
from bastion.daemon.observe.object_cache import ObjectCache
from bastion.daemon.observe.proofs import Proofs
from bastion.ports import Clock, InboxProof, ObjectMeta, ObjectStore


def _read_refusal(key_name: str, data: bytes) -> Refusal:
    found = refusal.read(data)
    if keys.invalid_name(found.name, found.owner) != key_name:
        raise InvalidDocument(f"not ours: it explains {found.name[:80]!r}")
    shown = found.problem[: limits.PROBLEM_SHOWN_MAX_CHARS] if found.owner else ""
    return found.model_copy(update={"problem": shown})  # not needed in mode `open`, and others can make it long


class Folders:
    """One cache for each folder; `quota` is None under another ROOT.

    `run_objects` are by `<run>/order` and `<run>/reports/<i>`, claims by `<run>.<tag>`.
    """

    def __init__(self, store: ObjectStore, clock: Clock, *, bastion: str, quota_here: bool, proof: InboxProof) -> None:
        self.inbox = Inbox(proof)
        self.copies = Copies(store)
        self.proofs = Proofs()

        def note_read(meta: ObjectMeta, name: str, data: bytes) -> None:
            self.inbox.note_read(meta, name, data)

        def read_spec(name: str, data: bytes) -> JobSpec:
            try:
                spec = job_spec.parse(data, name=name, bastion=bastion)
            except (InvalidSpec, UnknownInstanceType) as error:
                raise InvalidDocument(str(error)) from error
            if self.inbox.on:
                self.inbox.check(keys.inbox_user(self.specs.listed[name].key), spec)
            return spec

        self.specs: ObjectCache[JobSpec] = ObjectCache(
            store, keys.JOBS_ACTIVE, read_spec, max_bytes=lambda _: limits.SPEC_MAX_BYTES, note_read=note_read
        )
        self.states: ObjectCache[JobRecord | Status] = ObjectCache(
            store, keys.JOBS_STATES, lambda name, data: read_record(data, name=name), confirm_absence=True
        )
        self.requests = JobRequests(store, self.inbox)
        self.user_requests = ObjectCache(store, keys.JOBS_USER_STATES, lambda _, data: cancel_request.read(data))
        self.claims: ObjectCache[Claim] = ObjectCache(
            store,
            keys.JOBS_CLAIMS,
            self.proofs.read_claim,
            confirm_absence=True,
            max_bytes=lambda _: limits.CLAIM_MAX_BYTES,
        )
        self.run_objects: ObjectCache[Order | Report] = ObjectCache(
            store,
            keys.RUNS,
            self.proofs.read_run_object,
            confirm_absence=True,
            max_bytes=lambda name: limits.ORDER_MAX_BYTES if name.endswith("/order") else limits.REPORT_MAX_BYTES,
        )
        self.invalid = ObjectCache(store, keys.JOBS_INVALID, _read_refusal)
        self.heartbeats = Heartbeats(clock)
        self.quota = LoneObject(keys.PROJECT_QUOTAS) if quota_here else None
        self.options = LoneObject(keys.RUNTIME_OPTIONS)
        self.status = LoneObject(keys.STATUS)
        self.settings = LoneObject(keys.DAEMON_SETTINGS)
        self.identity = LoneObject(keys.IDENTITY)
        self.identity_copy = LoneObject(keys.IDENTITY_IN_FORCE)

    def use(self, identity: Identity) -> bool:
        """Take the identities in force; return whether specs and requests come from elsewhere now."""
        self.inbox.forget_digests(self.specs.listed)
        if not self.inbox.use(identity):
            return False
        for cache in (self.specs, self.user_requests):
            for name in list(cache.listed):
                cache.drop(name)
        return True

    def listed(self) -> ListedFolders:
        return ListedFolders(
            specs=self.specs,
            claims=self.claims,
            invalid=self.invalid,
            states=self.states,
            user_requests=self.user_requests,
            quota=self.quota,
            requests=self.requests,
            runs=self.run_objects,
            options=self.options,
            status=self.status,
            heartbeats=self.heartbeats,
            settings=self.settings,
            identity=self.identity,
            identity_copy=self.identity_copy,
            inbox=self.inbox,
            copies=self.copies.specs,
            foreign_requests=self.copies.requests,
        )
