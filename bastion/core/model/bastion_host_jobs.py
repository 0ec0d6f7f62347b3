"""Whether commands run on the bastion's own host, and as whom: jobs without a slice, and cleanup commands (ADR 62)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from bastion.core.bucket import keys
from bastion.core.model.job_spec import JobSpec

SETTING = "bastion_host_jobs"
_NAMED_MAX = 5


class HostJobsMode(str, Enum):
    OWN_USER = "own-user"  # each as a Unix user of its own
    AS_DAEMON = "as-daemon"  # as the daemon's user, with all of its rights
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class BastionHostJobs:
    """What is in force.

    Attributes:
        reason: Why, as a clause.
        unmet: Whether the operator asked for users that the daemon cannot have.
    """

    mode: HostJobsMode = HostJobsMode.AS_DAEMON
    reason: str = ""
    unmet: bool = False

    @property
    def off(self) -> bool:
        return self.mode is HostJobsMode.OFF


AS_DAEMON = BastionHostJobs()


def decide(setting: HostJobsMode | None, default: HostJobsMode | None, *, why_no_users: str) -> BastionHostJobs:
    """Return what is in force.

    Args:
        setting: Of the operator settings.
        default: What this daemon was started with.
        why_no_users: Why the daemon cannot run commands as users of their own; empty if it can.
    """
    wanted = setting or default
    if wanted is None and why_no_users:
        return BastionHostJobs(mode=HostJobsMode.OFF, reason=f"{why_no_users}, and {SETTING} is not set")
    if wanted is HostJobsMode.OWN_USER and why_no_users:
        reason = f'{SETTING} is "{wanted.value}", but {why_no_users}'
        return BastionHostJobs(mode=HostJobsMode.OFF, reason=reason, unmet=True)
    if wanted is None:
        return BastionHostJobs(mode=HostJobsMode.OWN_USER, reason="the daemon may use users of their own")
    where = keys.DAEMON_SETTINGS if setting else f"bastion daemon run --{SETTING}"
    return BastionHostJobs(mode=wanted, reason=f"set by {where}")


def why_refused(spec: JobSpec, mode: str, reason: str) -> str:
    """Return why a spec may not start here, and what to do; empty if it may. A newer daemon's `mode` refuses none."""
    if mode != HostJobsMode.OFF.value:
        return ""
    if spec.runner is None:
        what, instead = "jobs without a slice are", "run it on a slice"
    elif spec.has_cleanup:
        what, instead = "cleanup commands are", "submit it without one"
    else:
        return ""
    return (
        f"{what} off on this bastion: {_reason_of(reason)}; {instead}, or ask the operator to set {SETTING} in "
        f"{keys.DAEMON_SETTINGS}"
    )


def why_held(jobs: BastionHostJobs) -> str:
    """Return why an accepted job without a slice waits; empty if it may start."""
    return f"jobs without a slice are off on this bastion: {_reason_of(jobs.reason)}" if jobs.off else ""


def alarm(jobs: BastionHostJobs, cleanups: Sequence[str]) -> str:
    """Return the operator's alarm; empty if there is none. `cleanups`: jobs whose cleanup command waits."""
    if cleanups and jobs.off:
        more = f" and {len(cleanups) - _NAMED_MAX} more" if len(cleanups) > _NAMED_MAX else ""
        return (
            f"the cleanup of {', '.join(cleanups[:_NAMED_MAX])}{more} waits: cleanup commands are off on this bastion: "
            f"{_reason_of(jobs.reason)}; set {SETTING} in {keys.DAEMON_SETTINGS}"
        )
    return f"no command starts on the bastion's own host: {jobs.reason}" if jobs.unmet else ""


def _reason_of(reason: str) -> str:
    return reason or f'{SETTING} is "{HostJobsMode.OFF.value}"'
