"""The finisher's command: wait until all jobs are submitted, then run `up`. Its success lets the members start.

`step` is called again and again; each step may fail with a StoreError and be repeated. A finisher that lost its host
begins anew, and `up` learns which time it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from bastion.benchmark import documents
from bastion.benchmark.environment import Lines, Programs
from bastion.benchmark.layout import Matrix
from bastion.client.jobs.client import Client
from bastion.core import limits


class Begin:
    """The state of one running of the command.

    Attributes:
        said: What there is to say since the last step; the caller empties it.
    """

    def __init__(self, client: Client, matrix: Matrix, up: Sequence[str], programs: Programs) -> None:
        self._client = client
        self._matrix = matrix
        jobs = sum(len(cell.repeats) for cell in matrix.cells)
        self._until = client.clock.monotonic() + limits.BENCHMARK_SUBMIT_SECONDS + jobs / 2
        self._submitted = False
        self.said: list[str] = []
        self._lines = Lines(client, matrix.name, matrix.run, "up", up, programs, self.said, stop_at_failure=True)

    def step(self) -> int | None:
        """Go on; return the exit code at the end."""
        if not self._submitted:
            found = documents.read_submitted(self._client.store, self._matrix.name, self._matrix.run)
            if found is None:
                return self._give_up() if self._client.clock.monotonic() >= self._until else None
            self._submitted = True
            jobs = len(found.jobs) - 1
            self.said.append("the only job is submitted" if jobs == 1 else f"all {jobs} jobs are submitted")
        return self._lines.step()

    def _give_up(self) -> int:
        self.said.append(
            "the client did not submit all jobs in time, so the run ends; run the file again: bastion benchmark run"
        )
        return 1
