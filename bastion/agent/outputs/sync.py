"""Store a host's output folder while its command runs: changed files, then a manifest.

Invariants:
* A file is stored as it was while it did not change. A file that keeps changing is in the manifest with its earlier
  content, or not at all. All other files of a manifest existed at one moment.
* An event file of TensorBoard, which only grows, is stored as long as it was at the look.
* Nothing here blocks the command's writes, or its end.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from bastion.agent.backoff import Backoff
from bastion.agent.outputs.store import OutputStore
from bastion.agent.outputs.tree import Fingerprint, OutputTree, look
from bastion.core import limits
from bastion.core.bucket import outputs
from bastion.core.bucket.outputs import Manifest, Part, StoredFile
from bastion.core.errors import Refused, StoreError

_log = logging.getLogger(__name__)

# How often files that change while they are read are read again, before they are left for the next sync.
_ROUNDS = 3
# A second change within one tick of the file system's clock is invisible.
SETTLE_SECONDS = 0.05
# Files uploaded at once; a part of each is in memory.
AT_ONCE = 4
# Fraction of the period: the minimum time between syncs that the command triggers by saving.
_NUDGE_SHARE = 0.15


class _Abandoned(Exception): ...


def _as_it_was(path: str, now: Fingerprint | None, seen: Fingerprint) -> bool:
    """Whether what was seen of a file is still its content, or its beginning if it only grows."""
    if now is None or not outputs.is_event_file(path):
        return now == seen
    return (now.device, now.inode) == (seen.device, seen.inode) and now.size >= seen.size


class OutputSync:
    """One host's output folder on its way to the bucket, for one try of the command.

    Attributes:
        done: Everything from before `finish` is stored.
        storage_error: Why the last sync failed; empty if it did not.
        left_out: What the last sync could not store, and why.
    """

    def __init__(
        self,
        store: OutputStore,
        folder: Path,
        *,
        run: str,
        backoff: Backoff,
        on_done: Callable[[], None],
        files: Callable[[], AbstractContextManager[None]] = nullcontext,
        period_seconds: float = limits.OUTPUT_PERIOD_SECONDS,
        settle_seconds: float = SETTLE_SECONDS,
        part_bytes: int = limits.OUTPUT_PART_BYTES,
    ) -> None:
        """`on_done`: called from the thread when it ends. `files`: gives a thread the rights to read the folder."""
        self._store = store
        self._folder = folder
        self._run = run
        self._backoff = backoff
        self._on_done = on_done
        self._files = files
        self._period_seconds = period_seconds
        self._settle_seconds = settle_seconds
        self._part_bytes = part_bytes
        self._opened = False
        self._parts: dict[Fingerprint, tuple[Part, ...]] = {}
        self._news = threading.Event()
        self._nudged = False
        self._finishing = False
        self._abandoned = False
        self._thread = threading.Thread(target=self._work, name="output-sync", daemon=True)
        self.done = False
        self.storage_error = ""
        self.left_out: dict[str, str] = {}

    def start(self) -> None:
        self._thread.start()

    def nudge(self) -> None:
        """Sync soon: the command has saved, or is about to end."""
        self._nudged = True
        self._news.set()

    def finish(self) -> None:
        """Store what is there, and end: the command has ended."""
        self._finishing = True
        self._news.set()

    def abandon(self) -> None:
        """End the thread after the current operation."""
        self._abandoned = True
        self._news.set()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def sync_once(self) -> bool:
        """Store what changed; return whether anything did. Raises StoreError, OSError, Refused."""
        if not self._opened:
            self._store.open()
            self._opened = True
        before = self._store.newest
        seq, tree, files = self._at_rest(before)
        manifest = Manifest(run=self._run, seq=seq, files=files, links=tree.links, folders=tuple(tree.folders))
        if manifest.same_content(before or Manifest(run=self._run, seq=seq)):
            return False
        self._check_wanted()
        self._store.commit(manifest)
        return True

    def _at_rest(self, before: Manifest | None) -> tuple[int, OutputTree, dict[str, StoredFile]]:
        """A number, a listing of the folder, and its files as stored at that listing or later."""
        known: dict[Fingerprint, tuple[Part, ...]] = {}
        for number in range(_ROUNDS):
            if number:
                time.sleep(self._settle_seconds)
            seq, tree, looked_at = self._store.next_seq(), self._look(), time.time_ns()
            unread = self._store_files(seq, tree, known)
            moving = {
                path
                for path, seen in tree.files.items()
                if (seen not in known and path not in unread)
                or (not outputs.is_event_file(path) and 0 <= looked_at - seen.ctime_ns < self._settle_seconds * 1e9)
            }
            after = self._look()
            moving |= {path for path, seen in tree.files.items() if not _as_it_was(path, after.files.get(path), seen)}
            if not moving and tree.same_names(after):
                break
        self._parts = known
        left_out = dict.fromkeys(moving, "it keeps changing") | unread
        self.left_out = tree.left_out | left_out
        files = {
            path: StoredFile(mode=tree.modes[path], mtime_ns=seen.mtime_ns, parts=known[seen])
            for path, seen in tree.files.items()
            if path not in left_out
        }
        if before is not None:
            files |= {path: before.files[path] for path in left_out if path in before.files}
        return seq, tree, files

    def _look(self) -> OutputTree:
        with self._files():
            return look(self._folder)

    def _store_files(self, seq: int, tree: OutputTree, known: dict[Fingerprint, tuple[Part, ...]]) -> dict[str, str]:
        """Store changed files, and add the parts of stable ones to `known`; return what cannot be read, and why."""
        waiting: dict[str, Future[tuple[Part, ...] | None]] = {}
        unread: dict[str, str] = {}
        pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="output-file")
        try:
            for path, seen in tree.files.items():
                parts = self._parts.get(seen) or known.get(seen)
                if parts is not None and all(map(self._store.has, parts)):
                    known[seen] = parts
                else:
                    waiting[path] = pool.submit(self._stored, seq, path, seen)
            for path, future in waiting.items():
                try:
                    parts = future.result()
                except OSError as error:  # noqa: PERF203 - each file on its own
                    unread[path] = error.strerror or str(error)
                else:
                    if parts is not None:
                        known[tree.files[path]] = parts
        finally:
            pool.shutdown(cancel_futures=True)
        return unread

    def _stored(self, seq: int, path: str, seen: Fingerprint) -> tuple[Part, ...] | None:
        """A file's parts; None if it changed meanwhile. Raises OSError if it cannot be read."""
        count = max(1, -(-seen.size // self._part_bytes))
        parts = []
        try:
            with self._files():
                descriptor = os.open(self._folder / path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            for number in range(count):
                self._check_wanted()
                wanted = min(self._part_bytes, seen.size - number * self._part_bytes)
                data = _read(descriptor, wanted)
                if len(data) != wanted or not _as_it_was(path, Fingerprint.of(os.fstat(descriptor)), seen):
                    return None
                parts.append(self._store.put(data, seq, path, number, count))
        finally:
            os.close(descriptor)
        return tuple(parts)

    def _check_wanted(self) -> None:
        if self._abandoned:
            raise _Abandoned

    def _work(self) -> None:
        while not self._abandoned:
            final = self._finishing
            self._news.clear()
            try:
                self.sync_once()
            except _Abandoned:
                break
            except (StoreError, OSError, Refused, ValueError) as error:  # ValueError: no manifest fits
                if final and isinstance(error, PermissionError):
                    # The command closed its folder to itself, or put a link to another's there.
                    self.left_out = {self._folder.name: error.strerror or str(error)}
                    self.done = True
                    break
                self.storage_error = str(error)
                delay = self._backoff.next()
                _log.warning("outputs could not be stored; retrying in %.1f s: %s", delay, error)
                self._news.wait(delay)
                continue
            self.storage_error = ""
            self._backoff.reset()
            if final:
                self.done = True
                break
            self._pause()
        self._on_done()

    def _pause(self) -> None:
        begun = time.monotonic()
        while not (self._finishing or self._abandoned):
            left = self._period_seconds * (_NUDGE_SHARE if self._nudged else 1.0) - (time.monotonic() - begun)
            if left <= 0:
                break
            self._news.wait(left)
            self._news.clear()
        self._nudged = False


def _read(descriptor: int, size: int) -> bytes:
    pieces = []
    while size > 0:
        piece = os.read(descriptor, min(size, 1 << 20))
        if not piece:
            break
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)
