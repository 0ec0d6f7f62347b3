"""The worker agent that nodes fetch, kept in the bucket under `agents/<sha256>/`.

Packing is handed in. An attempt notes the digest it begins with, so it keeps its version whatever
happens to the daemon.

Invariants:

* No tick waits for packing or for an upload: both happen in a thread, and until the first is done nothing starts that
  needs it.
* Nothing is packed, looked for or uploaded while nothing starts.
* What the bucket's lifecycle rules took is uploaded again: while things start, the file is looked for once an hour.
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
    """Puts this daemon's agent into the bucket when it is first asked for.

    Attributes:
        problem: Why it is not there; empty if it is, or if nobody has asked.
    """

    def __init__(
        self,
        store: ObjectStore,
        pack: Callable[[], PackedAgent],
        clock: Clock,
        *,
        notify: Callable[[str], None] = lambda _: None,
        in_background: Callable[[Callable[[], None]], None] | None = None,
    ) -> None:
        """`in_background`: starts what it is given and returns at once; by default a thread."""
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
        """Digest of the agent that is in the bucket; None: none is yet, or nobody has asked for one."""
        return self._sha256

    def current(self) -> str | None:
        """Digest of the agent that an attempt begins with which starts now; None: not yet.

        One that was seen in the bucket is good while it is looked for again: nodes try for ever.
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
            self.problem = f"the agent that nodes fetch is not in the bucket, so nothing starts on slices: {error}"
        finally:
            with self._lock:
                self._next_look = self._clock.monotonic() + delay
                self._at_work = False

    def _upload(self) -> str:
        packed = self._pack()
        sha256 = packed.sha256
        if self._store.head(keys.agent_file(sha256)) is None:
            # The file last: what is there is whole.
            self._create(keys.agent_manifest(sha256), packed.manifest.to_bytes())
            self._create(keys.agent_file(sha256), packed.archive)
        self._notify(f"nodes run the agent {sha256[:12]}, packed for {pythons(packed.manifest.minors)}")
        return sha256

    def _create(self, key: str, data: bytes) -> None:
        try:
            self._store.put(key, data, generation=0)
        except PreconditionFailed:
            return  # another daemon's, or an earlier try's: the same bytes


def _start_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="agent-upload", daemon=True).start()
