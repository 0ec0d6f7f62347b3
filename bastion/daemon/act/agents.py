"""The worker agent for nodes, stored under `agents/<sha256>/`.

An attempt stores the digest it begins with and so keeps its version. A thread packs and uploads the agent when an
attempt needs it; attempts wait for the first upload. While attempts start, the file is checked once an hour and
uploaded again if the bucket's lifecycle rules deleted it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from bastion.core.bucket import keys
from bastion.core.bucket.agent_archive import PackedAgent, pythons
from bastion.core.errors import BastionError, PreconditionFailed
from bastion.ports import Clock, ObjectStore

_LOOK_AGAIN_SECONDS = 3600.0
_RETRY_SECONDS = 10.0


class Agents:
    """Uploads this daemon's agent on demand. `problem` says why the upload failed; otherwise empty."""

    def __init__(
        self,
        store: ObjectStore,
        pack: Callable[[], PackedAgent],
        clock: Clock,
        *,
        notify: Callable[[str], None] = lambda _: None,
        in_background: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """`in_background` starts a function and returns at once; by default a thread."""
        self._store = store
        self._pack = pack
        self._clock = clock
        self._notify = notify
        self._in_background = in_background or _start_thread
        self._lock = threading.Lock()
        self._at_work = False
        self._next_look = float("-inf")
        self._sha256: str | None = None
        self.problem = ""

    @property
    def known(self) -> str | None:
        """Digest of the agent in the bucket; None: not there yet, or never asked for."""
        return self._sha256

    def current(self) -> str | None:
        """Digest of the agent for an attempt that starts now; None: not yet.

        It stays valid during a check, because nodes retry.
        """
        with self._lock:
            due = not self._at_work and self._clock.monotonic() >= self._next_look
            self._at_work = self._at_work or due
        if due:
            self._in_background(self._look)
        return self._sha256

    def _look(self) -> None:
        delay = _RETRY_SECONDS
        try:
            if self._sha256 is None or self._store.head(keys.agent_file(self._sha256)) is None:
                self._sha256 = self._upload()
            self.problem = ""
            delay = _LOOK_AGAIN_SECONDS
        except BastionError as error:
            self.problem = f"no job starts on slices: the worker agent could not be uploaded: {error}"
        finally:
            with self._lock:
                self._next_look = self._clock.monotonic() + delay
                self._at_work = False

    def _upload(self) -> str:
        packed = self._pack()
        sha256 = packed.sha256
        if self._store.head(keys.agent_file(sha256)) is None:
            # The file last: if it exists, the agent is complete.
            self._create(keys.agent_manifest(sha256), packed.manifest.to_bytes())
            self._create(keys.agent_file(sha256), packed.archive)
        self._notify(f"nodes run agent {sha256[:12]}, packed for {pythons(packed.manifest.minors)}")
        return sha256

    def _create(self, key: str, data: bytes) -> None:
        try:
            self._store.put(key, data, generation=0)
        except PreconditionFailed:
            return  # already uploaded: the same bytes


def _start_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="agent-upload", daemon=True).start()
