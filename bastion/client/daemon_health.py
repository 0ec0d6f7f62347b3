"""Whether a daemon is at work, told from the lease, so that nobody waits for one that is not there.

Layer: client. Nobody's timestamp is compared with a local clock: the lease is watched on our own. A daemon of this very
machine is known to be dead at once.

On a bucket in the cloud a lease that moves is watched by its generation alone; it is read at the first look, and once
when it stands still (its owner may have given it back).
"""

from __future__ import annotations

from bastion.core import documents, limits
from bastion.core.bucket import keys
from bastion.core.errors import NotFound, ObjectTooLarge
from bastion.ports import Clock, ObjectStore
from bastion.processes import ProcessId, host_identity

# Over three renewals each: 5 s TTL on a folder, 60 s on a bucket in the cloud, renewed at a third.
_PATIENCE_LOCAL_SECONDS = 10.0
_PATIENCE_REMOTE_SECONDS = 90.0


class DaemonPulse:
    """Watches the lease; `look` as often as you like."""

    def __init__(self, store: ObjectStore, clock: Clock, *, local: bool) -> None:
        self._store = store
        self._clock = clock
        self._patience = _PATIENCE_LOCAL_SECONDS if local else _PATIENCE_REMOTE_SECONDS
        self._generation = -1
        self._since = clock.monotonic()
        self._looked_at = float("-inf")
        self._problem = ""
        self._local = local
        # The lease as it was read last, and its generation then.
        self._lease: object = None
        self._read_generation = -1

    def look(self) -> str:
        """What is wrong with the daemon; empty while it may well be alive. Costs a request every few seconds at most.

        Raises:
            StoreError: the bucket does not answer.
        """
        now = self._clock.monotonic()
        if now - self._looked_at < self._patience / 10:
            return self._problem
        meta = self._store.head(keys.LEASE)
        self._looked_at = now
        if meta is None:
            # A bastion that has just been set up gets its first lease within seconds.
            self._problem = "no daemon has ever run here" if now - self._since >= self._patience / 2 else ""
            return self._problem
        if meta.size > limits.DOCUMENT_MAX_BYTES:
            return self._problem  # somebody overwrote the lease; its owner does not take long to notice
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
            self._lease = documents.loads(stored.data)
        except (NotFound, ObjectTooLarge, documents.DocumentError):
            return

    def _explain(self, lease: object, now: float) -> str:
        if isinstance(lease, dict):
            if lease.get("released") is True:
                return "the daemon has ended"
            process = ProcessId.parse(str(lease.get("process", "")))
            here = self._local and lease.get("host_identity") == host_identity()
            if here and process is not None and not process.alive:
                return f"the daemon (process {process.pid}) has died"
        if now - self._since >= self._patience:
            return f"the daemon has not renewed its lease for {now - self._since:.0f} s"
        return ""
