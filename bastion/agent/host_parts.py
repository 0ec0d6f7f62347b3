"""What the parts of one host's agent share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Protocol

from bastion.agent.bucket_link import BucketLink
from bastion.agent.child_processes import ChildProcesses
from bastion.agent.code.fetch import Fetch
from bastion.agent.host_state import HostState
from bastion.agent.identity import HostIdentity
from bastion.agent.logs.host_log import HostLog
from bastion.agent.power import IdleWatch
from bastion.agent.reports import Reporter
from bastion.agent.sidecar.sidecar import Sidecar
from bastion.agent.stop_reasons import StopReasons
from bastion.agent.wakeup import Wakeup
from bastion.job_user import JobUser
from bastion.ports import Clock, ObjectStore, SecretSource


class OpenBucket(Protocol):
    def __call__(self, url: str, *, create: bool = False) -> tuple[ObjectStore, str]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class HostParts:
    """The shared parts of one host of one run.

    Attributes:
        wakeup: Wakes the main loop; set by everything that it waits for.
        idle: None where nothing is powered off.
        environ: The agent's own environment.
        marker: Identifies the processes of a command.
        emulated: Whether the host is a process group of this machine.
        interpreter: The Python of commands on hosts that share our file system.
        open_bucket: The store of a bucket's or folder's URL, and the key or prefix that it names. Raises Refused,
            StoreError.
        open_log: Makes a log from the host's spool; one at a time.
        sidecar: The storage proxy; not started if the job has none.
        secrets: Sources of secrets by the scheme of their references.
        job_user: Whom commands run as unless the order says root; None: the agent's user.
        note: For the job's log, once; may be empty.
    """

    identity: HostIdentity
    store: ObjectStore
    link: BucketLink
    state: HostState
    reporter: Reporter
    reasons: StopReasons
    idle: IdleWatch | None
    wakeup: Wakeup
    clock: Clock
    rng: Random
    environ: Mapping[str, str]
    boot_id: str
    marker: str
    emulated: bool
    interpreter: str
    fetch: Fetch
    open_bucket: OpenBucket
    open_log: Callable[[], HostLog]
    child_processes: ChildProcesses
    sidecar: Sidecar
    secrets: Mapping[str, SecretSource]
    job_user: JobUser | None = None
    note: str = ""

    @property
    def command_user(self) -> JobUser | None:
        """Whom this host's command runs as, once its folder is made; None: the agent's user."""
        owner, known = self.state.user, self.job_user
        return known if known is not None and owner is not None and known.uid == owner.uid else owner
