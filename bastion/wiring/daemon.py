"""Build the daemon of a ROOT: its stores, provisioners and intervals. Loads google and grpc for slices only."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.resources
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

from bastion import processes
from bastion.adapters import agent_packer
from bastion.adapters.bastion_host import BastionHostProvisioner
from bastion.adapters.by_place import ByPlace
from bastion.adapters.inbox_proof import BucketProof, FolderProof
from bastion.adapters.loading import LIBRARIES
from bastion.adapters.no_slices import NoSlices
from bastion.adapters.reconnecting_provisioner import ReconnectingProvisioner
from bastion.adapters.system_clock import SystemClock
from bastion.adapters.tick_files import TickFiles
from bastion.core import recorded_tick
from bastion.core.bucket import keys
from bastion.core.errors import Refused
from bastion.core.model.bastion_host_jobs import HostJobsMode
from bastion.core.model.provisioning import BUILT_IN, Provisioning
from bastion.core.model.world import Installation
from bastion.core.run_keys import RunKeys
from bastion.core.tick import TickInput, TickOutput
from bastion.daemon.act.agents import Agents
from bastion.daemon.daemon import Daemon
from bastion.daemon.observe.observer import Provisioners
from bastion.daemon.observe.policy_source import PolicyStatus
from bastion.daemon.run_secret import read_run_keys
from bastion.daemon.tick import DaemonOptions
from bastion.emulators.tpu.address import EmulatorAddress, locate
from bastion.ports import ObjectStore, Provisioner
from bastion.wiring.daemon_extra import check_daemon_extra
from bastion.wiring.host_jobs import HostJobs
from bastion.wiring.kubernetes_clusters import KubernetesClusters, connector
from bastion.wiring.local_disk import DiskWatch
from bastion.wiring.local_emulators import start_emulator
from bastion.wiring.local_home import LocalHome
from bastion.wiring.roots import Root, is_near, make_folders, open_root, parse_root, secrets_folder
from bastion.wiring.s3_hosts import problems_on_s3
from bastion.wiring.tpu_slices import CloudApi, CloudSlices

# Do not restart an emulator that fails in every tick.
_EMULATOR_RETRY_SECONDS = 15.0


# The maximum size of one job's files on this machine, in MiB.
JOB_DISK_VARIABLE = "BASTION_JOB_DISK_MIB"

# Where slices come from; `config/daemon.toml` has the details of the cloud.
SLICES = ("cloud", "emulated", "none")


_SLICES_TEXT = {
    "cloud": f"slices come from the Cloud TPU API, as {keys.DAEMON_SETTINGS} says",
    "emulated": "slices are emulated on this machine",
    "none": "this daemon provisions no slices: jobs without one run on this machine, others are refused",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pace:
    """Polling intervals. Requests to a cloud bucket cost money, and an object there takes about one write a second."""

    tick_seconds: float
    busy_tick_seconds: float
    poll_seconds: float
    lease_ttl_seconds: float


_LOCAL_PACE = _Pace(tick_seconds=1.0, busy_tick_seconds=0.2, poll_seconds=1.0, lease_ttl_seconds=5.0)
_CLOUD_PACE = _Pace(tick_seconds=10.0, busy_tick_seconds=2.0, poll_seconds=5.0, lease_ttl_seconds=60.0)


def build_daemon(
    root: Root,
    *,
    home: LocalHome,
    owner: str,
    slices: str | None = None,
    quota_root: str | None = None,
    tick_seconds: float | None = None,
    idle_exit_seconds: float = 0.0,
    bastion_host_jobs: str | None = None,
    notify: Callable[[str], None],
    wrap: Callable[[ObjectStore], ObjectStore] = lambda store: store,
) -> Daemon:
    """Build the daemon of a ROOT; raises Refused if this version cannot serve it.

    Args:
        slices: One of `SLICES`; None: the emulator of `home` if the bucket is on this machine too.
        bastion_host_jobs: A `HostJobsMode` that holds while the operator settings name none.
        wrap: Wraps the store, to watch or disturb the daemon.
    """
    near = is_near(root)
    slices = slices or ("emulated" if near and root.scheme != "s3" else "none")
    if slices == "emulated" and root.scheme == "s3":
        raise Refused(
            f"emulated slices cannot read {root.url}; use --slices=cloud and clusters in the settings "
            "([clusters.NAME]), or --slices=none"
        )
    if slices == "emulated" and not near:
        raise Refused(
            f"emulated slices have no credentials for {root.url}; use --slices=none or a local bucket: a "
            "folder, or `bastion emulator gcs` and STORAGE_EMULATOR_HOST"
        )
    notify = _unfailing(notify)
    notify(_SLICES_TEXT[slices])
    pace = _LOCAL_PACE if near else _CLOUD_PACE
    store = wrap(open_root(root.url, proves=True))
    make_folders(root)
    quota_store = open_root(quota_root) if quota_root else store
    private = parse_root(quota_root) if quota_root else root
    cloud = CloudSlices(_connect_to(root), bucket_is_near=near) if slices == "cloud" else None
    clock = SystemClock()
    # The lease leaves a third of its TTL for what is under way.
    clusters = KubernetesClusters(connector(node_label(root), clock, call_seconds=pace.lease_ttl_seconds / 3))
    me = processes.ProcessId.of(os.getpid())
    tick = tick_seconds or pace.tick_seconds
    bastion_host = BastionHostProvisioner(home.hosts_dir(root))
    default = HostJobsMode(bastion_host_jobs) if bastion_host_jobs else None
    agents = Agents(store, lambda: agent_packer.pack(home.agent_dir), clock, notify=notify)
    return Daemon(
        store=store,
        quota_store=quota_store,
        provisioners=Provisioners(
            slices=NoSlices()
            if slices == "none"
            else ByPlace(
                zones=cloud.provisioner if cloud else _emulated_slices(root, home, notify),
                cluster=clusters.provisioner,
            ),
            bastion_host=bastion_host,
        ),
        clock=clock,
        agents=None if slices == "none" else agents,
        options=DaemonOptions(
            installation=Installation(
                root=root.url,
                bastion=root.bastion,
                host_identity=processes.host_identity(),
                poll_seconds=pace.poll_seconds,
                interpreter=sys.executable,
            ),
            owner=owner,
            process=str(me),
            tick_seconds=tick,
            busy_tick_seconds=min(pace.busy_tick_seconds, tick),
            lease_ttl_seconds=pace.lease_ttl_seconds,
            idle_exit_seconds=idle_exit_seconds,
            without_file=None if cloud else BUILT_IN,
            quota_root=private.url,
        ),
        entropy=lambda: os.urandom(16),
        run_keys=lambda: _run_keys(quota_store, private),
        proof=FolderProof(root.url) if root.local else BucketProof(),
        notify=notify,
        apply_settings=lambda settings: "; ".join(
            filter(
                None,
                [
                    *(problems_on_s3(settings) if root.scheme == "s3" else ()),
                    cloud.apply_settings(settings) if cloud else "",
                    clusters.apply_settings(settings),
                ],
            )
        ),
        record=_recorder(home, root),
        disconnect=clusters.close,
        keep_clusters=clusters.keep,
        host_jobs=HostJobs(bastion_host, home.hosts_dir(root), default=default),
        machine_alarms=DiskWatch(home, root, job_limit_bytes=_job_limit_bytes()).watch,
    )


def _run_keys(store: ObjectStore, private: Root) -> RunKeys:
    with secrets_folder(private):
        return read_run_keys(store, shown=private.url, draw=os.urandom)


def _recorder(home: LocalHome, root: Root) -> Callable[[TickInput, TickOutput, PolicyStatus], str]:
    """Return a function that keeps the last N ticks; N is `record_ticks` of the operator settings."""
    files = TickFiles(home.ticks_dir(root))
    kept = -1

    def record(given: TickInput, output: TickOutput, policy: PolicyStatus) -> str:
        nonlocal kept
        provisioning = given.world.provisioning
        most = provisioning.record_ticks if provisioning is not None else max(kept, 0)
        if most == kept == 0:
            return ""
        name = f"tick-{given.world.epoch:08d}-{given.number:09d}"
        problem = files.keep(name, lambda: recorded_tick.to_bytes(given, output, quota_file=policy.data), most=most)
        kept = -1 if problem else most
        return problem

    return record


def _job_limit_bytes() -> int:
    """Return the limit of one job's files on this machine; raises Refused if the variable is not a number."""
    text = os.environ.get(JOB_DISK_VARIABLE, "").strip() or "0"
    if not (text.isascii() and text.isdigit() and len(text) <= 9):
        raise Refused(f"{JOB_DISK_VARIABLE}={text!r} is not a valid number of MiB; use digits only, 0 for no limit")
    return int(text) * 1024 * 1024


