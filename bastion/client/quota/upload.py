"""A bastion's quota file for its administrator: read it, predict the effect of another, replace it.

The file may be in a private bucket of its own, so there are two stores: the quota file's, and the bastion's, whose
published status shows what is running and which file is in force.

Invariants:

* A file is replaced only if it is still the one that was read, and only after it was kept under `former/`.
* What is unknown becomes a doubt; nothing is guessed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import quota
from bastion.client.daemon_health import DaemonHealth
from bastion.client.jobs.client import Client
from bastion.client.jobs.overview import BastionRoot
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import InvalidDocument, NotFound, PreconditionFailed, Refused
from bastion.core.status.document import JobEntry, QuotaEntry
from bastion.core.status.jobs import published_snapshot
from bastion.ports import ObjectStore
from scheduler import Snapshot
from scheduler.simulation.policy_change import PolicyEffect, effect_of

# A daemon is considered gone after this time without a renewed lease; clocks of two machines differ by less.
_LEASE_STALE_SECONDS = 600.0
# A daemon polls every ten seconds at most; a busy store may delay it by a few polls.
_PATIENCE_SECONDS = 60.0
_POLL_LOCAL_SECONDS = 0.5
_POLL_REMOTE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaFile:
    """The quota file in the bucket.

    Attributes:
        data: Its bytes.
        generation: 0 if there is no file; then `data` is empty.
        written_at: In seconds since the epoch.
        policy: None if the file is missing or not valid.
        problem: What is wrong with it; empty if nothing is.
    """

    data: bytes = b""
    generation: int = 0
    written_at: float = 0.0
    policy: quota.Policy | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a new file would do to the jobs.

    Attributes:
        effect: On the jobs in the status.
        entries: Their entries in the status, by name.
        doubts: Why this may be wrong; empty if the status can be trusted.
        snapshot: The jobs, with the policy in force; None if there are none, or they are unknown.
    """

    effect: PolicyEffect
    snapshot: Snapshot | None = None
    entries: Mapping[str, JobEntry] = field(default_factory=dict)
    doubts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Replaced:
    """A replaced file. `former` is the key of the previous one; empty if there was none."""

    generation: int
    former: str


