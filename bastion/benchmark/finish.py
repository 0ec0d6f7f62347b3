"""The finisher's cleanup command: stop what is left of the run, run `down`, collect, report.

It starts when no other job of the group is left, at the deadline, or when the run is cancelled (ADR 57). `down` comes
before the collecting: what it removes costs money, and all results are in the bucket already. `step` is called again
and again; each step may fail with a StoreError and be repeated. A try that fails is followed by another, and `down`
learns which time it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeAlias

from bastion.benchmark.collect import ReadValues, collect
from bastion.benchmark.environment import Programs
from bastion.benchmark.layout import Matrix, Outcome
from bastion.benchmark.tear_down import TearDown
from bastion.client.jobs.client import Client
from bastion.core.bucket import keys
from bastion.core.errors import BastionError, PreconditionFailed, StoreUnavailable

Report: TypeAlias = Callable[[], object]


class _Phase(Enum):
    TEARING_DOWN = "tearing down"
    COLLECTING = "collecting"
    REPORTING = "reporting"


class Finish:
    """The state of one try.

    Args:
        try_number: Of the cleanup command, from 1. The last one runs `down` even if jobs do not end.
        only_of: As in `TearDown`.

    Attributes:
        said: What there is to say since the last step; the caller empties it.
    """

    def __init__(
        self,
        client: Client,
        matrix: Matrix,
        down: Sequence[str],
        programs: Programs,
        *,
        try_number: int,
        read_values: ReadValues,
        report: Report,
        only_of: str | None = None,
    ) -> None:
        self._client = client
        self._matrix = matrix
        self._read_values = read_values
        self._report = report
        self._phase = _Phase.TEARING_DOWN
        self._code = 0
        self.said: list[str] = []
        self._tear_down = TearDown(
            client,
            matrix.name,
            matrix.run,
            down,
            programs,
            self.said,
            live=lambda: live_jobs(client, matrix),
            try_number=try_number,
            only_of=only_of,
        )

    def step(self) -> int | None:
        """Go on; return the exit code at the end."""
        match self._phase:
            case _Phase.TEARING_DOWN:
                code = self._tear_down.step()
                if code is not None and not self._tear_down.down_began:
                    return code
                if code is not None:
                    self._code, self._phase = code, _Phase.COLLECTING
            case _Phase.COLLECTING:
                self._tell(collect(self._client, self._matrix, self._read_values))
                self._phase = _Phase.REPORTING
            case _Phase.REPORTING:
                self._write_report()
                return self._code
        return None

    def _write_report(self) -> None:
        """Write the report. That it cannot be written is no reason to tear down again."""
        try:
            self._report()
        except (StoreUnavailable, PreconditionFailed):
            raise
        except Exception as error:  # noqa: BLE001 - no fault of a report is worth another `down`
            run = f"{self._matrix.name}/{self._matrix.run}"
            self.said.append(f"there is no report: {_told(error)}; write it elsewhere: bastion benchmark report {run}")

    def _tell(self, outcomes: dict[Outcome, int]) -> None:
        self.said.append(", ".join(f"{count} {outcome.value}" for outcome, count in sorted(outcomes.items())))


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, BastionError) else f"{type(error).__name__}: {error}"


def live_jobs(client: Client, matrix: Matrix) -> set[str]:
    """The members that have not ended, by two listings. A spec that the daemon refuses counts until it is deleted."""
    members = {each.job for cell in matrix.cells for each in cell.repeats}
    found: set[str] = set()
    inbox = (keys.active("", client.inbox or matrix.user),) if client.takes_inboxes else ()
    for prefix in (keys.JOBS_ACTIVE, keys.JOBS_STATES, *inbox):
        for meta in client.store.list(f"{prefix}{matrix.name}-"):
            found.add(meta.key.removeprefix(prefix))
    return found & members