def open_slices(
    root: Root, *, home: LocalHome, slices: str | None = None, settings: Provisioning | None
) -> Provisioner:
    """Open the slices of a ROOT for a program other than its daemon. Starts no emulator.

    Raises Refused if there are no settings, or they cannot be applied.

    Args:
        slices: `cloud` or `emulated`; None: `emulated` if the bucket is on this machine too, else `cloud`.
        settings: The operator settings, which locate the cloud.
    """
    near = is_near(root)
    clusters = KubernetesClusters(connector(node_label(root), SystemClock()))
    if settings is not None:
        clusters.apply_settings(settings)
    if (slices or ("emulated" if near and root.scheme != "s3" else "cloud")) == "emulated":
        return ByPlace(zones=_emulated_slices(root, home, notify=None), cluster=clusters.provisioner)
    if settings is None:
        raise Refused(
            f"{keys.DAEMON_SETTINGS} is missing, so the location of slices is unknown; is {root.url} the right bastion?"
        )
    cloud = CloudSlices(_connect_to(root), bucket_is_near=near)
    problem = cloud.apply_settings(settings)
    if problem:
        raise Refused(problem)
    return ByPlace(zones=cloud.provisioner, cluster=clusters.provisioner)


def _unfailing(notify: Callable[[str], None]) -> Callable[[str], None]:
    """Make log output safe: a full disk or a closed terminal must not stop the daemon."""

    def say(text: str) -> None:
        with contextlib.suppress(OSError):
            notify(text)

    return say


