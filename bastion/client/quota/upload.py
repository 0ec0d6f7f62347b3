"""The quota file of a bastion as its administrator handles it: what lies there, what another would do, replacing it.

Layer: client, through the port. The file may lie in a private bucket of its own, so there are two stores: the quota
file's, and the bastion's, whose published status tells what runs and which file is in force.

Invariants:

* A file is replaced only if it still is the one that was read, and only after it was kept under `former/`.
* What could not be known is said as a doubt, never guessed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import quota
from bastion.client.daemon_health import DaemonPulse
from bastion.client.jobs.client import Client
from bastion.client.jobs.durations import live_jobs
from bastion.client.jobs.overview import BastionRoot
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import InvalidDocument, NotFound, PreconditionFailed, Refused
from bastion.core.status.jobs import published_holdings, published_restart_seconds, published_usage
from bastion.ports import ObjectStore
from scheduler import Snapshot
from scheduler.simulation.policy_change import PolicyEffect, effect_of

# Of a lease that nobody renewed for so long its daemon is taken for gone; clocks of two machines differ by less.
_LEASE_STALE_SECONDS = 600.0
# A daemon looks every ten seconds at most; a store that is busy may cost it a few looks.
_PATIENCE_SECONDS = 60.0
_POLL_LOCAL_SECONDS = 0.5
_POLL_REMOTE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFile:
    """A quota file as it lies in the bucket.

    Attributes:
        data: Its bytes.
        generation: 0 if there is no file; then `data` is empty.
        written_at: When it was written, in seconds since the epoch.
        policy: What it means; None if it is broken, or missing.
        problem: What is wrong with it; empty if nothing is.
    """

    data: bytes = b""
    generation: int = 0
    written_at: float = 0.0
    policy: quota.Policy | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InForce:
    """Which file the daemon acts on, as it last published.

    Attributes:
        generation: 0 if it never read a good one.
        problem: Why the present file is not in force; empty if it is, or not read yet.
        root: Under which ROOT it reads the file; empty if it does not say.
    """

    generation: int
    problem: str
    root: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a new file would do to the jobs.

    Attributes:
        effect: By the jobs that the status shows.
        entries: Their entries in the status, by name.
        doubts: Why it may be wrong; empty if the status can be trusted.
        snapshot: The jobs, with the policy in force; None if there are none, or nobody knows them.
    """

    effect: PolicyEffect
    snapshot: Snapshot | None = None
    entries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """A new file that lies in the bucket. `former` is the key of the one before; empty if there was none."""

    generation: int
    former: str


