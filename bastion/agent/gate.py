"""The worker gate: the first to create the claim of a run decides whether its hosts may run the command.

Host 0 of the job creates the claim; the others wait for it. With `gather_hosts` host 0 waits until every host of the
attempt has written a report. A daemon that gives the attempt up creates a closed claim.

Invariants:
* A command runs only behind a claim with this attempt's token.
* A lost reply is not a second claim: host 0 recognizes its own token and boot id.
* A host that rebooted after the claim was made does not pass: the command may have run here.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum

from bastion.agent.identity import HostIdentity
from bastion.core import limits
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import Claim, Report
from bastion.core.errors import InvalidDocument, NotFound, PreconditionFailed
from bastion.ports import ObjectStore

# Hosts that a message names.
_NAMES_MAX = 8
# Reports that host 0 reads at the same time.
_READ_AT_ONCE = 16


class GateVerdict(Enum):
    WAIT = "wait"
    OPEN = "open"
    REFUSED = "refused"
    RESTARTED = "restarted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """What the gate says now: why, if not open; the claim's `address` (`coordinator`) and `hosts`, if open."""

    verdict: GateVerdict
    message: str = ""
    coordinator: str = ""
    hosts: tuple[str, ...] = ()


class Gate:
    """The gate of one run, as one of its hosts sees it."""

    def __init__(
        self,
        store: ObjectStore,
        identity: HostIdentity,
        *,
        boot_id: str,
        coordinator: Callable[[], str],
        reported_by_other_boot: bool,
    ) -> None:
        """Make the gate; `look` reads or creates the claim.

        Args:
            coordinator: Chooses the address to publish; called once, on host 0.
            reported_by_other_boot: Whether this host reported in another boot. If the claim then exists at the first
                look, the command may have run here.
        """
        self._store = store
        self._identity = identity
        self._boot_id = boot_id
        self._coordinator = coordinator
        self._may_have_run = reported_by_other_boot
        self._key = keys.claim(identity.arguments.run)
        self._mine: Claim | None = None
        self._missing = ""

    def look(self) -> Passage:
        """Try to pass. Host 0 must have read an order to run. Raises StoreError if the state is unknown."""
        try:
            claim = self._create_or_read() if self._identity.host == 0 else self._read()
        except InvalidDocument as error:
            return Passage(verdict=GateVerdict.REFUSED, message=f"the claim of this run is unreadable: {error}")
        if claim is None:
            self._may_have_run = False
            return Passage(verdict=GateVerdict.WAIT, message=self._missing)
        return self._judge(claim)

    def _create_or_read(self) -> Claim | None:
        if self._identity.arguments.gather_hosts:
            claim = self._read()
            if claim is not None:
                return claim
            self._missing = self._missing_hosts()
            if self._missing:
                return None
        if self._mine is None:
            self._mine = Claim(
                run=self._identity.arguments.run,
                token=self._identity.run_key.public,
                boot_id=self._boot_id,
                address=self._coordinator(),
                hosts=self._addresses(),
            )
        try:
            self._store.put(self._key, self._mine.to_bytes(), generation=0)
        except PreconditionFailed:
            return self._read()
        self._may_have_run = False
        return self._mine

    def _missing_hosts(self) -> str:
        """Which other hosts have no report of this run yet; empty if none. Raises StoreError."""
        prefix = keys.reports(self._identity.arguments.run)
        seen = {meta.key.removeprefix(prefix) for meta in self._store.list(prefix)}
        others = (host for host in range(self._identity.num_hosts) if host != self._identity.host)
        missing = [str(host) for host in others if str(host) not in seen]
        if not missing:
            return ""
        more = f" and {len(missing) - _NAMES_MAX} more" if len(missing) > _NAMES_MAX else ""
        hosts = "the report of host" if len(missing) == 1 else "the reports of hosts"
        return f"waiting for {hosts} {', '.join(missing[:_NAMES_MAX])}{more}"

    def _addresses(self) -> list[str] | None:
        """The addresses of all hosts, from their reports; None if nobody needs them. Raises StoreError."""
        identity = self._identity
        if not identity.gpus or not identity.arguments.gather_hosts or identity.num_hosts == 1:
            return None
        others = [host for host in range(identity.num_hosts) if host != identity.host]
        with ThreadPoolExecutor(_READ_AT_ONCE, thread_name_prefix="gate") as pool:
            found = dict(zip(others, pool.map(self._address_of, others), strict=True))
        found[identity.host] = identity.address
        return [found[host] for host in range(identity.num_hosts)] if all(found.values()) else None

    def _address_of(self, host: int) -> str:
        key = keys.report(self._identity.arguments.run, host)
        try:
            report = protocol.read(Report, self._store.get(key, max_bytes=limits.REPORT_MAX_BYTES).data)
        except InvalidDocument:
            return ""
        return report.address or ""

    def _read(self) -> Claim | None:
        try:
            return protocol.read(Claim, self._store.get(self._key, max_bytes=limits.CLAIM_MAX_BYTES).data)
        except NotFound:
            return None

    def _judge(self, claim: Claim) -> Passage:
        if claim.closed:
            return Passage(verdict=GateVerdict.REFUSED, message=f"the gate is closed: {claim.closed}")
        if claim.token != self._identity.run_key.public:
            return Passage(verdict=GateVerdict.REFUSED, message="the claim belongs to another attempt of the same name")
        rebooted = claim.boot_id != self._boot_id if self._identity.host == 0 else self._may_have_run
        if rebooted:
            return Passage(
                verdict=GateVerdict.RESTARTED,
                message="the host rebooted after the attempt had begun; a try never runs twice",
            )
        return Passage(verdict=GateVerdict.OPEN, coordinator=claim.address, hosts=tuple(claim.hosts or ()))
