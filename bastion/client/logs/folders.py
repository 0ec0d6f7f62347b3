"""List log folders and segments: `logs/<job>.d/<run>/worker-<i>/<seq>`, or `proxy-<i>` for the storage proxy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from bastion.core.bucket.objects import ObjectMeta
from bastion.ports import ObjectStore


def folders(store: ObjectStore, parent: str, prefix: str = "") -> Iterator[tuple[str, float]]:
    """The folders in `parent` with that prefix, and when their first object was last written.

    One short listing per folder, whatever its size.
    """
    after = ""
    while True:
        first = next(iter(store.list(parent + prefix, start_after=after)), None)
        if first is None:
            return
        name, slash, _ = first.key.removeprefix(parent).partition("/")
        if slash:
            yield name, first.updated
        # "0" follows "/": greater than every key in that folder, smaller than those of other folders.
        after = f"{parent}{name}{'0' if slash else ''}"


def runs_of(store: ObjectStore, job: str, uid: str = "") -> list[Run]:
    """The runs with logs: each uid's in their order (the cleanup command's last), the oldest uid first.

    Args:
        uid: Only this job's; empty: of all jobs that have had the name.
    """
    found: dict[str, list[tuple[Run, float]]] = {}
    for name, updated in folders(store, keys.worker_logs(job), f"{uid}-" if uid else ""):
        run = Run.parse(name)
        if run is not None:
            found.setdefault(run.uid, []).append((run, updated))
    by_age = sorted(found.values(), key=lambda runs: max(updated for _, updated in runs))
    return [run for runs in by_age for run in sorted((run for run, _ in runs), key=_order)]


def _order(run: Run) -> tuple[int, int]:
    return run.attempt or 10**9, run.cleanup_try


def worker_of(name: str, source: keys.LogSource = "worker") -> int | None:
    """The number of the folder's worker; None if it is not a folder of that source."""
    index = name.removeprefix(f"{source}-")
    plain = name != index and index.isascii() and index.isdigit() and len(index) <= 6
    return int(index) if plain and str(int(index)) == index else None


@dataclass(slots=True, kw_only=True)
class Numbers:
    """The segments of one worker in a listing.

    Attributes:
        beyond: Segments up to this one are known already.
        written_since: Leading segments last written before this instant are unwanted.
        ranges: The numbers, ascending and disjoint.
        unwanted: The last unwanted segment; 0 if there is none.
    """

    beyond: int = 0
    written_since: float = float("-inf")
    ranges: list[range] = field(default_factory=list)
    unwanted: int = 0
    _wanted: bool = False

    def add(self, name: str, meta: ObjectMeta) -> None:
        """Add the listing's next object; ignore what is not a segment."""
        number = keys.segment_number(name) or 0
        if number <= self.beyond:
            return
        # After a hole, the host may still write what is before this one.
        follows = not self.ranges or self.ranges[-1].stop == number
        self._wanted = self._wanted or meta.updated >= self.written_since or not follows
        if not self._wanted:
            self.unwanted = number
        if self.ranges and self.ranges[-1].stop == number:
            self.ranges[-1] = range(self.ranges[-1].start, number + 1)
        else:
            self.ranges.append(range(number, number + 1))
