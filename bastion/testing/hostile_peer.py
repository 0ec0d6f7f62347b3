"""A host of another run that attacks: it may do what the hosts' account may, knows all that is in the bucket, and acts
before and after every write of somebody else.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Final

from bastion.core import documents
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.keys import Run
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.bucket.protocol import Claim, HostPhase, Report
from bastion.core.errors import StoreError
from bastion.core.run_keys import RunKey
from bastion.ports import ObjectStore

_PHASES: Final = tuple(phase for phase in HostPhase if phase.final)
_ANY_HOST: Final = (0, 1, 7)


class HostilePeer:
    """Forges, replays and deletes reports, claims in advance, and writes heartbeats of others.

    Attributes:
        done: How often each attack succeeded in changing the bucket, by its name.
        attacks: By name; a test may keep some of them only.
    """

    def __init__(self, store: ObjectStore, *, seed: int, own: RunKey) -> None:
        """`own`: the key of the peer's own run, which it may use."""
        self._store = store
        self._rng = Random(seed)
        self._own = own
        self._acts = False
        self._seen: list[tuple[str, bytes]] = []  # reports and claims, of every version
        self._runs: set[str] = set()
        self.done: dict[str, int] = {}
        self.attacks: dict[str, Callable[[str], None]] = {
            "forge a report": self._forge_report,
            "replay a report": self._replay_report,
            "delete a report": self._delete_report,
            "claim": self._claim,
            "forge a heartbeat": self._forge_heartbeat,
        }

    def guard(self, store: ObjectStore) -> None:
        """Act around every write through this store."""
        for name in ("put", "append", "delete"):
            setattr(store, name, self._around(getattr(store, name)))

    def _around(self, write: Callable[..., ObjectMeta]) -> Callable[..., ObjectMeta]:
        def both(*arguments: object, **named: object) -> ObjectMeta:
            self.act()
            try:
                return write(*arguments, **named)
            finally:
                self.act()

        return both

    def act(self) -> None:
        """Look at the bucket, and attack one run."""
        if self._acts:
            return  # its own write
        self._acts = True
        try:
            self._look()
            if self._runs:
                name = self._rng.choice(sorted(self.attacks))
                try:
                    self.attacks[name](self._rng.choice(sorted(self._runs)))
                    self.done[name] = self.done.get(name, 0) + 1
                except StoreError:
                    pass  # it lost a race
        finally:
            self._acts = False

    def _look(self) -> None:
        for prefix in (keys.RUNS, keys.JOBS_CLAIMS):
            for meta in self._store.list(prefix):
                run = keys.run_of_claim(meta.key.removeprefix(prefix)).partition("/")[0]
                if Run.parse(run):
                    self._runs.add(run)
                if not meta.key.endswith("/order"):
                    version = (meta.key, self._store.get(meta.key).data)
                    if version not in self._seen:
                        self._seen.append(version)

    def _forge_report(self, run: str) -> None:
        phase, host = self._rng.choice(_PHASES), self._rng.choice(_ANY_HOST)
        report = Report(run=run, host=host, phase=phase, exit_code=self._rng.choice((0, 1)), sequence=2**50)
        self._overwrite(keys.report(run, host), self._signed(report))

    def _replay_report(self, run: str) -> None:
        reports = [data for key, data in self._seen if "/reports/" in key]
        if reports:
            self._overwrite(keys.report(run, self._rng.choice(_ANY_HOST)), self._rng.choice(reports))

    def _delete_report(self, run: str) -> None:
        found = self._rng.choice(list(self._store.list(keys.reports(run))) or [None])
        if found is not None:
            self._store.delete(found.key, generation=found.generation)

    def _claim(self, run: str) -> None:
        tags = [key.rpartition(".")[2] for key, _ in self._seen if key.startswith(keys.JOBS_CLAIMS)]
        tag = self._rng.choice([*tags, self._own.claim_tag, self._own.public, "0" * 32])
        key = self._rng.choice((keys.claim(run, tag), keys.JOBS_CLAIMS + run))
        claim = Claim(run=run, closed=self._rng.choice(("", "by a peer")), boot_id="boot-1")
        self._store.put(key, self._signed(claim), generation=0)  # it may not overwrite one

    def _forge_heartbeat(self, run: str) -> None:
        self._overwrite(keys.beat(run, self._rng.choice(_ANY_HOST)), b"forged")

    def _signed(self, document: protocol.S) -> bytes:
        """Sign with its own key, with somebody's signature, or not at all."""
        signatures = ["", protocol.sign(document, self._own).signature]
        signatures += [str(documents.loads(data)["signature"]) for _, data in self._seen if b'"signature":' in data]
        return document.model_copy(update={"signature": self._rng.choice(signatures)}).to_bytes()

    def _overwrite(self, key: str, data: bytes) -> None:
        meta = self._store.head(key)
        self._store.put(key, data, generation=meta.generation if meta else 0)
