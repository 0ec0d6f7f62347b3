"""Reading a job's output: the segments `logs/<job>.d/<run>/worker-<i>/<seq>`, incrementally and in order.

Layer: client, through the port.

Numbers have no holes unless somebody deletes segments, so the next one can simply be asked for: a `get` of the number
after the last one is the cheapest look there is. It brings the content if there is one, and on Cloud Storage costs a
twelfth of a listing. Listings serve where they show more: the beginning, many workers at once, holes, and the end.

Invariants:

* Lines of one worker come in their order, each once. What is missing is told as a gap, never passed over silently.
* What was read is not read or listed again, but for the listings of a whole run, of at most two pages, by which
  several workers are looked at in one request.
* Memory is bounded: of each worker at most `_SEGMENTS_HELD` segments are held, of many workers two each, and one of
  them in pieces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

from bastion.client.concurrently import concurrently
from bastion.client.log_cursor import Cursor
from bastion.client.log_pieces import LogPiece
from bastion.core import keys, limits
from bastion.core.errors import NotFound, StoreError
from bastion.core.keys import Run
from bastion.ports import ObjectStore

_SEGMENTS_HELD = 8
_SEGMENTS_HELD_OF_ALL = 128
# A sparing look may read so much of what it knows already, in order to see all workers at once.
_SWEEP_PAGES_MAX = 2
# Asking for the next number never finds what lies behind a hole; a listing does.
_PROBES_BETWEEN_LISTINGS = 32
# So many in a row are asked for one by one before a listing tells how many there are.
_PROBES_IN_A_ROW = 3
# A worker counts as active until so many looks in a row were vain.
_ACTIVE_LOOKS = 8


def _folders(store: ObjectStore, parent: str, prefix: str = "") -> Iterator[tuple[str, float]]:
    """The folders in `parent` whose names begin with `prefix`, and when their first object was last written.

    One short listing per folder, however many objects lie in it.
    """
    after = ""
    while True:
        first = next(iter(store.list(parent + prefix, start_after=after)), None)
        if first is None:
            return
        name, slash, _ = first.key.removeprefix(parent).partition("/")
        if slash:
            yield name, first.updated
        # "0" follows "/": greater than everything in that folder, smaller than any other folder's content.
        after = f"{parent}{name}{'0' if slash else ''}"


def runs_of(store: ObjectStore, job: str, uid: str = "") -> list[Run]:
    """The runs that have logs: each uid's in their order (the cleanup command's last), the oldest uid first.

    Args:
        uid: Only this job's; empty: of all jobs that ever had the name.
    """
    found: dict[str, list[tuple[Run, float]]] = {}
    for name, updated in _folders(store, keys.worker_logs(job), f"{uid}-" if uid else ""):
        run = Run.parse(name)
        if run is not None:
            found.setdefault(run.uid, []).append((run, updated))
    by_age = sorted(found.values(), key=lambda runs: max(updated for _, updated in runs))
    return [run for runs in by_age for run, _ in sorted(runs, key=lambda pair: pair[0].attempt or 10**9)]


class RunLogs:
    """The output of one run, read on from where the last `poll` ended.

    The first look lists everything there is. After that a sparing look is, while nothing is new,

    * of one worker, a `get` of its next segment;
    * of several workers, one listing from the first one's last segment on, as long as what it shows again fits into two
      pages and into fewer requests than there are workers;
    * of the workers of a longer run, a `get` of the next segment of one worker in turn; every third look is at the
      worker that spoke last, until it has been silent for eight of its looks. When one has news, the others are looked
      at immediately, since the hosts of a slice log in lockstep; those that turn out silent are left out of up to seven
      further such wakings.

    So a line of one of 64 long-silent workers of a long run waits for up to 63 other looks at workers, or 95 while
    another worker is just active, if that one's news do not wake it earlier.

    Args:
        hosts: How many workers the run has; None: look which have written anything.
        worker: Only this one.
        connections: How many requests may be under way at the same time.
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
    ) -> None:
        self._store = store
        self._job = job
        self._run = run
        self._complete = hosts is not None or worker is not None
        self._only = worker
        self._connections = connections
        self._cursors: dict[int, Cursor] = {}
        self._listed = False
        self._turns = 0
        # Whose turn it is; None: the turn of workers that nobody knows yet.
        self._ring: list[Cursor | None] = []
        self._hot: Cursor | None = None
        self._explored = ""
        for index in range(hosts or 0) if worker is None else (worker,):
            self._cursor(index)

    @property
    def behind(self) -> bool:
        """Whether another `poll` gives more without a look: there is a backlog, or a hole to look at again."""
        return any(cursor.waiting or cursor.backlog for cursor in self._cursors.values())

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers that were looked at so far."""
        return tuple(sorted(self._cursors))

    def poll(self, *, sparing: bool = False) -> list[LogPiece]:
        """The next lines, merged by the workers' own instants; while a backlog is left, the bucket is not looked at.

        Args:
            sparing: Look with one request, or two, whatever number of workers there are; otherwise at each of them.

        Raises:
            StoreError: nothing is lost; call again.
        """
        at_hole = [cursor for cursor in self._cursors.values() if cursor.at_hole]
        if at_hole:
            self._list(at_hole)
        elif not self._listed:
            self._list_all()
        elif not self.behind:
            self._look(sparing)
        return self._read()

    def drain(self) -> Iterator[list[LogPiece]]:
        """Everything that was there when the call was made; of a run that is over, all that is left."""
        while self._listed and self.behind:
            yield self.poll()
        self._list_all()
        while self.behind:
            pieces = self.poll()
            if pieces:
                yield pieces

    # -- looking ------------------------------------------------------------------------------------------------

    def _look(self, sparing: bool) -> None:
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
        self._look_in_turn()

    def _look_in_turn(self) -> None:
        cursor = self._next_in_turn()
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

    def _next_in_turn(self) -> Cursor | None:
        self._turns += 1
        if self._hot is not None and self._hot.lately <= -_ACTIVE_LOOKS:
            self._hot = None
        if self._hot is not None and self._turns % 3 == 0:
            return self._hot
        if not self._ring:
            self._ring = [self._cursors[index] for index in sorted(self._cursors, reverse=True)]
            if not self._complete:
                self._ring.append(None)
        return self._ring.pop()

    def _go_on_with(self, lagging: Sequence[Cursor]) -> Sequence[Cursor]:
        """Reads on where a worker may write faster than we look; returns those that do."""
        ahead = lagging = self._probe([cursor for cursor in lagging if cursor.held < self._most_held])
        full: list[Cursor] = []
        for _ in range(_PROBES_IN_A_ROW - 1):
            full += [cursor for cursor in lagging if cursor.held >= self._most_held]
            lagging = self._probe([cursor for cursor in lagging if cursor.held < self._most_held])
        self._list([*full, *lagging])
        return ahead

    def _probe(self, cursors: Sequence[Cursor]) -> list[Cursor]:
        """Asks for the next segment of each; returns those that have one."""
        found = []
        answers = self._get([(cursor, cursor.seq + 1) for cursor in cursors])
        for cursor, answer in zip(cursors, answers, strict=True):
            cursor.probes += 1
            if isinstance(answer, bytes):
                cursor.take(cursor.seq + 1, answer)
                found.append(cursor)
        _raise_first(answers)
        return found

    def _explore(self) -> None:
        """Looks for one more worker behind the last one found so."""
        folder = self._folder
        first = next(iter(self._store.list(folder + "worker-", start_after=self._explored)), None)
        if first is None:
            self._explored = ""
            return
        name = first.key.removeprefix(folder).partition("/")[0]
        self._explored = f"{folder}{name}0"
        worker = _worker_of(name)
        if worker is not None:
            self._cursor(worker)

    # -- listing ------------------------------------------------------------------------------------------------

    def _list_all(self) -> None:
        """Lists what every worker has, and if nobody knows how many there are, which there are."""
        if self._only is None and (not self._listed or self._sweep_pages() <= max(len(self._cursors), 1)):
            self._sweep()
        else:
            if not self._complete:
                for name, _ in _folders(self._store, self._folder, "worker-"):
                    worker = _worker_of(name)
                    if worker is not None:
                        self._cursor(worker)
            self._list(list(self._cursors.values()))
        self._listed = True

    def _list(self, cursors: Sequence[Cursor]) -> list[Cursor]:
        """Lists what these have beyond their places; returns those with news."""
        if len(cursors) > 1 and self._only is None and self._sweep_pages() <= len(cursors):
            return [cursor for cursor in self._sweep() if cursor in cursors]
        answers = concurrently([partial(self._numbers, cursor) for cursor in cursors], connections=self._connections)
        news = [
            cursor
            for cursor, answer in zip(cursors, answers, strict=True)
            if not isinstance(answer, StoreError) and cursor.listed(answer)
        ]
        _raise_first(answers)
        return news

    def _numbers(self, cursor: Cursor) -> list[range]:
        ranges: list[range] = []
        for meta in self._store.list(cursor.folder, start_after=cursor.key):
            _extend(ranges, _number_of(meta.key.removeprefix(cursor.folder)), cursor.seq)
        return ranges

    def _sweep(self) -> list[Cursor]:
        """One listing of the whole run, from the first worker's place on."""
        found: dict[int, list[range]] = {index: [] for index in self._cursors}
        # Worker 0's folder is the first one. Where it is not known, a new one may come before all others.
        first = self._cursors.get(0)
        folder = self._folder
        for meta in self._store.list(folder, start_after=first.key if first else ""):
            name, _, segment = meta.key.removeprefix(folder).partition("/")
            worker = _worker_of(name)
            if worker is not None:
                known = self._cursors.get(worker)
                _extend(found.setdefault(worker, []), _number_of(segment), known.seq if known else 0)
        return [cursor for index, ranges in found.items() if (cursor := self._cursor(index)).listed(ranges)]

    def _sweep_pages(self) -> int:
        """Pages of a listing of the whole run that finds nothing new."""
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
        if any(not cursor.waiting and cursor.next_numbers(1) for cursor in cursors):
            self._fetch(cursors)  # one lacks a segment, so that all are filled up
            for cursor in cursors:
                cursor.unpack()
        # Beyond the last line of a worker with a backlog, its next line may be the earlier one.
        horizon = min((c.waiting[-1].at for c in cursors if c.backlog and c.waiting), default=None)
        ready: list[LogPiece] = []
        for cursor in cursors:
            while cursor.waiting and (horizon is None or cursor.waiting[0].at <= horizon):
                ready.append(cursor.waiting.popleft())
        return sorted(ready, key=lambda piece: (piece.at, piece.worker))

    def _fetch(self, cursors: Iterable[Cursor]) -> None:
        wanted = [
            (cursor, number)
            for cursor in cursors
            if cursor.held < self._most_held
            for number in cursor.next_numbers(self._most_held - cursor.held)
        ]
        answers = self._get(wanted)
        failed: set[int] = set()
        for (cursor, number), answer in zip(wanted, answers, strict=True):
            if isinstance(answer, StoreError) and not isinstance(answer, NotFound):
                failed.add(cursor.worker)
            elif cursor.worker not in failed:
                cursor.take(number, answer if isinstance(answer, bytes) else None)
        _raise_first(answers)

    def _get(self, wanted: Sequence[tuple[Cursor, int]]) -> list[bytes | StoreError]:
        def segment(cursor: Cursor, number: int) -> bytes:
            return self._store.get(keys.log_segment(self._job, str(self._run), cursor.worker, number)).data

        return concurrently([partial(segment, *each) for each in wanted], connections=self._connections)

    @property
    def _folder(self) -> str:
        return f"{keys.worker_logs(self._job)}{self._run}/"

    def _cursor(self, worker: int) -> Cursor:
        if worker not in self._cursors:
            self._cursors[worker] = Cursor(worker, keys.log_segments(self._job, str(self._run), worker))
        return self._cursors[worker]


def _raise_first(answers: Iterable[object]) -> None:
    """Raises the first error of the store that is no answer."""
    for answer in answers:
        if isinstance(answer, StoreError) and not isinstance(answer, NotFound):
            raise answer


def _worker_of(name: str) -> int | None:
    index = name.removeprefix("worker-")
    plain = name != index and index.isascii() and index.isdigit() and len(index) <= 6
    return int(index) if plain and str(int(index)) == index else None


def _number_of(name: str) -> int:
    """The segment's number; 0 if it is none."""
    return int(name) if len(name) == 10 and name.isascii() and name.isdigit() else 0


def _extend(ranges: list[range], number: int, beyond: int) -> None:
    if number <= beyond:
        return
    if ranges and ranges[-1].stop == number:
        ranges[-1] = range(ranges[-1].start, number + 1)
    else:
        ranges.append(range(number, number + 1))
