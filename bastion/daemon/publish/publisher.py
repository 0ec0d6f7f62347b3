"""Publishes `status/current.json`, at most once a tick and only if it changes; foreign changes are overwritten."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from bastion.core import documents, limits
from bastion.core.bucket import keys
from bastion.core.errors import BastionError, InvalidDocument, NotFound, PreconditionFailed
from bastion.core.model.job_record import JobRecord
from bastion.core.model.world import World
from bastion.core.status import packing
from bastion.core.status.build import JobEntries, build
from bastion.core.status.document import BacklogEntry, DaemonEntry, IdleEntry, QuotaEntry, StatusDocument, UsageEntry
from bastion.daemon.observe.listings import LoneObject
from bastion.ports import ObjectStore
from scheduler import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What the status shows beside the jobs. `usage` changes constantly: it is published with other changes only."""

    daemon: DaemonEntry
    quota: QuotaEntry
    alarms: Sequence[str]
    waiting_since: Mapping[str, float]
    idle: IdleEntry
    backlog: Sequence[BacklogEntry] = ()
    usage: Callable[[], UsageEntry] = UsageEntry


class Publisher:
    def __init__(self, store: ObjectStore, listed: LoneObject, notify: Callable[[str], None]) -> None:
        self._store = store
        self._listed = listed
        self._notify = notify
        self._entries = JobEntries()
        self._document: StatusDocument | None = None  # of which `_data` are the bytes
        self._data: bytes | None = None  # None: unknown
        self._generation = 0

    def recover(self) -> StatusDocument | None:
        """The status of an earlier daemon; None if unreadable."""
        try:
            self._learn()
            return packing.read(self._data) if self._data else None
        except InvalidDocument:
            return None
        except BastionError as error:
            self._notify(f"the earlier status could not be read: {error}")
            return None

    def publish(
        self, world: World, plan: Plan, records: Mapping[str, JobRecord], about: Circumstances, *, listed: bool
    ) -> None:
        """Write the status if it differs. `listed`: whether this tick's listings include it."""
        document = build(
            bastion=world.settings.bastion,
            root=world.settings.root,
            daemon=about.daemon,
            quota=about.quota,
            alarms=about.alarms,
            backlog=about.backlog,
            jobs=self._entries.of(records, world, plan, about.waiting_since),
            views=world.jobs,
            plan=plan,
            idle=about.idle,
            outside=world.outside,
            delegated=world.provisioning.delegated if world.provisioning is not None else (),
        )
        try:
            present = self._listed.meta.generation if self._listed.meta else 0
            if self._data is None or (listed and present != self._generation):
                self._learn()
            elif document == self._document:  # quick: unchanged entries are the same objects
                return
            if not self._is_stored(document):
                self._write(documents.dumps(packing.pack(document.model_copy(update={"usage": about.usage()}))))
            self._document = document
        except PreconditionFailed:
            self._data = None  # another program wrote it; read it again in the next tick
        except BastionError as error:
            self._data = None  # it may have been written
            self._notify(f"the status could not be published: {error}")

    def _is_stored(self, document: StatusDocument) -> bool:
        """Whether the stored status is the same, except for the usage."""
        if self._document is not None or not self._data:
            return False
        try:
            present = packing.read(self._data)
        except InvalidDocument:
            return False
        return documents.dumps(packing.pack(document.model_copy(update={"usage": present.usage}))) == self._data

    def _write(self, data: bytes) -> None:
        meta = self._store.put(keys.STATUS, data, generation=self._generation)
        self._data, self._generation, self._listed.meta = data, meta.generation, meta

    def _learn(self) -> None:
        self._document = self._data = None
        found = self._store.head(keys.STATUS)
        data, generation = b"", found.generation if found else 0
        if found is not None and found.size <= limits.STATUS_MAX_BYTES:
            with contextlib.suppress(NotFound):
                stored = self._store.get(keys.STATUS, max_bytes=limits.STATUS_MAX_BYTES)
                data, generation, found = stored.data, stored.meta.generation, stored.meta
        self._data, self._generation, self._listed.meta = data, generation, found
