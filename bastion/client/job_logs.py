"""Reading a job's output: the segments `logs/<job>.d/<run>/worker-<i>/<seq>`, incrementally and in order.

Layer: client, through the port. The format of a line is `bastion.worker.log_lines`'s.

Invariants:

* Lines of one worker come in their order, each once. What is missing is told as a gap, never passed over silently.
* A hole in the numbers counts as missing only when a second listing shows it too: a segment may be created while the
  folder is being listed.
* Memory is bounded: at most `_SEGMENTS_AT_ONCE` segments of a worker are held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bastion.core import keys
from bastion.core.errors import NotFound
from bastion.core.keys import Run
from bastion.ports import ObjectStore

_SEGMENTS_AT_ONCE = 8
_STREAMS = ("stdout", "stderr", "gap")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPiece:
    """A line of output, or a piece of one.

    Attributes:
        at: RFC 3339, by the worker's clock.
        stream: `stdout`, `stderr`, or `gap`: `text` says what is missing.
        ends: Whether the line ends here; if not, the worker's next piece of that stream continues it.
        text: UTF-8, without the newline; terminal control sequences are passed on as the job wrote them.
    """

    worker: int
    at: str
    stream: str
    ends: bool
    text: bytes


@dataclass(slots=True)
class _Cursor:
    """How far one worker's segments were read."""

    seq: int = 0
    hole_seen: bool = False
    behind: bool = False
    waiting: deque[LogPiece] = field(default_factory=deque)
    at: str = ""


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

    Args:
        hosts: How many workers the run has; None: look which have written anything.
        worker: Only this one.
    """

    def __init__(
        self, store: ObjectStore, job: str, run: Run, *, hosts: int | None = None, worker: int | None = None
    ) -> None:
        self._store = store
        self._job = job
        self._run = run
        self._hosts = hosts
        self._worker = worker
        self._cursors: dict[int, _Cursor] = {}

    @property
    def behind(self) -> bool:
        """Whether another `poll` may give more at once: there is a backlog, or a hole to look at again."""
        return any(cursor.behind for cursor in self._cursors.values())

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers that were looked at so far."""
        return tuple(sorted(self._cursors))

    def poll(self, *, every_worker: bool = False) -> list[LogPiece]:
        """What is new, merged by the workers' own instants.

        Args:
            every_worker: Look for folders of workers beyond `hosts`, too.

        Raises:
            StoreError: nothing is lost; call again.
        """
        self._find_workers(every_worker)
        for worker, cursor in self._cursors.items():
            if not cursor.waiting:
                self._read_on(worker, cursor)
        # Beyond the last line of a worker with a backlog, its next line may be the earlier one.
        horizon = min((c.waiting[-1].at for c in self._cursors.values() if c.behind and c.waiting), default=None)
        ready: list[LogPiece] = []
        for cursor in self._cursors.values():
            while cursor.waiting and (horizon is None or cursor.waiting[0].at <= horizon):
                ready.append(cursor.waiting.popleft())
        return sorted(ready, key=lambda piece: (piece.at, piece.worker))

    def drain(self) -> Iterator[list[LogPiece]]:
        """Everything there is; afterwards the run has nothing left to say."""
        while True:
            pieces = self.poll(every_worker=True)
            if pieces:
                yield pieces
            if not self.behind and not any(cursor.waiting for cursor in self._cursors.values()):
                return

    def _find_workers(self, every_worker: bool) -> None:
        if self._worker is not None:
            self._cursors.setdefault(self._worker, _Cursor())
            return
        for worker in range(self._hosts or 0):
            self._cursors.setdefault(worker, _Cursor())
        if self._hosts is None or every_worker:
            folder = f"{keys.worker_logs(self._job)}{self._run}/"
            for name, _ in _folders(self._store, folder, "worker-"):
                index = name.removeprefix("worker-")
                if index.isascii() and index.isdigit() and len(index) <= 6:
                    self._cursors.setdefault(int(index), _Cursor())

    def _read_on(self, worker: int, cursor: _Cursor) -> None:
        folder = keys.log_segments(self._job, str(self._run), worker)
        after = keys.log_segment(self._job, str(self._run), worker, cursor.seq) if cursor.seq else ""
        cursor.behind = False
        read = 0
        for meta in self._store.list(folder, start_after=after):
            name = meta.key.removeprefix(folder)
            if not (len(name) == 10 and name.isascii() and name.isdigit()):
                continue
            seq = int(name)
            if read == _SEGMENTS_AT_ONCE:
                cursor.behind = True
                return
            if seq > cursor.seq + 1:
                if not cursor.hole_seen:
                    cursor.hole_seen = cursor.behind = True
                    return
                which = (
                    f"segment {seq - 1} is" if seq == cursor.seq + 2 else f"segments {cursor.seq + 1} to {seq - 1} are"
                )
                self._lost(worker, cursor, f"{which} not in the bucket any more")
            try:
                data = self._store.get(meta.key).data
            except NotFound:
                self._lost(worker, cursor, f"segment {seq} was deleted from the bucket")
            else:
                cursor.waiting.extend(_parse(data, worker, cursor))
            cursor.seq, cursor.hole_seen = seq, False
            read += 1

    @staticmethod
    def _lost(worker: int, cursor: _Cursor, text: str) -> None:
        cursor.waiting.append(LogPiece(worker=worker, at=cursor.at, stream="gap", ends=True, text=text.encode()))


def _parse(data: bytes, worker: int, cursor: _Cursor) -> Iterator[LogPiece]:
    for line in data.removesuffix(b"\n").split(b"\n"):
        at, _, rest = line.partition(b" ")
        stream, _, rest = rest.partition(b" ")
        kind, _, text = rest.partition(b" ")
        name = stream.decode("ascii", "replace")
        if name in _STREAMS and kind in (b"F", b"P"):
            # Never back in time: the merge of several workers relies on it.
            cursor.at = max(cursor.at, at.decode("ascii", "replace"))
            yield LogPiece(worker=worker, at=cursor.at, stream=name, ends=kind == b"F", text=text)
        elif line:
            problem = b"a log line of another format: " + line[:200]
            yield LogPiece(worker=worker, at=cursor.at, stream="gap", ends=True, text=problem)


@dataclass(slots=True)
class LineJoiner:
    """Joins the pieces of lines; `show` gets whole lines only.

    A line without an end is given up to at `max_bytes`, so that a program that never writes a newline costs no memory.
    """

    show: Callable[[LogPiece], None]
    max_bytes: int = 1024 * 1024
    _begun: dict[tuple[int, str], bytes] = field(default_factory=dict)

    def add(self, piece: LogPiece) -> None:
        place = (piece.worker, piece.stream)
        text = self._begun.pop(place, b"") + piece.text
        if not piece.ends and len(text) < self.max_bytes:
            self._begun[place] = text
            return
        self.show(LogPiece(worker=piece.worker, at=piece.at, stream=piece.stream, ends=True, text=text))

    def finish(self) -> None:
        """The output is over: lines that never ended are shown as they are."""
        for (worker, stream), text in sorted(self._begun.items()):
            self.show(LogPiece(worker=worker, at="", stream=stream, ends=True, text=text))
        self._begun.clear()
