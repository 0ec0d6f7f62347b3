"""Whether a daemon is at work, told from the lease, so that nobody waits for one that is not there.

Layer: client. Nobody's timestamp is compared with a local clock: the lease is watched on our own. A daemon of this very
machine is known to be dead at once.
"""

from __future__ import annotations

from bastion.core import documents, keys, limits
from bastion.core.errors import NotFound
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

    def look(self) -> str:
        """What is wrong with the daemon; empty while it may well be alive. Costs a read every few seconds at most.

        Raises:
            StoreError: the bucket does not answer.
        """
        now = self._clock.monotonic()
        if now - self._looked_at < self._patience / 10:
            return self._problem
        self._looked_at = now
        meta = self._store.head(keys.LEASE)
        if meta is not None and meta.size > limits.DOCUMENT_MAX_BYTES:
            return self._problem  # somebody overwrote the lease; its owner does not take long to notice
        try:
            stored = self._store.get(keys.LEASE)
        except NotFound:
            # A bastion that has just been set up gets its first lease within seconds.
            self._problem = "no daemon has ever run here" if now - self._since >= self._patience / 2 else ""
            return self._problem
        if stored.meta.generation != self._generation:
            self._generation, self._since = stored.meta.generation, now
        self._problem = self._explain(stored.data, now)
        return self._problem

    def _explain(self, data: bytes, now: float) -> str:
        try:
            lease = documents.loads(data)
        except documents.DocumentError:
            lease = {}
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
