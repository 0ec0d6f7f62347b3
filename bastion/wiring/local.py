"""The local bastion: a daemon, an emulated Cloud TPU and an emulated Cloud Storage, with a folder as the bucket.

The processes are detached: they outlive the command that started them, and are found again by pid and start time.
`down` ends them and everything that they started.
"""

from __future__ import annotations

import contextlib
import fcntl
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from bastion.core.bucket import keys
from bastion.emulators.gcs.address import StorageAddress
from bastion.emulators.gcs.address import locate as locate_storage
from bastion.emulators.kubernetes.address import KubernetesAddress
from bastion.emulators.kubernetes.address import locate as locate_kubernetes
from bastion.emulators.markers import HOME_MARKER
from bastion.emulators.tpu.address import EmulatorAddress, locate
from bastion.processes import ProcessId, end_marked, marked
from bastion.wiring import local_daemon, local_emulators, local_kubernetes
from bastion.wiring.daemon_extra import check_daemon_extra
from bastion.wiring.local_home import LocalBastionError, LocalHome
from bastion.wiring.local_kubernetes import ClusterOptions
from bastion.wiring.local_starter_quota import write_starter_quota
from bastion.wiring.roots import Root


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


def status(home: LocalHome) -> LocalStatus:
    return LocalStatus(
        root=home.root.url,
        daemon=local_daemon.running_daemon(home),
        emulator=locate(home.emulator_dir),
        kubernetes=locate_kubernetes(home.kubernetes_dir),
        storage=locate_storage(home.buckets_dir),
        processes=len(marked(HOME_MARKER, home.marker)),
    )


def up(home: LocalHome, *, user: str, say: Callable[[str], None], cluster: ClusterOptions | None = None) -> Root:
    """Start what is not running, and wait until the daemon acts.

    Raises LocalBastionError, with the last output of what did not start.

    Args:
        user: For the starter quota file, if there is no quota file yet.
        say: Called with each step, for the user.
        cluster: The emulated cluster that this bastion has from now on. None: it has one only if it had one before.
    """
    check_daemon_extra("the bastion on this machine", extra="local")
    try:
        for folder in (home.path, home.run_dir, home.emulator_dir):
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
        Path(home.root.bucket).mkdir(parents=True, exist_ok=True)
        with _exclusive(home):
            storage = local_emulators.begin_storage(home)
            if cluster is not None:
                local_kubernetes.set_up(home.kubernetes_dir, cluster)
            write_starter_quota(home, user)  # it has the types of the cluster's pools
            if local_kubernetes.is_set_up(home.kubernetes_dir):
                local_emulators.begin_kubernetes(home, storage, say, wanted=cluster is not None)
            daemon = local_daemon.running_daemon(home)
            # A running one renews its lease constantly, but writes its status only when there is news.
            signs = [keys.STATUS, keys.LEASE]
            if daemon is None:
                say(f"starting the local bastion in {home.path}")
                daemon = local_daemon.start_daemon(home, local_emulators.await_storage(home, storage, say))
                signs = [keys.STATUS]
            local_daemon.await_daemon(home, daemon, signs, say)
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
        daemon = local_daemon.running_daemon(home)
        if daemon is not None:
            say("stopping the daemon")
            daemon.signal(signal.SIGTERM)
            local_emulators.await_end(daemon)
        local_emulators.stop_emulator(home.emulator_dir)
        local_emulators.stop_kubernetes(home.kubernetes_dir)
        local_emulators.stop_storage(home.buckets_dir)
        if not end_marked(HOME_MARKER, home.marker, grace_seconds=5.0):
            left = ", ".join(str(process.pid) for process in marked(HOME_MARKER, home.marker))
            raise LocalBastionError(f"these processes of {home.path} did not end: {left}; kill them manually")
        (home.run_dir / "daemon.pid").unlink(missing_ok=True)


@contextlib.contextmanager
def _exclusive(home: LocalHome) -> Iterator[None]:
    """Allow one `up` or `down` at a time for one home."""
    with (home.run_dir / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
