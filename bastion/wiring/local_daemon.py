"""The daemon of the local bastion: a detached process, found again by pid and start time."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import InvalidDocument, NotFound
from bastion.core.model import lease
from bastion.core.model.bastion_host_jobs import SETTING, HostJobsMode
from bastion.emulators.markers import HOME_MARKER
from bastion.ports import ObjectStore
from bastion.processes import ProcessId
from bastion.wiring.detached import detach
from bastion.wiring.local_home import LocalBastionError, LocalHome
from bastion.wiring.roots import open_root

IDLE_EXIT_SECONDS = 3600.0
_START_SECONDS = 20.0
# After that, the user is told what the start waits for.
_QUIET_SECONDS = 2.0
# A status of a hundred thousand jobs is smaller; a larger file is not ours, and may not fit into memory.
_SIGN_MAX_BYTES = 256 * 1024 * 1024


def start_daemon(home: LocalHome, storage: Mapping[str, str]) -> ProcessId:
    command = [
        sys.executable, "-m", "bastion.cli.main", "daemon", "run", f"--root={home.root.url}",
        f"--idle_exit_seconds={IDLE_EXIT_SECONDS:.0f}", "--stop_emulator_when_idle",
        f"--{SETTING}={HostJobsMode.AS_DAEMON.value}",
    ]  # fmt: skip
    environment = {**os.environ, **storage, "BASTION_HOME": str(home.path), HOME_MARKER: home.marker}
    process = detach(command, home.run_dir / "daemon.log", environment)
    if process is None:
        raise LocalBastionError(f"the daemon ended at once:\n{_tail(home.run_dir / 'daemon.log')}")
    try:
        (home.run_dir / "daemon.pid").write_text(str(process))
    except OSError:
        # A daemon that nobody can find must not act beside the next one.
        process.signal(signal.SIGKILL)
        raise
    return process


def running_daemon(home: LocalHome) -> ProcessId | None:
    try:
        process = ProcessId.parse((home.run_dir / "daemon.pid").read_text())
    except OSError:
        return None
    return process if process is not None and process.alive else None


def await_daemon(home: LocalHome, daemon: ProcessId, signs: Sequence[str], say: Callable[[str], None]) -> None:
    """Wait until one of these objects names the daemon; the status means a complete tick."""
    store = open_root(home.root.url)
    deadline = time.monotonic() + _START_SECONDS
    quiet_until: float | None = time.monotonic() + _QUIET_SECONDS
    needle = f'"process":"{daemon}"'.encode()
    while time.monotonic() < deadline:
        for sign in signs:
            with contextlib.suppress(NotFound):
                meta = store.head(sign)
                if meta is not None and meta.size <= _SIGN_MAX_BYTES and needle in store.get(sign).data:
                    return
        if not daemon.alive:
            break
        if quiet_until is not None and time.monotonic() > quiet_until:
            quiet_until = None
            say(f"{_awaited(store, daemon)}, for up to {_START_SECONDS:.0f} s; see {home.run_dir / 'daemon.log'}")
        time.sleep(0.05)
    what = f"did not start within {_START_SECONDS:.0f} s" if daemon.alive else "ended at once"
    output = _tail(home.run_dir / "daemon.log")
    raise LocalBastionError(
        f"the local daemon {what}; its last output:\n{output}"
        if output
        else f"the local daemon {what} and wrote nothing; is the disk of {home.path} full?"
    )


def _awaited(store: ObjectStore, daemon: ProcessId) -> str:
    """Say what a daemon that started waits for."""
    try:
        held = lease.read(store.get(keys.LEASE, max_bytes=limits.LEASE_MAX_BYTES).data)
    except (NotFound, InvalidDocument):
        held = None
    if held is None or held.released or held.process == str(daemon):
        return f"waiting for the first look of the daemon, process {daemon.pid}, at the bucket, its slices and clusters"
    return f"waiting for the lease of an earlier daemon, process {held.process}, which did not give it back"


def _tail(log: Path, lines: int = 15) -> str:
    try:
        return "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:])
    except OSError as error:
        return f"({log} cannot be read: {error})"
