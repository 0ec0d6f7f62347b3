"""Claims and reports of live runs: only what a run's own hosts signed is read.

Hosts of all runs may write to the same folders. A report that is forged, replayed or deleted changes nothing: the last
valid one stays in force while this daemon lives, and the host writes it again.
"""

from __future__ import annotations

from collections.abc import Mapping

from bastion.core.bucket import protocol
from bastion.core.bucket.protocol import Claim, Order, Report
from bastion.core.errors import InvalidDocument


class Proofs:
    """The public keys of live runs, and the last valid report of each of their hosts."""

    def __init__(self) -> None:
        self._publics: Mapping[str, str] = {}
        self._reports: dict[str, Report] = {}

    def use(self, publics: Mapping[str, str]) -> None:
        """Set the public keys of all live runs, by run; forget the reports of others."""
        same = {run for run, public in publics.items() if self._publics.get(run) == public}
        self._publics = publics
        self._reports = {name: report for name, report in self._reports.items() if _run(name) in same}

    def report(self, name: str) -> Report | None:
        """Return the last valid report by `<run>/reports/<i>`."""
        return self._reports.get(name)

    def read_claim(self, name: str, data: bytes) -> Claim:
        """Parse `<run>.<tag>`; raises InvalidDocument unless the run's hosts, or a daemon, signed it."""
        run = name.partition(".")[0]
        claim = protocol.read_signed(Claim, data, self._public(run))
        if claim.run != run:
            raise InvalidDocument(f"it is the claim of run {claim.run!r}")
        return claim

    def read_run_object(self, name: str, data: bytes) -> Order | Report:
        """Parse an order, or a report that its host signed and that is not older than one already read.

        Raises InvalidDocument.
        """
        if name.endswith("/order"):
            return protocol.read(Order, data)
        report = protocol.read_signed(Report, data, self._public(_run(name)))
        if f"{report.run}/reports/{report.host}" != name:
            raise InvalidDocument(f"it is the report of host {report.host} of run {report.run!r}")
        known = self._reports.get(name)
        if known is not None and report.sequence < known.sequence:
            raise InvalidDocument(
                f"its sequence {report.sequence} is older than {known.sequence}, which was here before"
            )
        self._reports[name] = report
        return report

    def _public(self, run: str) -> str:
        return self._publics.get(run, "")


def _run(name: str) -> str:
    return name.partition("/")[0]
