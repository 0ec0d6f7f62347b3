"""Stop a command that uses too much of a shared disk, and remove a job's files when nobody needs them any more."""

from __future__ import annotations

from bastion.agent.host_parts import HostParts
from bastion.agent.outputs.sync import OutputSync
from bastion.agent.stop_reasons import Stop
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import HostPhase

# On a full disk a command cannot save anything; this lets its processes end in order.
GRACE_SECONDS = 2.0


def over_limit(parts: HostParts) -> Stop | None:
    """Why the command must end because the job uses too much disk, or None."""
    notice = parts.state.disk_notice
    if notice is None:
        return None
    deadline = parts.clock.monotonic() + GRACE_SECONDS
    return Stop(phase=HostPhase.FAILED, error=host_errors.DISK_LIMIT, message=str(notice), deadline=deadline)


def reclaim(parts: HostParts, outputs: OutputSync | None, *, last: bool) -> None:
    """Remove the files of an ended command if they fill the disk or nobody needs them.

    A VM's own disk is deleted with the VM. Outputs that could not be stored stay, except on a full disk.

    Args:
        outputs: The uploader of the command's outputs; it has ended or was abandoned.
        last: No other try can follow on this host.
    """
    shares_disk = parts.emulated or parts.identity.on_bastion
    stored = outputs is None or outputs.done
    if parts.state.disk_notice is not None or (last and stored and shares_disk):
        parts.state.discard_work()
