"""The local bastion: a daemon, an emulated Cloud TPU and an emulated Cloud Storage, with a folder as the bucket.

Everything is below one home folder:

    buckets/permanent/local-bastion/   the bastion's ROOT, quota file included
    emulator/                          the Cloud TPU emulator's state and its VMs
    emulator-kubernetes/               the same of an emulated Kubernetes cluster, if the user wants one
    hosts/                             jobs without a slice, one folder each
    agent/                             the agent that slices run, as last packed
    run/                               pid files and output of the daemon, the emulator and the storage endpoint

The storage endpoint serves the folders in `buckets/` as `gs://` buckets, so that jobs use the same libraries as in the
cloud. `gs://permanent/...` is the bastion's own bucket.

The processes are detached: they outlive the command that started them, and are found again by pid and start time.
`down` ends them and everything that they started.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bastion.core.bucket import keys
from bastion.core.errors import BastionError, NotFound, PreconditionFailed
from bastion.emulators.gcs.address import StorageAddress
from bastion.emulators.gcs.address import locate as locate_storage
from bastion.emulators.kubernetes.address import KubernetesAddress
from bastion.emulators.kubernetes.address import locate as locate_kubernetes
from bastion.emulators.tpu.address import EmulatorAddress, locate
from bastion.processes import ProcessId, end_marked, marked
from bastion.wiring import local_kubernetes
from bastion.wiring.detached import detach
from bastion.wiring.roots import Root, local_root, open_root, storage_emulator

IDLE_EXIT_SECONDS = 3600.0
_START_SECONDS = 20.0
_STOP_SECONDS = 30.0
# A status of a hundred thousand jobs is smaller; a larger file is not ours, and may not fit into memory.
_SIGN_MAX_BYTES = 256 * 1024 * 1024
# All processes of one home have this in their environment, so that `down` finds them.
HOME_MARKER = "BASTION_LOCAL_HOME"


class LocalBastionError(BastionError):
    exit_code = 75


@dataclass(frozen=True, slots=True)
class LocalHome:
    """The folders of one local bastion."""

    path: Path

    @property
    def root(self) -> Root:
        return local_root(self.path)

    @property
    def emulator_dir(self) -> Path:
        return self.path / "emulator"

    @property
    def kubernetes_dir(self) -> Path:
        return self.path / "emulator-kubernetes"

    @property
    def buckets_dir(self) -> Path:
        return self.path / "buckets"

    @property
    def agent_dir(self) -> Path:
        return self.path / "agent"

    @property
    def run_dir(self) -> Path:
        return self.path / "run"

    def hosts_dir(self, root: Root) -> Path:
        """The folders of jobs without a slice, below one per bastion, so that no bastion sweeps another's jobs."""
        digest = hashlib.sha256(root.url.encode()).hexdigest()[:12]
        return self.path / "hosts" / f"{root.bastion}-{digest}"

    def ticks_dir(self, root: Root) -> Path:
        """Where the daemon of that ROOT keeps recorded ticks."""
        return self.path / "ticks" / self.hosts_dir(root).name

    @property
    def marker(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalStatus:
    """What runs now. `processes` counts all processes of this home, hosts and jobs included."""

    root: str
    daemon: ProcessId | None
    emulator: EmulatorAddress | None
    kubernetes: KubernetesAddress | None
    storage: StorageAddress | None
    processes: int

    @property
    def up(self) -> bool:
        return self.daemon is not None


STARTER_QUOTA = """\
# Who may use what. The daemon applies a saved change within a second.
# `bastion quota check FILE` explains it and finds errors.
[toml-schema]
version = "1"

# Units as in the instance type's name: tpu-v4-32 takes 32 of v4. Each emulated host is a process of this machine,
# so the pool is small: at most 16 hosts of one type.
[total_resources]
v2 = 128
v3 = 128
v4 = 128
v5litepod = 64
v5p = 128
v6e = 64

# Regular expressions; the whole user id must match.
[project_membership]
default = [{user}]

# On one machine a restart is cheap: idle units are lent at once.
[project_rules]
keep_idle_seconds = 0.0

[project_resources.default]
v2 = 1.0
v3 = 1.0
v4 = 1.0
v5litepod = 1.0
v5p = 1.0
v6e = 1.0
"""


def starter_quota(user: str) -> bytes:
    """Return a quota file that lets `user` run jobs in the project `default`."""
    pattern = re.escape(user).replace("\\", "\\\\").replace('"', '\\"')
    return STARTER_QUOTA.format(user=f'"{pattern}"').encode()


def status(home: LocalHome) -> LocalStatus:
    return LocalStatus(
        root=home.root.url,
        daemon=_daemon(home),
        emulator=locate(home.emulator_dir),
        kubernetes=locate_kubernetes(home.kubernetes_dir),
        storage=locate_storage(home.buckets_dir),
        processes=len(marked(HOME_MARKER, home.marker)),
    )


def up(home: LocalHome, *, user: str, say: Callable[[str], None]) -> Root:
    """Start what is not running, and wait until the daemon acts.

    Raises LocalBastionError, with the last output of what did not start.

    Args:
        user: For the starter quota file, if there is no quota file yet.
        say: Called with each step, for the user.
    """
    try:
        for folder in (home.path, home.run_dir, home.emulator_dir):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        Path(home.root.bucket).mkdir(parents=True, exist_ok=True)
        with _exclusive(home):
            storage = _begin_storage(home)
            _write_starter_quota(home, user)
            if local_kubernetes.is_set_up(home.kubernetes_dir):
                _begin_kubernetes(home, storage, say)
            daemon = _daemon(home)
            # A running one renews its lease constantly, but writes its status only when there is news.
            signs = [keys.STATUS, keys.LEASE]
            if daemon is None:
                say(f"starting the local bastion in {home.path}")
                daemon = _start_daemon(home, _await_storage(home, storage, say))
                signs = [keys.STATUS]
            _await_daemon(home, daemon, signs)
    except OSError as error:
        raise LocalBastionError(
            f"the local bastion cannot use the folder {home.path}: {error}; make it writable, "
            "free disk space, or set BASTION_HOME to another folder"
        ) from error
    return home.root


def down(home: LocalHome, *, say: Callable[[str], None]) -> None:
    """End the daemon, the emulator with its VMs, and all their jobs; the bucket stays.

    Raises LocalBastionError if a process did not end.
    """
    if not home.run_dir.exists():
        return
    with _exclusive(home):
        daemon = _daemon(home)
        if daemon is not None:
            say("stopping the daemon")
            daemon.signal(signal.SIGTERM)
            _await_end(daemon)
        stop_emulator(home.emulator_dir)
        stop_kubernetes(home.kubernetes_dir)
        stop_storage(home.buckets_dir)
        if not end_marked(HOME_MARKER, home.marker, grace_seconds=5.0):
            left = ", ".join(str(process.pid) for process in marked(HOME_MARKER, home.marker))
            raise LocalBastionError(f"these processes of {home.path} did not end: {left}; kill them manually")
        (home.run_dir / "daemon.pid").unlink(missing_ok=True)


def stop_emulator(state_dir: Path) -> None:
    """End the emulator of a state folder with all its VMs."""
    address = locate(state_dir)
    if address is not None:
        address.process.signal(signal.SIGTERM)
        _await_end(address.process)


def stop_storage(buckets_dir: Path) -> None:
    address = locate_storage(buckets_dir)
    if address is not None:
        address.process.signal(signal.SIGTERM)
        _await_end(address.process)


def stop_kubernetes(state_dir: Path) -> None:
    """End the emulated cluster of a state folder with all its pods."""
    local_kubernetes.stop(state_dir, _await_end)


def _begin_kubernetes(home: LocalHome, storage: ProcessId | None, say: Callable[[str], None]) -> None:
    """Start the cluster unless it runs, and send jobs there. Its pods need the storage endpoint's address."""
    environment = {**os.environ, **_await_storage(home, storage, say), HOME_MARKER: home.marker}
    address = local_kubernetes.ensure_running(home.kubernetes_dir, home.run_dir / "kubernetes.log", environment)
    local_kubernetes.write_settings(open_root(home.root.url), home.kubernetes_dir, address)


def _begin_storage(home: LocalHome) -> ProcessId | None:
    """Start the storage endpoint unless it runs, or the user has chosen another; do not wait for it."""
    if storage_emulator() or locate_storage(home.buckets_dir) is not None:
        return None
    environment = {**os.environ, HOME_MARKER: home.marker}
    command = [sys.executable, "-m", "bastion.emulators.gcs", f"--dir={home.buckets_dir}"]
    return detach(command, home.run_dir / "storage.log", environment)


def _await_storage(home: LocalHome, starting: ProcessId | None, say: Callable[[str], None]) -> dict[str, str]:
    """Wait for the endpoint; return its environment variables for jobs. Jobs also run without it."""
    if storage_emulator():
        return {}
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        address = locate_storage(home.buckets_dir)
        if address is not None:
            return address.environment
        if starting is None or not starting.alive:
            break
        time.sleep(0.02)
    say(f"gs:// is not available to jobs: the storage endpoint did not start, see {home.run_dir / 'storage.log'}")
    return {}


def start_emulator(state_dir: Path, log: Path) -> EmulatorAddress | None:
    """Start the Cloud TPU emulator, detached; None if it is not ready in time (its output says why)."""
    state_dir.mkdir(parents=True, exist_ok=True)
    state_dir.chmod(0o700)
    log.parent.mkdir(parents=True, exist_ok=True)
    process = detach([sys.executable, "-m", "bastion.emulators.tpu", f"--state-dir={state_dir}"], log, dict(os.environ))
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        address = locate(state_dir)
        if address is not None:
            return address
        if process is None or not process.alive:
            return locate(state_dir)  # another one holds the folder's lock
        time.sleep(0.02)
    return None


def _start_daemon(home: LocalHome, storage: Mapping[str, str]) -> ProcessId:
    command = [
        sys.executable, "-m", "bastion.cli.main", "daemon", "run", f"--root={home.root.url}",
        f"--idle_exit_seconds={IDLE_EXIT_SECONDS:.0f}", "--stop_emulator_when_idle",
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


def _daemon(home: LocalHome) -> ProcessId | None:
    try:
        process = ProcessId.parse((home.run_dir / "daemon.pid").read_text())
    except OSError:
        return None
    return process if process is not None and process.alive else None


def _await_daemon(home: LocalHome, daemon: ProcessId, signs: Sequence[str]) -> None:
    """Wait until one of these objects names the daemon; the status means a complete tick."""
    store = open_root(home.root.url)
    deadline = time.monotonic() + _START_SECONDS
    needle = f'"process":"{daemon}"'.encode()
    while time.monotonic() < deadline:
        for sign in signs:
            with contextlib.suppress(NotFound):
                meta = store.head(sign)
                if meta is not None and meta.size <= _SIGN_MAX_BYTES and needle in store.get(sign).data:
                    return
        if not daemon.alive:
            break
        time.sleep(0.05)
    raise LocalBastionError(
        f"the local daemon did not start within {_START_SECONDS:.0f} s; its last output:\n"
        f"{_tail(home.run_dir / 'daemon.log')}"
    )


def _await_end(process: ProcessId) -> None:
    deadline = time.monotonic() + _STOP_SECONDS
    while process.alive:
        if time.monotonic() > deadline:
            process.signal(signal.SIGKILL)
        if time.monotonic() > deadline + 5:
            raise LocalBastionError(f"process {process.pid} did not end; kill it manually")
        time.sleep(0.02)


def _write_starter_quota(home: LocalHome, user: str) -> None:
    store = open_root(home.root.url)
    # A quota file in force that was removed since stays in force.
    if store.head(keys.PROJECT_QUOTAS) is None and store.head(keys.QUOTAS_IN_FORCE) is None:
        with contextlib.suppress(PreconditionFailed):  # another process's first quota file is as good
            store.put(keys.PROJECT_QUOTAS, starter_quota(user), generation=0)


@contextlib.contextmanager
def _exclusive(home: LocalHome) -> Iterator[None]:
    """Allow one `up` or `down` at a time for one home."""
    with (home.run_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _tail(log: Path, lines: int = 15) -> str:
    try:
        return "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:])
    except OSError as error:
        return f"({log} cannot be read: {error})"
