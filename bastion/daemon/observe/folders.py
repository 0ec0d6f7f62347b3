"""Caches of the bucket's folders, filled by listings and by the daemon's own writes."""

from __future__ import annotations

from bastion.core import limits
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import Claim, Order, Report
from bastion.core.errors import InvalidDocument, InvalidSpec, UnknownInstanceType
from bastion.core.model import cancel_request, job_spec, refusal
from bastion.core.model.job_record import JobRecord
from bastion.core.model.job_record import read as read_record
from bastion.core.model.job_spec import JobSpec
from bastion.core.model.lifecycle import Status
from bastion.core.model.refusal import Refusal
from bastion.daemon.observe.heartbeats import Heartbeats
from bastion.daemon.observe.listings import ListedFolders, LoneObject
from bastion.daemon.observe.object_cache import ObjectCache
from bastion.ports import Clock, ObjectStore


def _read_refusal(key_name: str, data: bytes) -> Refusal:
    found = refusal.read(data)
    if keys.key_name(found.name) != key_name:
        raise InvalidDocument(f"not ours: it explains {found.name[:80]!r}")
    return found.model_copy(update={"problem": ""})  # not needed, and others can make it long


def _read_run_object(name: str, data: bytes) -> Order | Report:
    return protocol.read(Order, data) if name.endswith("/order") else protocol.read(Report, data)


class Folders:
    """One cache for each folder; `quota` is None under another ROOT.

    `run_objects` are by `<run>/order` and `<run>/reports/<i>`.
    """

    def __init__(self, store: ObjectStore, clock: Clock, *, bastion: str, quota_here: bool) -> None:
        def read_spec(name: str, data: bytes) -> JobSpec:
            try:
                return job_spec.parse(data, name=name, bastion=bastion)
            except (InvalidSpec, UnknownInstanceType) as error:
                raise InvalidDocument(str(error)) from error

        self.specs = ObjectCache(store, keys.JOBS_ACTIVE, read_spec, max_bytes=lambda _: limits.SPEC_MAX_BYTES)
        self.states: ObjectCache[JobRecord | Status] = ObjectCache(
            store, keys.JOBS_STATES, lambda name, data: read_record(data, name=name), confirm_absence=True
        )
        self.user_requests = ObjectCache(store, keys.JOBS_USER_STATES, lambda _, data: cancel_request.read(data))
        self.claims: ObjectCache[Claim] = ObjectCache(
            store,
            keys.JOBS_CLAIMS,
            lambda _, data: protocol.read(Claim, data),
            confirm_absence=True,
            max_bytes=lambda _: limits.CLAIM_MAX_BYTES,
        )
        self.run_objects: ObjectCache[Order | Report] = ObjectCache(
            store,
            keys.RUNS,
            _read_run_object,
            confirm_absence=True,
            max_bytes=lambda name: limits.ORDER_MAX_BYTES if name.endswith("/order") else limits.REPORT_MAX_BYTES,
        )
        self.invalid = ObjectCache(store, keys.JOBS_INVALID, _read_refusal)
        self.heartbeats = Heartbeats(clock)
        self.quota = LoneObject(keys.PROJECT_QUOTAS) if quota_here else None
        self.options = LoneObject(keys.RUNTIME_OPTIONS)
        self.status = LoneObject(keys.STATUS)
        self.settings = LoneObject(keys.DAEMON_SETTINGS)

    def listed(self) -> ListedFolders:
        return ListedFolders(
            specs=self.specs,
            claims=self.claims,
            invalid=self.invalid,
            states=self.states,
            user_requests=self.user_requests,
            quota=self.quota,
            runs=self.run_objects,
            options=self.options,
            status=self.status,
            heartbeats=self.heartbeats,
            settings=self.settings,
        )
