"""Watch the lease to tell whether a daemon is running.

What counts is whether the lease changes; no timestamp of another machine is compared with a local clock. The death of a
daemon on this machine is seen at once. In the cloud only the lease's generation is watched while it changes. The lease
is read at the first look, and once when it stops changing (its owner may have released it).
"""

from __future__ import annotations

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import InvalidDocument, NotFound, ObjectTooLarge
from bastion.core.model import lease
from bastion.core.model.lease import LeaseDocument
from bastion.core.plain_text import plain_line
from bastion.ports import Clock, ObjectStore
from bastion.processes import ProcessId, host_identity

# Over three renewals: the TTL is 5 s on a folder and 60 s in the cloud; a third of it passes between renewals.
_PATIENCE_LOCAL_SECONDS = 10.0
_PATIENCE_REMOTE_SECONDS = 90.0


# How the problem of a daemon that lives begins.
CANNOT_ACT = "the daemon runs, but cannot act"


class DaemonHealth:
    """Watches the lease; call `look` at any rate."""

    def __init__(self, store: ObjectStore, clock: Clock, *, local: bool) -> None:
        self._store = store
        self._clock = clock
        self._patience = _PATIENCE_LOCAL_SECONDS if local else _PATIENCE_REMOTE_SECONDS
        self._generation = -1
        self._since = clock.monotonic()
        self._looked_at = float("-inf")
        self._problem = ""
        self._local = local
        # The lease as it was last read, with its generation.
        self._lease: LeaseDocument | None = None
        self._read_generation = -1

    def look(self) -> str:
        """Return what is wrong with the daemon; empty while it may be alive. Makes a request every few seconds at most.

        Raises:
            StoreError: the bucket does not answer.
        """
        now = self._clock.monotonic()
        if now - self._looked_at < self._patience / 10:
            return self._problem
        meta = self._store.head(keys.LEASE)
        self._looked_at = now
        if meta is None:
            # A new bastion gets its first lease within seconds.
            self._problem = "no daemon has ever run here" if now - self._since >= self._patience / 2 else ""
            return self._problem
        if meta.size > limits.DOCUMENT_MAX_BYTES:
            return self._problem  # someone overwrote the lease; its owner notices soon
        first, moved = self._generation == -1, meta.generation != self._generation
        if moved:
            self._generation, self._since = meta.generation, now
        if self._read_generation != meta.generation and (self._local or first or not moved):
            self._read()
        self._problem = self._explain(self._lease if self._read_generation == meta.generation else None, now)
        return self._problem

    def _read(self) -> None:
        self._lease = None
        try:
            stored = self._store.get(keys.LEASE, max_bytes=limits.LEASE_MAX_BYTES)
            self._read_generation = stored.meta.generation
            self._lease = lease.read(stored.data)
        except (NotFound, ObjectTooLarge, InvalidDocument):
            return

    def _explain(self, held: LeaseDocument | None, now: float) -> str:
        if held is not None:
            if held.released:
                return "the daemon has ended"
            process = ProcessId.parse(held.process)
            here = self._local and held.host_identity == host_identity()
            if here and process is not None and not process.alive:
                return f"the daemon (process {process.pid}) has died"
            if held.problem and now - self._since < self._patience:
                return f"{CANNOT_ACT}: {plain_line(held.problem)}"
        if now - self._since >= self._patience:
            return f"the daemon has not renewed its lease for {now - self._since:.0f} s"
        return ""
