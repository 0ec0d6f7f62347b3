"""Read a job's output incrementally and in order: the segments `logs/<job>.d/<run>/worker-<i>/<seq>`.

Numbers are consecutive unless someone deletes segments. So a `get` of the next number is the cheapest look: it returns
the content, and on Cloud Storage costs a twelfth of a listing. Listings serve where they show more: at the beginning,
for many workers at once, after gaps, and at the end.

Invariants:

* Lines of one worker come in order, each once. Missing output is reported as a gap.
* Nothing is read or listed twice, except by listings of a whole run, of at most two pages, which look at several
  workers in one request.
* Memory is bounded: no segment is requested while `_BYTES_HELD` are held, so at most one per connection comes on top.
  A worker holds at most `_SEGMENTS_HELD` segments, one of many workers two. If memory does not suffice for all workers,
  the merge goes on without some: each worker's lines stay in order, those of different workers only roughly.
* With a public key, nothing is shown that does not prove the run, and such an object hides nothing that does.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from bastion.client.concurrently import concurrently
from bastion.client.logs.cursor import Cursor
from bastion.client.logs.folders import Numbers, folders, worker_of
from bastion.client.logs.pieces import LogPiece
from bastion.client.logs.segment_reads import Answer, SegmentReads, Skipped, Unproved
from bastion.client.logs.tail import TailSearch
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from bastion.core.errors import NotFound, StoreError
from bastion.ports import ObjectStore

_SEGMENTS_HELD = 8
_SEGMENTS_HELD_OF_ALL = 128
_BYTES_HELD = 64 * 1024 * 1024
# Approximate size of what one `poll` returns; each piece is an object as well.
_PIECES_AT_ONCE = 4096
_BYTES_AT_ONCE = 1024 * 1024
# Maximum error of a worker's clock against the bucket's, if only lines since an instant are wanted.
_CLOCK_ERROR_SECONDS = 600.0
# A sparing look may list this much known content in order to see all workers at once.
_SWEEP_PAGES_MAX = 2
# A get of the next number never finds what follows a gap; a listing does.
_PROBES_BETWEEN_LISTINGS = 32
# This many are requested one by one before a listing shows how many there are.
_PROBES_IN_A_ROW = 3
# A worker counts as active until this many consecutive looks were vain.
_ACTIVE_LOOKS = 8


class RunLogs:
    """The output of one run, continued where the last `poll` ended.

    The first look lists everything. While nothing is new, each later sparing look is one of these:

    * with one worker, a `get` of its next segment;
    * with several workers, one listing from the first one's last segment on, while what it shows again fits into two
      pages and into fewer requests than there are workers;
    * with the workers of a longer run, a `get` of the next segment of each worker in rotation. Every third look is at
      the last worker with news, until eight of its looks were vain. When one has news, the others are looked at
      immediately, since the hosts of a slice log in lockstep; silent ones are then skipped up to seven times.

    So a line of one of 64 long-silent workers of a long run waits for up to 63 other looks, or 95 while another worker
    is active, unless that one's news come earlier: about 4 to 6 minutes in the cloud.

    Args:
        hosts: Number of workers; None: find those that have written.
        worker: Only this one.
        connections: Maximum number of requests under way.
        since: Segments with only earlier lines may be skipped; seconds since the epoch.
        tail: Begin at the last `tail` lines of all workers, or somewhat before.
        source: The job's own output, or that of the storage proxy on each worker.
        public_key: The run's, by which segments are proved; empty: whatever is there is read.
    """

    def __init__(
        self,
        store: ObjectStore,
        job: str,
        run: Run,
        *,
        hosts: int | None = None,
        worker: int | None = None,
        connections: int = 1,
        since: float | None = None,
        tail: int | None = None,
        source: keys.LogSource = "worker",
        public_key: str = "",
    ) -> None:
        self._store = store
        self._reads = SegmentReads(store, public_key=public_key, connections=connections)
        self._source = source
        self._job = job
        self._run = run
        self._complete = hosts is not None or worker is not None
        self._only = worker
        self._connections = connections
        self._written_since = float("-inf") if since is None else since - _CLOCK_ERROR_SECONDS
        self._tail = tail
        self._search: TailSearch | None = None
        self._cursors: dict[int, Cursor] = {}
        self._listed = False
        self._looks = 0
        # The worker to look at next; None: look for new workers.
        self._ring: list[Cursor | None] = []
        self._hot: Cursor | None = None
        self._explored = ""
        # Workers that a look has skipped because enough is in memory.
        self._owed: list[Cursor] = []
        for index in range(hosts or 0) if worker is None else (worker,):
            self._cursor(index)

    @property
    def behind(self) -> bool:
        """Whether another `poll` gives more without a look: from the backlog, or after a gap."""
        return any(cursor.behind for cursor in self._cursors.values())

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers known so far."""
        return tuple(sorted(self._cursors))

    @property
    def unproved(self) -> int:
        """Number of objects that were left out so far because they prove no host of this run."""
        return self._reads.unproved

    @property
    def unproved_below(self) -> str:
        """The folder that all of these are in; empty if there are none."""
        below = self._reads.unproved_below
        return below[0] if len(below) == 1 else self._folder if below else ""

    def poll(self, *, sparing: bool = False) -> list[LogPiece]:
        """Return the next lines, merged by the workers' instants; does not look while there is a backlog.

        Args:
            sparing: Look with one or two requests, whatever the number of workers; otherwise look at each.

        Raises:
            StoreError: nothing is lost; call again.
        """
        if self._open():
            return self._read()
        at_hole = [cursor for cursor in self._cursors.values() if cursor.at_hole]
        if at_hole:
            self._list(at_hole)
        elif not self.behind:
            self._look(sparing)
        return self._read()

    def drain(self) -> Iterator[list[LogPiece]]:
        """Yield everything that was there at the call; of a run that has ended, everything."""
        if not self._open():
            while self.behind:
                yield self.poll()
            self._list_all()
        while self.behind:
            pieces = self.poll()
            if pieces:
                yield pieces

    def locate(self) -> int:
        """Find where to begin, before the first `poll`.

        Returns:
            Number of lines from there on, at most `tail`; 0 without a `tail`.

        Raises:
            StoreError: call again to continue.
        """
        self._open()
        return self._search.found if self._search else 0

    def _open(self) -> bool:
        """Make the first look and find where to begin; return False if that was done before."""
        if self._listed and self._tail is None:
            return False
        if not self._listed:
            self._list_all()
        if self._tail is not None:
            known = {worker: cursor.known for worker, cursor in self._cursors.items()}
            self._search = self._search or TailSearch(self._tail, known, checked=self._reads.checks)
            self._find(self._search)
            self._tail = None
        return True

    def _find(self, search: TailSearch) -> None:
        while wanted := search.wanted():
            answers = self._get([(self._cursors[worker], number) for worker, number in wanted])
            for (worker, number), answer in zip(wanted, answers, strict=True):
                if isinstance(answer, Unproved):
                    search.leave_out(worker, number)
                    self._cursors[worker].leave_out(number)
                elif isinstance(answer, (bytes, NotFound)):
                    search.learn(worker, number, answer if isinstance(answer, bytes) else None)
            _raise_first(answers)
        for worker, start in search.starts.items():
            self._cursors[worker].skip_to(start - 1)

    # -- looking ------------------------------------------------------------------------------------------------

    def _look(self, sparing: bool) -> None:
        if self._owed:
            self._go_on_with(self._probe(self._owed))
            return
        cursors = list(self._cursors.values())
        if not sparing:
            overdue = not cursors or any(cursor.probes >= _PROBES_BETWEEN_LISTINGS for cursor in cursors)
            if overdue or not self._complete:
                self._list_all()
            else:
                self._go_on_with(self._probe(cursors))
            return
        pages = self._sweep_pages()
        if not cursors or (pages < len(cursors) and pages <= _SWEEP_PAGES_MAX):
            self._sweep()
            return
        self._look_at_one()

    def _look_at_one(self) -> None:
        cursor = self._next_to_look_at()
        if cursor is None:
            self._explore()
            return
        overdue = cursor.probes >= _PROBES_BETWEEN_LISTINGS
        found = self._list([cursor]) if overdue else self._probe([cursor])
        cursor.looked(found=bool(found))
        if not found:
            return
        awake = [other for other in self._cursors.values() if other is not cursor and other.waking.takes()]
        woken = self._probe(awake)
        for other in awake:
            other.looked(found=other in woken)
            other.waking.learn(found=other in woken)
        self._hot = cursor
        lagging = [each for each in (cursor, *woken) if each.lately > 1 and each.going_on.takes()]
        still = self._go_on_with(lagging)
        for each in lagging:
            each.going_on.learn(found=each in still)

    def _next_to_look_at(self) -> Cursor | None:
        self._looks += 1
        if self._hot is not None and self._hot.lately <= -_ACTIVE_LOOKS:
            self._hot = None
        if self._hot is not None and self._looks % 3 == 0:
            return self._hot
        if not self._ring:
            self._ring = [self._cursors[index] for index in sorted(self._cursors, reverse=True)]
            if not self._complete:
                self._ring.append(None)
        return self._ring.pop()

    def _go_on_with(self, lagging: Sequence[Cursor]) -> Sequence[Cursor]:
        """Read on at workers that may write faster than we look; return those with news."""
        found = lagging = self._probe([cursor for cursor in lagging if cursor.held < self._most_held])
        full: list[Cursor] = []
        for _ in range(_PROBES_IN_A_ROW - 1):
            full += [cursor for cursor in lagging if cursor.held >= self._most_held]
            lagging = self._probe([cursor for cursor in lagging if cursor.held < self._most_held])
        self._list([*full, *lagging])
        return found

    def _probe(self, cursors: Sequence[Cursor]) -> list[Cursor]:
        """Get the next segment of each; return those that have one."""
        found = []
        answers = self._get([(cursor, cursor.seq + 1) for cursor in cursors])
        for cursor, answer in zip(cursors, answers, strict=True):
            cursor.probes += 1
            if isinstance(answer, bytes):
                cursor.take(cursor.seq + 1, answer)
                found.append(cursor)
            elif isinstance(answer, Unproved):
                cursor.leave_out(cursor.seq + 1)
                found.append(cursor)  # what it hides may be behind it
        self._owed = [cursor for cursor, answer in zip(cursors, answers, strict=True) if isinstance(answer, Skipped)]
        _raise_first(answers)
        return found

    def _explore(self) -> None:
        """Look for one more worker after the last known one."""
        folder = self._folder
        first = next(iter(self._store.list(f"{folder}{self._source}-", start_after=self._explored)), None)
        if first is None:
            self._explored = ""
            return
        name = first.key.removeprefix(folder).partition("/")[0]
        self._explored = f"{folder}{name}0"
        worker = worker_of(name, self._source)
        if worker is not None:
            self._cursor(worker)

    # -- listing ------------------------------------------------------------------------------------------------

    def _list_all(self) -> None:
        """List the segments of all workers; if their number is unknown, list the workers."""
        if self._only is None and (not self._listed or self._sweep_pages() <= max(len(self._cursors), 1)):
            self._sweep()
        else:
            if not self._complete:
                for name, _ in folders(self._store, self._folder, f"{self._source}-"):
                    worker = worker_of(name, self._source)
                    if worker is not None:
                        self._cursor(worker)
            self._list(list(self._cursors.values()))
        self._listed = True

    def _list(self, cursors: Sequence[Cursor]) -> list[Cursor]:
        """List what follows their positions; return those with news."""
        if len(cursors) > 1 and self._only is None and self._sweep_pages() <= len(cursors):
            return [cursor for cursor in self._sweep() if cursor in cursors]
        answers = concurrently([partial(self._numbers, cursor) for cursor in cursors], connections=self._connections)
        news = [
            cursor
            for cursor, answer in zip(cursors, answers, strict=True)
            if not isinstance(answer, StoreError) and cursor.listed(answer.ranges, unwanted=answer.unwanted)
        ]
        _raise_first(answers)
        return news

    def _numbers(self, cursor: Cursor) -> Numbers:
        numbers = self._numbers_beyond(cursor.seq)
        for meta in self._store.list(cursor.folder, start_after=cursor.key):
            numbers.add(meta.key.removeprefix(cursor.folder), meta)
        return numbers

    def _numbers_beyond(self, number: int) -> Numbers:
        return Numbers(beyond=number, written_since=self._written_since)

    def _sweep(self) -> list[Cursor]:
        """List the whole run once, from the first worker's position on."""
        found = {index: self._numbers_beyond(cursor.seq) for index, cursor in self._cursors.items()}
        # Worker 0's folder sorts first. If it is unknown, a new one may come before all others.
        first = self._cursors.get(0)
        folder = self._folder
        for meta in self._store.list(f"{folder}{self._source}-", start_after=first.key if first else ""):
            name, _, segment = meta.key.removeprefix(folder).partition("/")
            worker = worker_of(name, self._source)
            if worker is not None:
                if worker not in found:
                    found[worker] = self._numbers_beyond(0)
                found[worker].add(segment, meta)
        return [
            cursor
            for index, numbers in found.items()
            if (cursor := self._cursor(index)).listed(numbers.ranges, unwanted=numbers.unwanted)
        ]

    def _sweep_pages(self) -> int:
        """Number of pages of a listing of the whole run without news."""
        again = sum(cursor.seen for cursor in self._cursors.values() if cursor.worker != 0)
        return 1 + again // limits.LIST_PAGE_OBJECTS

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def _most_held(self) -> int:
        return max(2, min(_SEGMENTS_HELD, _SEGMENTS_HELD_OF_ALL // max(1, len(self._cursors))))

    def _read(self) -> list[LogPiece]:
        cursors = list(self._cursors.values())
        for cursor in cursors:
            cursor.unpack()
        if any(cursor.lacking for cursor in cursors):
            self._fetch(cursors)  # one lacks a segment, so fill up all of them
            for cursor in cursors:
                cursor.unpack()
        return self._merge(cursor for cursor in cursors if cursor.next_piece is not None)

    def _merge(self, cursors: Iterable[Cursor]) -> list[LogPiece]:
        """The next pieces in memory, until one worker has more in the bucket only."""
        heap = [(cursor.next_piece.at, cursor.worker, cursor) for cursor in cursors if cursor.next_piece]
        heapq.heapify(heap)
        ready: list[LogPiece] = []
        room = _BYTES_AT_ONCE
        while heap and room > 0 and len(ready) < _PIECES_AT_ONCE:
            cursor = heap[0][2]
            piece = cursor.give()
            ready.append(piece)
            room -= len(piece.text)
            if cursor.next_piece is not None:
                heapq.heapreplace(heap, (cursor.next_piece.at, cursor.worker, cursor))
            elif cursor.behind:
                break  # its next line may be earlier
            else:
                heapq.heappop(heap)
        return ready

    def _fetch(self, cursors: Iterable[Cursor]) -> None:
        wanted = [
            (cursor.held + turn, cursor.at, cursor.worker, number)
            for cursor in cursors
            if cursor.held < self._most_held
            for turn, number in enumerate(cursor.next_numbers(self._most_held - cursor.held))
        ]
        # Those with least in memory and furthest behind come first, since memory may not suffice for all.
        chosen = [(self._cursors[worker], number) for _, _, worker, number in sorted(wanted)]
        answers = self._get(chosen)
        failed: set[int] = set()
        for (cursor, number), answer in zip(chosen, answers, strict=True):
            if isinstance(answer, Unproved) and cursor.worker not in failed:
                cursor.leave_out(number)
            elif isinstance(answer, (bytes, NotFound)) and cursor.worker not in failed:
                cursor.take(number, answer if isinstance(answer, bytes) else None)
            else:
                failed.add(cursor.worker)
        _raise_first(answers)

    def _get(self, wanted: Sequence[tuple[Cursor, int]]) -> list[Answer]:
        """Get segments while memory suffices; the last ones may be skipped."""
        held = sum(cursor.held_bytes for cursor in self._cursors.values())
        return self._reads.get(wanted, room=_BYTES_HELD - held)

    @property
    def _folder(self) -> str:
        return f"{keys.worker_logs(self._job)}{self._run}/"

    def _cursor(self, worker: int) -> Cursor:
        if worker not in self._cursors:
            folder = keys.log_segments(self._job, str(self._run), worker, source=self._source)
            self._cursors[worker] = Cursor(worker, folder)
        return self._cursors[worker]


def _raise_first(answers: Iterable[object]) -> None:
    """Raise the first answer that is a store error."""
    for answer in answers:
        if isinstance(answer, StoreError) and not isinstance(answer, NotFound):
            raise answer