class QuotaDesk:
    """Reads, weighs and replaces the quota file of one bastion.

    Args:
        client: The bastion.
        store: Its keys are relative to the ROOT of the quota file; the client's own unless that is private.
        root: That ROOT.
    """

    def __init__(self, client: Client, store: ObjectStore, root: BastionRoot) -> None:
        self.client = client
        self._store = store
        self.root = root

    @property
    def url(self) -> str:
        """Where the quota file lies."""
        return f"{self.root.url}/{keys.PROJECT_QUOTAS}"

    def now(self) -> float:
        """The present instant, in seconds since the epoch."""
        return self.client.clock.now()

    # -- looking ------------------------------------------------------------------------------------------------

    def present(self) -> QuotaFile:
        """The file that lies there now.

        Raises:
            Refused: it is larger than any quota file.
        """
        meta = self._store.head(keys.PROJECT_QUOTAS)
        if meta is None:
            return QuotaFile()
        if meta.size > limits.QUOTA_FILE_MAX_BYTES:
            raise Refused(f"{self.url} has {meta.size} bytes and is no quota file; move it away first")
        return self._read(keys.PROJECT_QUOTAS) or QuotaFile()

    def former(self, generation: int) -> QuotaFile | None:
        """The kept file that had this generation; None if none of that generation was kept."""
        ending = f"-{generation}.config"
        kept = [meta for meta in self._store.list(keys.FORMER_QUOTAS) if meta.key.endswith(ending)]
        return self._read(kept[-1].key) if kept and kept[-1].size <= limits.QUOTA_FILE_MAX_BYTES else None

    def in_force(self) -> InForce | None:
        """What the daemon says of the quota file; None if no daemon has published a status that we read."""
        try:
            status = self.client.status()
        except InvalidDocument:
            return None
        said = status.get("quota") if status else None
        if not isinstance(said, Mapping):
            return None
        generation = said.get("generation")
        good = said.get("in_force") is True and isinstance(generation, int)
        return InForce(
            generation=int(generation or 0) if good else 0,
            problem=str(said.get("problem") or ""),
            root=str(said.get("root") or ""),
        )

    def policy_in_force(self, present: QuotaFile) -> quota.Policy | None:
        """What the daemon acts on: the present file, or the last good one if that was kept; None: nobody can tell."""
        if present.policy is not None:
            return present.policy
        said = self.in_force()
        kept = self.former(said.generation) if said is not None and said.generation else None
        return kept.policy if kept is not None else None

    def _read(self, key: str) -> QuotaFile | None:
        try:
            stored = self._store.get(key, max_bytes=limits.QUOTA_FILE_MAX_BYTES)
        except NotFound:
            return None
        policy, problem = None, ""
        try:
            policy = quota.load(stored.data)
        except quota.QuotaFileError as error:
            problem = "; ".join(str(found) for found in error.problems)
        return QuotaFile(
            data=stored.data,
            generation=stored.meta.generation,
            written_at=stored.meta.updated,
            policy=policy,
            problem=problem,
        )

    # -- weighing -----------------------------------------------------------------------------------------------

    def forecast(self, before: quota.Policy | None, after: quota.Policy) -> Forecast:
        """What happens to the jobs of this moment if `after` takes the place of `before`.

        Args:
            before: None if nobody can tell what is in force: then all that `after` would stop counts as its doing.
        """
        doubts = [doubt] if (doubt := self._misplaced()) else []
        if not self._any_job():
            return Forecast(effect=PolicyEffect(), doubts=tuple(doubts))  # nothing can run, whatever the status says
        absence = self._absence()
        if absence:
            doubts.append(f"{absence}, so what is told here of jobs may be wrong")
        try:
            status = self.client.status()
            if status is None:
                raise InvalidDocument("no daemon has published it")
            jobs = live_jobs(status)
        except InvalidDocument as error:
            return Forecast(effect=PolicyEffect(), doubts=(*doubts, f"what runs is not known: {error}"))
        snapshot = Snapshot(
            policy=before,
            jobs=jobs,
            bastion_slots=limits.BASTION_HOST_JOBS_MAX,
            held_recently=published_holdings(status),
            restart_seconds=published_restart_seconds(status),
            user_usage=published_usage(status),
        )
        return Forecast(
            effect=effect_of(snapshot, after, self.client.clock.now()),
            snapshot=snapshot,
            entries=self.client.entries(),
            doubts=tuple(doubts),
        )

    def _any_job(self) -> bool:
        """Whether there is a job of which anything could run: those have a state."""
        return next(iter(self.client.store.list(keys.JOBS_STATES)), None) is not None

    def _absence(self) -> str:
        """Why the status may be old; empty if a daemon is at work."""
        client = self.client
        problem = DaemonPulse(client.store, client.clock, local=client.root.local).look()
        if problem:
            return problem
        meta = client.store.head(keys.LEASE)
        if meta is None:
            return "no daemon has ever run here"
        # Two machines' clocks are compared here, which is good enough for asking back and for nothing else.
        if client.clock.now() - meta.updated > _LEASE_STALE_SECONDS:
            return "the daemon has not renewed its lease for more than ten minutes, by this machine's clock"
        return ""

    def _misplaced(self) -> str:
        """Why the daemon would not read the file that lies here; empty if it does, or does not say."""
        said = self.in_force()
        if said is None or not said.root or _same(said.root, self.root.url):
            return ""
        own = str((self.client.status() or {}).get("root"))  # the daemon's spelling of its ROOT
        if said.root != own:
            return (
                f"the daemon reads its quota file under {said.root}, not under {self.root.url}: give --quota_root=URL"
            )
        if _same(self.client.root.url, self.root.url):
            return ""
        return (
            f"the daemon reads its quota file under {own}; to read {self.root.url} it must be started with --quota_root"
        )

    # -- replacing ----------------------------------------------------------------------------------------------

    def replace(self, data: bytes, present: QuotaFile) -> Replaced:
        """Keeps the present file, then puts the new one in its place.

        Raises:
            Refused: somebody else changed it since `present` was read; nothing was replaced.
        """
        former = self._keep(present) if present.generation else ""
        try:
            meta = self._store.put(keys.PROJECT_QUOTAS, data, generation=present.generation)
        except PreconditionFailed as error:
            raise Refused(
                f"somebody else changed {self.url} meanwhile, so nothing was replaced: "
                "run it again to see the difference"
            ) from error
        return Replaced(generation=meta.generation, former=former)

    def _keep(self, present: QuotaFile) -> str:
        key = keys.former_quota(present.written_at, present.generation)
        try:
            self._store.put(key, present.data, generation=0)
        except PreconditionFailed as error:
            if self._store.get(key, max_bytes=limits.QUOTA_FILE_MAX_BYTES).data != present.data:
                raise Refused(
                    f"{self.root.url}/{key} should keep the present file and holds another; move it away and try again"
                ) from error
        return key

    def await_in_force(self, generation: int) -> str:
        """Waits until the daemon says that it acts on the file of that generation.

        Returns:
            Why it does not; empty if it does.
        """
        client = self.client
        pulse = DaemonPulse(client.store, client.clock, local=client.root.local)
        poll = _POLL_LOCAL_SECONDS if client.root.local else _POLL_REMOTE_SECONDS
        until = client.clock.monotonic() + _PATIENCE_SECONDS
        while True:
            said = self.in_force()
            if said is not None and said.generation == generation:
                return ""
            meta = self._store.head(keys.PROJECT_QUOTAS)
            if meta is None or meta.generation != generation:
                return "somebody else has changed the file since"
            absence = pulse.look()
            if absence:
                return f"{absence}; the file takes effect when one runs"
            if client.clock.monotonic() >= until:
                why = said.problem if said is not None else ""
                misplaced = self._misplaced()
                return misplaced or why or f"the daemon has not taken it up within {_PATIENCE_SECONDS:.0f} s"
            client.clock.sleep(poll)


def _same(one: str, other: str) -> bool:
    """Whether both mean one ROOT; a folder may be spelled through links."""
    if "://" in one or "://" in other:
        return one == other
    return os.path.realpath(one) == os.path.realpath(other)
