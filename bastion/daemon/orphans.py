"""Find and delete orphaned slices from outside the daemon, which may be running or dead.

The daemon's own `sweep` does the same in its ticks. Invariants:

* The bucket is read before the slices are listed and once more after. A slice whose run was current in either reading
  is kept: its record is older than the slice, so the second reading has it.
* An unreadable record may own any slice: then slices of unknown jobs are kept.
* Its hosts are ordered to stop before a slice is deleted, so that no late host runs the command. The gate takes the
  secret of the runs to close, which only the daemon has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.bucket.protocol import Order, OrderAction
from bastion.core.errors import BastionError, InvalidDocument, NotFound
from bastion.core.model.clusters import where
from bastion.core.model.gangs import GangState, GangStatus
from bastion.core.model.job_record import JobRecord
from bastion.core.model.job_record import read as read_record
from bastion.core.model.provisioning import Provisioning
from bastion.core.reconcile.sweep import urgency
from bastion.daemon.observe.gangs import is_named_for
from bastion.daemon.observe.observer import zones_needed
from bastion.daemon.thread_pool import ThreadPool
from bastion.ports import ObjectStore, Provisioner

_READERS = 16
_REASON = "orphaned: no job owns this slice"


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """A gang with our label that no job needs; `why` says so."""

    status: GangStatus
    why: str

    @property
    def going(self) -> bool:
        return self.status.state is GangState.DELETING


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The result of one search: orphans by urgency, the number of needed gangs, searched zones, problems for people."""

    orphans: tuple[Orphan, ...]
    current: int
    zones: tuple[str, ...]
    problems: tuple[str, ...]


@dataclass(slots=True)
class _Records:
    """The states as last read, by name; `unreadable` has the problems."""

    store: ObjectStore
    generations: dict[str, int] = field(default_factory=dict)
    values: dict[str, JobRecord] = field(default_factory=dict)
    unreadable: dict[str, str] = field(default_factory=dict)

    def read(self) -> list[JobRecord]:
        """Read changes; raises StoreError if the store does not answer."""
        listed = {meta.key[len(keys.JOBS_STATES) :]: meta for meta in self.store.list(keys.JOBS_STATES)}
        self.values = {name: record for name, record in self.values.items() if name in listed}
        self.unreadable = {name: problem for name, problem in self.unreadable.items() if name in listed}
        threads = ThreadPool(_READERS)
        try:
            changed = [name for name, meta in listed.items() if self.generations.get(name) != meta.generation]
            for name, generation, value in threads.each(lambda name: self._read_one(name, listed[name]), changed):
                self.generations[name] = generation
                self.values.pop(name, None)
                self.unreadable.pop(name, None)
                if isinstance(value, JobRecord):
                    self.values[name] = value
                elif value:
                    self.unreadable[name] = value
        finally:
            threads.dismiss()
        return list(self.values.values())

    def _read_one(self, name: str, meta: ObjectMeta) -> tuple[str, int, JobRecord | str]:
        try:
            stored = self.store.get(meta.key, max_bytes=limits.DOCUMENT_MAX_BYTES)
            record = read_record(stored.data, name=name)
        except NotFound:
            return name, 0, ""
        except InvalidDocument as error:
            return name, meta.generation, str(error)
        return name, stored.meta.generation, record if isinstance(record, JobRecord) else ""


def find_orphans(
    store: ObjectStore,
    slices: Provisioner,
    settings: Provisioning | None,
    *,
    other_zones: Iterable[str] = (),
    between: Callable[[], None] = lambda: None,
) -> Found:
    """Find gangs that no job needs; change nothing. Raises StoreError.

    Args:
        settings: The operator's, if any; their zones are searched, and those of the jobs' records.
        other_zones: More zones to search.
        between: Waits a moment between the two readings of the bucket.
    """
    records = _Records(store)
    before = records.read()
    zones = sorted({*zones_needed(before, settings), *other_zones})
    problems: list[str] = []
    gangs = [status for zone in zones for status in _list(slices, zone, problems)]
    between()
    after = records.read()
    problems += [f"the state of {name} cannot be read: {problem}" for name, problem in records.unreadable.items()]
    owners = {record.uid: record for record in after}
    current = {
        str(record.run(attempt))
        for record in (*before, *after)
        for attempt in (record.attempt, record.cleanup)
        if attempt is not None
    }
    orphans = []
    needed = 0
    for status in gangs:
        run = Run.parse(status.run)
        if run is None or not is_named_for(run, status.ref.name):
            problems.append(
                f"skipping {status.ref.name}: it has this bastion's label but no valid run; check it by hand"
            )
        elif status.run in current:
            needed += 1
        elif run.uid in owners:
            what = f"attempt {run.attempt}" if run.attempt else "the cleanup"
            why = f"{what} of {owners[run.uid].name} has ended"
            orphans.append(Orphan(status=status, why=why))
        elif records.unreadable:
            problems.append(f"skipping {status.ref.name}: it may belong to a job whose state cannot be read")
        else:
            orphans.append(Orphan(status=status, why="its job has ended or was deleted"))
    orphans.sort(key=lambda orphan: urgency(orphan.status))
    return Found(orphans=tuple(orphans), current=needed, zones=tuple(zones), problems=tuple(problems))


def delete_orphan(store: ObjectStore, slices: Provisioner, orphan: Orphan) -> str:
    """Order its hosts to stop and request the deletion; return the problem, or an empty text."""
    run = orphan.status.run
    order = Order(run=run, action=OrderAction.STOP, reason=_REASON)
    try:
        present = store.head(keys.order(run))
        store.put(keys.order(run), order.to_bytes(), generation=present.generation if present else 0)
        slices.delete(orphan.status.ref)
    except BastionError as error:
        return str(error)
    return ""


def _list(slices: Provisioner, zone: str, problems: list[str]) -> Sequence[GangStatus]:
    try:
        return slices.list(zone)
    except BastionError as error:
        problems.append(f"cannot list slices{where(zone)}: {error}")
        return ()