def node_label(root: Root) -> str:
    """Return the label that marks a node as this bastion's; bastions of one name in different buckets differ."""
    return f"{root.bastion[:50]}-{hashlib.sha256(root.url.encode()).hexdigest()[:8]}"


def _connect_to(root: Root) -> Callable[[CloudApi], Provisioner]:
    startup_script = importlib.resources.files("bastion.agent").joinpath("startup.sh").read_text("utf-8")

    def connect(api: CloudApi) -> Provisioner:
        check_daemon_extra("a daemon that creates TPU slices")
        with LIBRARIES:
            from bastion.adapters.tpu.provisioner import CloudTpuProvisioner, CloudTpuSettings

        return CloudTpuProvisioner(
            CloudTpuSettings(
                project=api.project,
                zone="local",  # the default location of an emulator's gangs; in the cloud each names its own
                bastion=node_label(root),
                startup_script=startup_script,
                endpoint=api.endpoint,
                token=api.token,
            )
        )

    return connect


def _emulated_slices(root: Root, home: LocalHome, notify: Callable[[str], None] | None) -> Provisioner:
    """Return the emulator's slices; `notify` is called when the emulator starts. None: do not start it."""
    connect = _connect_to(root)
    failed_at = float("-inf")

    def find() -> EmulatorAddress | None:
        nonlocal failed_at
        address = locate(home.emulator_dir)
        if address is None and notify is not None and time.monotonic() - failed_at > _EMULATOR_RETRY_SECONDS:
            notify("starting the Cloud TPU emulator")
            address = start_emulator(home.emulator_dir, home.run_dir / "emulator.log")
            if address is None:
                failed_at = time.monotonic()
        return address

    return ReconnectingProvisioner(
        locate=find,
        connect=lambda address: connect(CloudApi(project="local", endpoint=address.endpoint, token=address.token)),
        absent=f"the Cloud TPU emulator is not running; see {home.run_dir / 'emulator.log'}",
    )
