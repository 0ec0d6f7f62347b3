"""The encrypting storage proxy beside a host's command: started before it, kept alive, ended after it.

Invariants:
* `serves` is true only while a proxy listens that this object started: its certificate is removed before each start and
  appears once it serves.
* A restart uses the same address and folders, so that clients and uploads in progress continue.
* A proxy that does not recover is a permanent `problem`. Clients still have its address, where nobody answers: nothing
  bypasses it.
* It is not part of the command (no marker, own group and session), and the kernel ends it with this agent.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from bastion import processes
from bastion.agent.backoff import Backoff
from bastion.agent.child_processes import ChildProcesses
from bastion.agent.environment import own_variables
from bastion.agent.logs.host_log import HostLog
from bastion.agent.sidecar.bypass import BypassWatch
from bastion.agent.sidecar.place import PROXY_MARKER, ProxyPlace, proxy_variables
from bastion.agent.wakeup import Wakeup
from bastion.core import limits
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import Order
from bastion.core.encryption.sidecar_contract import EXIT_CONFIGURATION, EXIT_OUT_OF_REACH, UPSTREAM
from bastion.processes import ProcessId

_log = logging.getLogger(__name__)

_BOUND_TO_US = Path(__file__).parent / "die_with_parent.py"
# The proxy as a program, for this Python.
PROGRAM = (sys.executable, *(["-I"] if sys.flags.isolated else []), "-m", "bastion.wiring.proxy_main")
_LOOK_SECONDS = 0.05
_LAST_BACKOFF_SECONDS = 5.0
# The minimum time for a start shortly before the deadline.
_LAST_CHANCE_SECONDS = 5.0
_LAST_LINE_CHARS = 300
# What a shell adds to a signal number in an exit code.
_SIGNALLED = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarTimes:
    """In seconds; see `bastion.core.limits`."""

    ready: float = limits.PROXY_READY_SECONDS
    back: float = limits.PROXY_BACK_SECONDS
    deaths: float = limits.PROXY_DEATHS_SECONDS
    end: float = limits.PROXY_END_SECONDS
    first_backoff: float = 0.25
    bypass: float = limits.PROXY_BYPASS_LOOK_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarProblem:
    """Why there is no proxy, permanently. `error` is `host_errors.PROXY_REFUSED` or `PROXY_FAILED`."""

    error: str
    message: str


class Sidecar:
    """One host's proxy in one attempt; idle until `start`.

    Attributes:
        serves: Whether it listens now.
        problem: Set when it is given up.
        done: It was ended, and its log is stored.
    """

    def __init__(
        self,
        place: ProxyPlace,
        *,
        program: Sequence[str],
        environ: Mapping[str, str],
        marker: str,
        child_processes: ChildProcesses,
        open_log: Callable[[Callable[[], None]], HostLog],
        rng: Random,
        on_change: Callable[[], None],
        times: SidecarTimes,
    ) -> None:
        """Make the keeper; `start` starts the proxy.

        Args:
            program: The command line, without arguments of its own.
            environ: The agent's environment.
            marker: Identifies a proxy that an earlier agent left.
            open_log: Makes a log for its output; calls back when part of it is done.
            on_change: Called from other threads when an attribute changed or a note came.
        """
        self.place = place
        self._program = tuple(program)
        self._environ = environ
        self._marker = marker
        self._child_processes = child_processes
        self._open_log = open_log
        self._on_change = on_change
        self._times = times
        self._backoff = Backoff(rng, first_seconds=times.first_backoff, last_seconds=_LAST_BACKOFF_SECONDS)
        self._wakeup = Wakeup()
        self._notes: deque[str] = deque()
        self._deaths: deque[float] = deque()
        self._variables: dict[str, str] = {}
        self._thread: threading.Thread | None = None
        self._ending = False
        self._abandoned = False
        self._has_served = False
        self._watch: BypassWatch | None = None
        self.serves = False
        self.problem: SidecarProblem | None = None
        self.done = False

    def start(self, order: Order, *, user: int | None = None) -> None:
        """Start, once; the first order counts for the whole attempt. `user`: the command's, if not the agent's."""
        if self._thread is not None:
            return
        self._variables = proxy_variables(
            self.place, own_variables(self._environ), order, marker=self._marker, user=user
        )
        self._watch = BypassWatch(
            upstream=self._variables.get(UPSTREAM, ""), period_seconds=self._times.bypass, notify=self._note
        )
        self._watch.start()
        self._thread = threading.Thread(target=self._work, name="proxy-keeper", daemon=True)
        self._thread.start()

    @property
    def started(self) -> bool:
        return self._thread is not None

    @property
    def settled(self) -> bool:
        """Whether it serves, or never will."""
        return self.serves or self.problem is not None

    def take_notes(self) -> list[str]:
        """New lines for the job's log, each once."""
        lines = []
        while self._notes:
            lines.append(self._notes.popleft())
        return lines

    def watch(self, members: Callable[[], Sequence[ProcessId]] | None) -> None:
        """Note which of these processes bypass the proxy."""
        if self._watch is not None:
            self._watch.of(members)

    def end(self) -> None:
        """End it, and store its log; sets `done`."""
        self._ending = True
        self._wakeup.set()
        if self._watch is not None:
            self._watch.stop()
        if self._thread is None:
            self.done = True

    def abandon(self) -> None:
        """End it, leave the rest of its log on the disk, and wait until it is gone."""
        self._abandoned = True
        self.end()
        if self._thread is not None:
            self._thread.join(self._times.end + 5.0)

    def end_orphan(self) -> None:
        processes.end_marked(PROXY_MARKER, self._marker, grace_seconds=0.0)

    # -- the keeper's thread; the kernel ties the process to it ------------------------------------------------------

    def _work(self) -> None:
        log: HostLog | None = None
        try:
            self.end_orphan()
            # The certificates are for the command, which may run as another user; the keys are not.
            for folder, mode in ((self.place.certificates, 0o755), (self.place.state, 0o700)):
                folder.mkdir(mode=mode, parents=True, exist_ok=True)
                folder.chmod(mode)
            log = self._open_log(self._wakeup.set)
            log.open()
            log.start()
            self._keep(log)
        except (OSError, ValueError) as error:
            self._give_up(host_errors.PROXY_FAILED, f"the storage proxy could not be started: {error}")
        finally:
            if log is not None:
                self._store(log)
            self.done = True
            self._on_change()

    def _keep(self, log: HostLog) -> None:
        down_since = time.monotonic()
        while not self._ending:
            self.place.certificate.unlink(missing_ok=True)
            process = self._child_processes.start(
                [sys.executable, "-I", "-S", str(_BOUND_TO_US), str(os.getpid()), *self._program],
                variables=self._variables,
                folder=self.place.state,
            )
            code, served = self._tend(process, log, give_up_at=down_since + self._times.back)
            if self._ending:
                return
            down_since = time.monotonic() if served else down_since
            text = f"the storage proxy {self._how(code, log.last_line[:_LAST_LINE_CHARS])}"
            if self._is_hopeless(code, text, down_since):
                return
            delay = self._backoff.next()
            self._note(f"{text}; restarting it")
            self._pause(delay)

    def _how(self, code: int | None, last_line: str) -> str:
        """How it ended, with its last line of output if it ended by itself."""
        if code is not None and code > _SIGNALLED:
            return f"was killed by signal {code - _SIGNALLED}"
        how = f"exited with code {code}" if code is not None else "did not start in time"
        return f"{how} ({last_line})" if last_line else how

    def _is_hopeless(self, code: int | None, text: str, down_since: float) -> bool:
        now = time.monotonic()
        if code == EXIT_CONFIGURATION:
            self._give_up(host_errors.PROXY_REFUSED, text)
        elif now - down_since >= self._times.back:
            self._give_up(host_errors.PROXY_FAILED, f"{text}, and has not served for {self._times.back:.0f} s")
        elif code != EXIT_OUT_OF_REACH:
            self._deaths.append(now)
            while now - self._deaths[0] > self._times.deaths:
                self._deaths.popleft()
            if len(self._deaths) >= limits.PROXY_DEATHS_MAX:
                often = f"{len(self._deaths)} times within {self._times.deaths:.0f} s"
                self._give_up(host_errors.PROXY_FAILED, f"{text}, {often}")
        return self.problem is not None

    def _tend(self, process: subprocess.Popen[bytes], log: HostLog, *, give_up_at: float) -> tuple[int | None, bool]:
        """Watch one process; return its exit code (None if it was killed before it served) and whether it served."""
        assert process.stdout is not None
        assert process.stderr is not None
        pump = log.pump({"stdout": os.dup(process.stdout.fileno()), "stderr": os.dup(process.stderr.fileno())})
        process.stdout.close()
        process.stderr.close()
        codes: list[int] = []

        def wait() -> None:
            codes.append(self._child_processes.wait(process))
            self._wakeup.set()

        threading.Thread(target=wait, name="proxy-waiter", daemon=True).start()
        deadline = min(time.monotonic() + self._times.ready, max(give_up_at, time.monotonic() + _LAST_CHANCE_SECONDS))
        served = late = False
        while not (codes or self._ending or late):
            if not served and self.place.certificate.exists():
                served = True
                self._is_up()
            late = not served and time.monotonic() >= deadline
            self._wakeup.wait(3600.0 if served else _LOOK_SECONDS)
        if not codes:
            self._end(process, codes, gently=not late)
        self.serves = False
        pump.finish()
        while not pump.done:
            self._wakeup.wait(_LOOK_SECONDS)
        return (None if late else codes[0] if codes else None), served

    def _is_up(self) -> None:
        if self._has_served:
            self._note("the storage proxy recovered")
        self._has_served = True
        self._backoff.reset()
        self.serves = True
        self._on_change()

    def _end(self, process: subprocess.Popen[bytes], codes: list[int], *, gently: bool) -> None:
        deadline = time.monotonic()
        if gently and not self._abandoned:
            process.send_signal(signal.SIGINT)
            deadline += self._times.end
        while not codes and time.monotonic() < deadline and not self._abandoned:
            self._wakeup.wait(_LOOK_SECONDS)
        while not codes:
            process.kill()
            self._wakeup.wait(_LOOK_SECONDS)

    def _store(self, log: HostLog) -> None:
        log.close()
        while not log.done and not self._abandoned:
            self._wakeup.wait(1.0)
        if not log.done:
            log.abandon()

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self._ending and (left := deadline - time.monotonic()) > 0:
            self._wakeup.wait(left)

    def _give_up(self, error: str, message: str) -> None:
        _log.error("%s", message)
        self.problem = SidecarProblem(error=error, message=message)
        self._on_change()

    def _note(self, text: str) -> None:
        self._notes.append(text)
        self._on_change()
