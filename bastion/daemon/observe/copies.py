"""Mode `inbox`: what lies in `jobs/active/` and `jobs/user_states/`: our own copies of specs, and what others wrote.

The copies are for readers. A listing of them costs requests, so a large bastion looks at them now and then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Mapping, Sequence

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import ObjectTooLarge, StoreError
from bastion.core.model.job_record import JobRecord
from bastion.core.model.lifecycle import Status
from bastion.core.model.world import OutsideObject
from bastion.core.reconcile.inbox import INSTEAD
from bastion.daemon.thread_pool import ThreadPool
from bastion.ports import ObjectMeta, ObjectStore

# After a restart the copies of so many jobs are compared with what was accepted in one check.
_READ_AT_ONCE = 250
# Ticks that find the same object before it counts as a stranger's: a daemon may have crashed while it accepted its job.
_SEEN_TICKS = 2


class _Folder:
    """The objects of one folder as last listed; `fresh` if this tick did."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix
        self.listed: dict[str, ObjectMeta] = {}
        self.fresh = False

    def take(self, found: Sequence[ObjectMeta]) -> None:
        skip = len(self.prefix)
        self.listed = {meta.key[skip:]: meta for meta in found if len(meta.key) > skip}
        self.fresh = True


class Copies:
    """Which copies are ours.

    Attributes:
        specs, requests: The two folders.
        foreign: What we did not write, by the last check.
        damaged: Live jobs whose copy is missing or another's.
        checked: Whether this tick has listed the specs.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._ours: dict[str, tuple[int, str]] = {}  # by job: generation and sha256 of the copy
        self._tick = 0
        self._strange: dict[str, tuple[int, int]] = {}  # by job: generation, and the tick that found it first
        self._unread: frozenset[str] = frozenset()  # copies that were not compared yet
        self.specs = _Folder(keys.JOBS_ACTIVE)
        self.requests = _Folder(keys.JOBS_USER_STATES)
        self.foreign: tuple[OutsideObject, ...] = ()
        self.damaged: tuple[str, ...] = ()
        self.checked = False

    def begin(self) -> None:
        """Begin a tick: what the last one found was acted upon."""
        self._tick += 1
        self.specs.fresh = self.requests.fresh = False

    def note(self, name: str, meta: ObjectMeta, sha256: str) -> None:
        """Remember a copy that was written or read."""
        self._ours[name] = meta.generation, sha256

    def generation(self, name: str, sha256: str) -> int:
        """The generation of our copy of these bytes; 0 if it is not known."""
        known = self._ours.get(name)
        return known[0] if known is not None and known[1] == sha256 else 0

    def check(
        self,
        records: Mapping[str, JobRecord],
        awaited: Mapping[str, ObjectMeta],
        frozen: Container[str],
        threads: ThreadPool,
    ) -> None:
        """Compare what was listed with what was accepted. `awaited`: the specs in the inboxes."""
        listed = self.requests.listed if self.requests.fresh else {}
        self.foreign = tuple(
            OutsideObject(name=name, generation=meta.generation, problem=INSTEAD, request=True)
            for name, meta in listed.items()
        )
        self.checked, self.damaged = self.specs.fresh, ()
        if self.checked:
            self._check_specs(records, awaited, frozen, threads)

    def _check_specs(
        self,
        records: Mapping[str, JobRecord],
        awaited: Mapping[str, ObjectMeta],
        frozen: Container[str],
        threads: ThreadPool,
    ) -> None:
        listed = self.specs.listed
        self._ours = {name: copy for name, copy in self._ours.items() if name in records}
        self._read(records, threads)
        strange: dict[str, tuple[int, int]] = {}
        foreign = []
        for name, meta in listed.items():
            record = records.get(name)
            undecided = name in frozen or name in self._unread or (record is None and name in awaited)
            if undecided or self._is_ours(name, meta, record):
                continue
            before = self._strange.get(name)
            strange[name] = (
                before if before is not None and before[0] == meta.generation else (meta.generation, self._tick)
            )
            if self._seems_strange(strange[name]):
                foreign.append(OutsideObject(name=name, generation=meta.generation, problem=INSTEAD))
        self._strange = strange
        self.foreign += tuple(foreign)
        self.damaged = tuple(
            name
            for name, record in records.items()
            if record.pin is not None
            and name not in frozen
            and record.status is not Status.COMPLETED
            and (name not in listed or (name in strange and self._seems_strange(strange[name])))
            and name in awaited
            and awaited[name].generation == record.pin.generation  # the bytes are there to be copied again
        )

    def _seems_strange(self, found: tuple[int, int]) -> bool:
        return self._tick - found[1] + 1 >= _SEEN_TICKS

    def _is_ours(self, name: str, meta: ObjectMeta, record: JobRecord | None) -> bool:
        if record is None:
            return False
        if record.pin is None:
            return meta.generation == record.generation
        return self._ours.get(name) == (meta.generation, record.pin.sha256)

    def _read(self, records: Mapping[str, JobRecord], threads: ThreadPool) -> None:
        """Read copies that we do not know, such as those of an earlier daemon."""
        unknown = [
            meta
            for name, meta in self.specs.listed.items()
            if (record := records.get(name)) is not None
            and record.pin is not None
            and self._ours.get(name, (0, ""))[0] != meta.generation
        ]
        names = [meta.key[len(keys.JOBS_ACTIVE) :] for meta in unknown]
        for name, digest in zip(names, threads.each(self._digest, unknown[:_READ_AT_ONCE]), strict=False):
            if digest is not None:
                self._ours[name] = self.specs.listed[name].generation, digest
        self._unread = frozenset(
            name for name in names if self._ours.get(name, (0, ""))[0] != self.specs.listed[name].generation
        )

    def _digest(self, meta: ObjectMeta) -> str | None:
        """The sha256 of a copy; empty if it is too large to be one, None if it could not be read."""
        try:
            stored = self._store.get(meta.key, max_bytes=limits.SPEC_MAX_BYTES)
        except ObjectTooLarge:
            return ""
        except StoreError:
            return None
        return hashlib.sha256(stored.data).hexdigest() if stored.meta.generation == meta.generation else None
