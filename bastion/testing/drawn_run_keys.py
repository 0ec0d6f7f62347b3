"""The keys of a simulated bastion's runs, which tests may use to write what its hosts would write."""

from __future__ import annotations

from bastion.core.bucket import keys, segment_proofs
from bastion.core.run_keys import SECRET_BYTES, RunKey, RunKeys
from bastion.ports import ObjectStore


class DrawnRunKeys(RunKeys):
    """Remembers the key of each run."""

    def __init__(self, root_secret: bytes = b"a secret of 32 bytes: the runs' ".ljust(SECRET_BYTES)) -> None:
        super().__init__(root_secret)
        self._drawn: dict[str, RunKey] = {}

    def of(self, run: str, token: str) -> RunKey:
        self._drawn[run] = super().of(run, token)
        return self._drawn[run]

    def drawn(self, run: str) -> RunKey:
        """The key of a run; of one that the daemon did not start, a key that no record has."""
        return self._drawn.get(run) or super().of(run, "")

    def write_segment(
        self,
        store: ObjectStore,
        job: str,
        run: str,
        worker: int,
        seq: int,
        text: bytes,
        *,
        source: keys.LogSource = "worker",
    ) -> None:
        """Store a log segment of a host."""
        key = keys.log_segment(job, run, worker, seq, source=source)
        store.put(key, segment_proofs.with_proof(key, text, self.drawn(run)), generation=0)
