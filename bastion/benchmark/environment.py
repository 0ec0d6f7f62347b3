"""The command lines of `up` and `down`, one after the other, on the bastion."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

from bastion.benchmark import layout
from bastion.client.jobs.client import Client
from bastion.core import limits
from bastion.core.errors import PreconditionFailed
from bastion.core.exit_codes import exit_text
from bastion.core.instants import to_rfc3339

TIMED_OUT = 124
_NOT_STARTED = 126


class Program(Protocol):
    """A command line that was started."""

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        ...

    def end(self) -> None:
        """End it with all that it started."""
        ...


class Programs(Protocol):
    """Starts command lines with bash, in the working directory of the finisher; their output is the job's."""

    def start(self, line: str, variables: Mapping[str, str]) -> Program:
        """Start a line. Raises OSError if this machine cannot."""
        ...


class Lines:
    """One running of `up` or `down`, which it counts in the bucket: `BASTION_BENCHMARK_TIME` is 1, then 2, and so on.

    All lines together have `limits.BENCHMARK_ENVIRONMENT_SECONDS`. With `stop_at_failure` a line that fails is the
    last; without, the others run too.
    """

    def __init__(
        self,
        client: Client,
        name: str,
        run: str,
        what: Literal["up", "down"],
        lines: Sequence[str],
        programs: Programs,
        said: list[str],
        *,
        stop_at_failure: bool,
    ) -> None:
        self._client = client
        self._name = name
        self._run = run
        self._what = what
        self._waiting = list(lines)
        self._programs = programs
        self._said = said
        self._stop_at_failure = stop_at_failure
        self._time = 0
        self._until = 0.0
        self._line = ""
        self._program: Program | None = None
        self._code = 0

    def step(self) -> int | None:
        """Go on; return the exit code of the first line that failed, or 0, at the end."""
        if not self._time:
            self._time = self._count()
            self._until = self._client.clock.monotonic() + limits.BENCHMARK_ENVIRONMENT_SECONDS
        if self._program is not None:
            code = self._program.poll()
            if code is None and self._client.clock.monotonic() < self._until:
                return None
            how = exit_text(code)
            if code is None:
                self._program.end()
                self._waiting.clear()
                code = TIMED_OUT
                minutes = limits.BENCHMARK_ENVIRONMENT_SECONDS / 60
                how = f"{exit_text(code)}; all lines of {self._what} have {minutes:.0f} minutes"
            self._program = None
            if code:
                self._failed(code, how)
        if not self._waiting:
            return self._code
        self._line = self._waiting.pop(0)
        self._said.append(f"{self._what}, time {self._time}: {self._line}")
        try:
            self._program = self._programs.start(self._line, self._variables())
        except OSError as error:
            self._failed(_NOT_STARTED, f"could not be started: {error.strerror or error}")
        return None

    def _failed(self, code: int, how: str) -> None:
        self._said.append(f"{self._what}: {self._line!r} {how}")
        self._code = self._code or code
        if self._stop_at_failure:
            self._waiting.clear()

    def _count(self) -> int:
        """Claim the number of this running."""
        store = self._client.store
        data = to_rfc3339(self._client.clock.now()).encode()
        number = 1
        while True:
            key = layout.times(self._name, self._run, self._what, number)
            if store.head(key) is None:
                try:
                    store.put(key, data, generation=0)
                except PreconditionFailed:
                    continue
                return number
            number += 1

    def _variables(self) -> dict[str, str]:
        return {
            "BASTION_BENCHMARK": f"{self._name}/{self._run}",
            "BASTION_BENCHMARK_TIME": str(self._time),
        }
