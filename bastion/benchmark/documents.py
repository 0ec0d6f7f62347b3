"""The documents of a run in the bucket: read, and write once."""

from __future__ import annotations

from bastion.benchmark import layout
from bastion.core import limits
from bastion.core.errors import InvalidDocument, NotFound, PreconditionFailed
from bastion.ports import ObjectStore


def read_matrix(store: ObjectStore, name: str, run: str) -> layout.Matrix:
    """Raises NotFound; InvalidDocument if this version cannot read it."""
    key = layout.matrix(name, run)
    found = _read(store, layout.Matrix, key)
    jobs = [each.job for cell in found.cells for each in cell.repeats]
    foreign = next((job for job in (*jobs, found.finisher) if not job.startswith(f"{name}-")), None)
    if (found.name, found.run) != (name, run):
        raise InvalidDocument(f"{key} is of {found.name}/{found.run}; someone put it there: delete it")
    if foreign is not None:
        raise InvalidDocument(f"{key} names {foreign[:80]!r}, which is no job of {name}; someone changed it: delete it")
    cells = [cell.cell for cell in found.cells]
    if len(set(cells)) < len(cells) or len({*jobs, found.finisher}) <= len(jobs):
        raise InvalidDocument(f"{key} names a cell or a job twice; someone changed it: delete it")
    return found


def read_submitted(store: ObjectStore, name: str, run: str) -> layout.Submitted | None:
    """Return the uids of the run's jobs; None until all are submitted."""
    try:
        return _read(store, layout.Submitted, layout.submitted(name, run))
    except NotFound:
        return None


def _read(store: ObjectStore, model: type[layout.D], key: str) -> layout.D:
    return layout.read(model, store.get(key, max_bytes=limits.BENCHMARK_DOCUMENT_MAX_BYTES).data, key)


def create(store: ObjectStore, key: str, data: bytes) -> bytes:
    """Write the object unless it exists; return what it holds then."""
    try:
        store.put(key, data, generation=0)
    except PreconditionFailed:
        return store.get(key, max_bytes=limits.BENCHMARK_DOCUMENT_MAX_BYTES).data
    return data


def replace(store: ObjectStore, key: str, data: bytes) -> None:
    """Write the object, unless it holds these bytes already. Raises PreconditionFailed if someone else writes it."""
    meta = store.head(key)
    if meta is not None and meta.size == len(data) and store.get(key, max_bytes=len(data)).data == data:
        return
    store.put(key, data, generation=meta.generation if meta else 0)