class QuotaClient:
    """Reads, checks and replaces the quota file of one bastion.

    Args:
        client: The bastion.
        store: Its keys are relative to the quota file's ROOT; the client's own store unless that is private.
        root: That ROOT.
    """

    def __init__(self, client: Client, store: ObjectStore, root: BastionRoot) -> None:
        self.client = client
        self._store = store
        self.root = root

    @property
    def url(self) -> str:
        """The quota file's URL."""
        return f"{self.root.url}/{keys.PROJECT_QUOTAS}"

    def now(self) -> float:
        """The present instant, in seconds since the epoch."""
        return self.client.clock.now()

    # -- looking ------------------------------------------------------------------------------------------------

    def present(self) -> QuotaFile:
        """Read the present file. Raises `Refused` if it is too large."""
        meta = self._store.head(keys.PROJECT_QUOTAS)
        if meta is None:
            return QuotaFile()
        if meta.size > limits.QUOTA_FILE_MAX_BYTES:
            raise Refused(f"{self.url} is {meta.size} bytes long, which is not a quota file; move it away first")
        return self._read(keys.PROJECT_QUOTAS) or QuotaFile()

    def former(self, generation: int) -> QuotaFile | None:
        """The kept file of this generation; None if it was not kept."""
        ending = f"-{generation}.config"
        kept = [meta for meta in self._store.list(keys.FORMER_QUOTAS) if meta.key.endswith(ending)]
        return self._read(kept[-1].key) if kept and kept[-1].size <= limits.QUOTA_FILE_MAX_BYTES else None

    def in_force(self) -> QuotaEntry | None:
        """Return what the daemon reports about the quota file; None without a status that we can read."""
        try:
            status = self.client.status()
        except InvalidDocument:
            return None
        return status.quota if status is not None else None

    def policy_in_force(self, present: QuotaFile) -> quota.Policy | None:
        """The policy in force: that of the present file, or of the last valid one if it was kept; None if unknown."""
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
        """Predict what happens to the present jobs if `after` replaces `before`.

        Args:
            before: None if unknown; then everything that `after` would stop counts as its effect.
        """
        doubts = [doubt] if (doubt := self.misplaced()) else []
        if not self._any_job():
            return Forecast(effect=PolicyEffect(), doubts=tuple(doubts))  # no job can be running
        absence = self._absence()
        if absence:
            doubts.append(f"{absence}, so the information about jobs may be out of date")
        try:
            status = self.client.status()
            if status is None:
                raise InvalidDocument("no daemon has published a status")
            snapshot = published_snapshot(status, before)
        except InvalidDocument as error:
            return Forecast(effect=PolicyEffect(), doubts=(*doubts, f"it is unknown what is running: {error}"))
        return Forecast(
            effect=effect_of(snapshot, after, self.client.clock.now()),
            snapshot=snapshot,
            entries=status.entries,
            doubts=tuple(doubts),
        )

    def _any_job(self) -> bool:
        """Whether a job may be running: such a job has a state."""
        return next(iter(self.client.store.list(keys.JOBS_STATES)), None) is not None

    def _absence(self) -> str:
        """Why the status may be out of date; empty if a daemon is running."""
        client = self.client
        problem = DaemonHealth(client.store, client.clock, local=client.root.local).look()
        if problem:
            return problem
        meta = client.store.head(keys.LEASE)
        if meta is None:
            return "no daemon has ever run here"
        # This compares the clocks of two machines, which is enough for a confirmation only.
        if client.clock.now() - meta.updated > _LEASE_STALE_SECONDS:
            return "the daemon has not renewed its lease for more than ten minutes, by this machine's clock"
        return ""

    def misplaced(self) -> str:
        """Why the daemon does not read this file; empty if it does, or does not say."""
        said = self.in_force()
        if said is None or not said.root or _same(said.root, self.root.url):
            return ""
        status = self.client.status()
        own = status.root if status is not None else ""  # as the daemon spells its ROOT
        if said.root != own:
            return f"the daemon reads its quota file under {said.root}, not under {self.root.url}; use --quota_root=URL"
        if _same(self.client.root.url, self.root.url):
            return ""
        return f"the daemon reads its quota file under {own}; to use {self.root.url}, start it with --quota_root"

    # -- replacing ----------------------------------------------------------------------------------------------

    def replace(self, data: bytes, present: QuotaFile) -> Replaced:
        """Keep the present file under another key, then replace it.

        Raises:
            Refused: it has changed since `present` was read; nothing was replaced.
        """
        former = self._keep(present) if present.generation else ""
        try:
            meta = self._store.put(keys.PROJECT_QUOTAS, data, generation=present.generation)
        except PreconditionFailed as error:
            raise Refused(
                f"someone else changed {self.url} in the meantime, so nothing was replaced: "
                "run the command again to see the difference"
            ) from error
        return Replaced(generation=meta.generation, former=former)

    def _keep(self, present: QuotaFile) -> str:
        key = keys.former_quota(present.written_at, present.generation)
        try:
            self._store.put(key, present.data, generation=0)
        except PreconditionFailed as error:
            if self._store.get(key, max_bytes=limits.QUOTA_FILE_MAX_BYTES).data != present.data:
                raise Refused(
                    f"cannot keep the present file: {self.root.url}/{key} holds another one; move it away and try again"
                ) from error
        return key

    def await_in_force(self, generation: int) -> str:
        """Wait until the file of that generation is in force; return why it is not, or an empty text."""
        client = self.client
        health = DaemonHealth(client.store, client.clock, local=client.root.local)
        poll = _POLL_LOCAL_SECONDS if client.root.local else _POLL_REMOTE_SECONDS
        until = client.clock.monotonic() + _PATIENCE_SECONDS
        while True:
            said = self.in_force()
            if said is not None and said.generation == generation:
                return ""
            meta = self._store.head(keys.PROJECT_QUOTAS)
            if meta is None or meta.generation != generation:
                return "someone else has changed the file since"
            absence = health.look()
            if absence:
                return f"{absence}; the file applies when one runs"
            if client.clock.monotonic() >= until:
                why = said.problem if said is not None else ""
                misplaced = self.misplaced()
                return misplaced or why or f"the daemon has not applied it within {_PATIENCE_SECONDS:.0f} s"
            client.clock.sleep(poll)


def _same(one: str, other: str) -> bool:
    """Whether both are the same ROOT; a folder may be spelled through links."""
    if "://" in one or "://" in other:
        return one == other
    return os.path.realpath(one) == os.path.realpath(other)
