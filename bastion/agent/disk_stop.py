"""What a host does about its job's files on a disk that it shares: obey a notice, and leave nothing behind.

Layer: worker.
"""

from __future__ import annotations

from bastion.agent.host_parts import HostParts
from bastion.agent.outputs.sync import OutputSync
from bastion.agent.stop_reasons import Stop
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import HostPhase

# On a disk that is full a command cannot save anything; this is for its processes to end in order.
GRACE_SECONDS = 2.0


def over_limit(parts: HostParts) -> Stop | None:
    """Return why the command must end if the job holds too much of the disk."""
    notice = parts.state.disk_notice
    if notice is None:
        return None
    deadline = parts.clock.monotonic() + GRACE_SECONDS
    return Stop(phase=HostPhase.FAILED, error=host_errors.DISK_LIMIT, message=str(notice), deadline=deadline)


def reclaim(parts: HostParts, outputs: OutputSync | None, *, last: bool) -> None:
    """Remove the files of a command that has ended, if they fill the disk or nobody needs them any more.

    A VM's own disk goes with the VM. Outputs that could not be stored stay, except on a disk that is full.

    Args:
        outputs: What stores the command's outputs; it has ended, or was abandoned.
        last: No other try can come on this host.
    """
    shares_disk = parts.emulated or parts.identity.on_bastion
    stored = outputs is None or outputs.done
    if parts.state.disk_notice is not None or (last and stored and shares_disk):
        parts.state.discard_work()
