"""The worker gate: the first to create the claim of a run decides whether its hosts may run the command.

Host 0 of the job creates the claim; the others wait for it. With `gather_hosts` host 0 waits until every host of the
attempt has written a report. A daemon that gives the attempt up creates a closed claim.

Invariants:
* A command runs only behind a claim that this run's key signed, under a name that follows from the key.
* A lost reply is not a second claim: host 0 recognizes its own boot id.
* Only reports that this run's hosts signed count.
* A host that rebooted after the claim was made does not pass: the command may have run here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        self._run_key = identity.run_key
        self._key = keys.claim(identity.arguments.run, self._run_key.claim_tag)
        self._reports: dict[int, tuple[int, Report | None]] = {}  # of other hosts: the generation read, and if valid
        self._mine: Claim | None = None
        self._missing = ""

    def look(self) -> Passage:
        """Try to pass. Host 0 must have read an order to run. Raises StoreError if the state is unknown."""
        try:
            claim = self._create_or_read() if self._identity.host == 0 else self._read()
        except InvalidDocument as error:
            return Passage(verdict=GateVerdict.REFUSED, message=f"the claim of this run is not valid: {error}")
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
            claim = Claim(
                run=self._identity.arguments.run,
                boot_id=self._boot_id,
                address=self._coordinator(),
                hosts=self._addresses(),
            )
            self._mine = protocol.sign(claim, self._run_key)
        try:
            self._store.put(self._key, self._mine.to_bytes(), generation=0)
        except PreconditionFailed:
            return self._read()
        self._may_have_run = False
        return self._mine

    def _missing_hosts(self) -> str:
        """Which other hosts have no report of this run yet; empty if none. Raises StoreError."""
        prefix = keys.reports(self._identity.arguments.run)
        listed = {meta.key.removeprefix(prefix): meta.generation for meta in self._store.list(prefix)}
        others = [host for host in range(self._identity.num_hosts) if host != self._identity.host]
        found = {host: listed[str(host)] for host in others if str(host) in listed}
        self._read_reports({host: at for host, at in found.items() if self._reports.get(host, (0, None))[0] != at})
        missing = [str(host) for host in others if host not in found or self._reports[host][1] is None]
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
        found = {host: report.address for host, (_, report) in self._reports.items() if report is not None}
        found[identity.host] = identity.address
        addresses = [found.get(host) or "" for host in range(identity.num_hosts)]
        return addresses if all(addresses) else None

    def _read_reports(self, wanted: Mapping[int, int]) -> None:
        """Read the reports of these hosts, given with the generations in a listing."""
        if not wanted:
            return
        with ThreadPoolExecutor(_READ_AT_ONCE, thread_name_prefix="gate") as pool:
            self._reports.update(zip(wanted, pool.map(self._read_report, wanted, wanted.values()), strict=True))

    def _read_report(self, host: int, generation: int) -> tuple[int, Report | None]:
        """Return the generation read, and the report; None if this run's hosts did not sign it."""
        run = self._identity.arguments.run
        try:
            stored = self._store.get(keys.report(run, host), max_bytes=limits.REPORT_MAX_BYTES)
            report = protocol.read_signed(Report, stored.data, self._run_key.public)
        except NotFound:
            return 0, None
        except InvalidDocument:
            return generation, None
        return stored.meta.generation, report if (report.run, report.host) == (run, host) else None

    def _read(self) -> Claim | None:
        try:
            data = self._store.get(self._key, max_bytes=limits.CLAIM_MAX_BYTES).data
            return protocol.read_signed(Claim, data, self._run_key.public)
        except NotFound:
            return None

    def _judge(self, claim: Claim) -> Passage:
        if claim.closed:
            return Passage(verdict=GateVerdict.REFUSED, message=f"the gate is closed: {claim.closed}")
        if claim.run != self._identity.arguments.run:
            return Passage(verdict=GateVerdict.REFUSED, message="the claim belongs to another run")
        rebooted = claim.boot_id != self._boot_id if self._identity.host == 0 else self._may_have_run
        if rebooted:
            return Passage(
                verdict=GateVerdict.RESTARTED,
                message="the host rebooted after the attempt had begun; a try never runs twice",
            )
        return Passage(verdict=GateVerdict.OPEN, coordinator=claim.address, hosts=tuple(claim.hosts or ()))
