"""The tear-down of a run: its jobs end, then the lines of `down` run.

It needs none of the run's documents, because whoever may write below `benchmarks/` can delete them: the lines are in
the finisher's own spec, which the daemon keeps, and the daemon knows the jobs of the group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bastion.benchmark.environment import Lines, Programs
from bastion.client.jobs import groups
from bastion.client.jobs.client import Client
from bastion.client.jobs.job_info import Stage
from bastion.core import limits, plurals
from bastion.core.errors import EXIT_INFRASTRUCTURE

# Jobs that are cancelled at once.
_TOGETHER = 256


def live_in_group(client: Client, group: str, user_id: str, finisher: str) -> set[str]:
    """The jobs of the group that have not ended, without the finisher."""
    members = groups.members(client, group, user_id)
    return {each.name for each in members if each.stage is not Stage.COMPLETED} - {finisher}


class TearDown:
    """The state of one try.

    Args:
        live: Return the members that have not ended.
        try_number: Of the cleanup command, from 1. The last one runs `down` even if jobs do not end.
        only_of: The user whose jobs it may stop, where it has more rights than the user; None: the caller's do.
        said: What there is to say; the caller empties it.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        run: str,
        down: Sequence[str],
        programs: Programs,
        said: list[str],
        *,
        live: Callable[[], set[str]],
        try_number: int,
        only_of: str | None = None,
    ) -> None:
        self._client = client
        self._name = name
        self._only_of = only_of
        self._live = live
        self._last = try_number >= limits.BENCHMARK_FINISH_TRIES
        self._until = client.clock.monotonic() + limits.BENCHMARK_STOP_SECONDS
        self._cancelled: set[str] = set()
        self._stopped = False
        self.said = said
        self._lines = Lines(client, name, run, "down", down, programs, said, stop_at_failure=False)

    @property
    def down_began(self) -> bool:
        return self._stopped

    def step(self) -> int | None:
        """Go on; return the exit code at the end."""
        return self._lines.step() if self._stopped else self._stop()

    def _stop(self) -> int | None:
        live = self._live()
        jobs = sorted(live - self._cancelled)
        for first in range(0, len(jobs), _TOGETHER):  # what is done need not be repeated after a fault
            part = jobs[first : first + _TOGETHER]
            done = groups.cancel_all(self._client, part, by=f"benchmark {self._name}", only_of=self._only_of)
            self._cancelled.update(part)
            self.said += [f"cancelled {each.name}" for each in done]
        if not live:
            self._stopped = True
        elif self._client.clock.monotonic() >= self._until:
            what = f"{plurals.count(len(live), 'job')} did not end: {', '.join(sorted(live)[:5])}"
            if not self._last:
                self.said.append(f"{what}; trying again")
                return EXIT_INFRASTRUCTURE
            self.said.append(f"{what}; running down all the same, because this is the last try")
            self._stopped = True
        return None
