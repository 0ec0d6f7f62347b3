"""What the parts of one host's agent share.

Layer: worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

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
from bastion.ports import Clock, ObjectStore


@dataclass(frozen=True, slots=True, kw_only=True)
class HostParts:
    """One host of one run, while its agent lives.

    Attributes:
        wakeup: Wakes the loop that decides; everything that it waits for sets it.
        reasons: Why to stop.
        idle: Powers the node off one day; None where nothing is powered off.
        environ: The agent's own environment.
        marker: By which everything that a command starts is found.
        emulated: Whether the host is a process group of this machine.
        interpreter: The Python of commands of hosts that share our file system.
        fetch: Gets the job's code.
        open_log: A log over what the host's spool holds; one at a time.
        attendants: What the agent starts beside the command.
        sidecar: The storage proxy; not started where the job has none.
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
    open_log: Callable[[], HostLog]
    child_processes: ChildProcesses
    sidecar: Sidecar
