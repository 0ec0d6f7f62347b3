"""Budgets: how much of each class of failure a job may have, besides what its own spec says."""

from __future__ import annotations

from dataclasses import dataclass

from bastion.core import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The operator's budgets, in seconds or attempts; the defaults are the limits of the same names."""

    # From SIGTERM to SIGKILL of a cancelled job, and of any stopped job whose project has no `grace_seconds`.
    eviction_grace_seconds: float = limits.EVICTION_GRACE_SECONDS
    # The same for the other hosts of a job after one host failed.
    failure_grace_seconds: float = limits.FAILURE_GRACE_SECONDS
    # Attempts lost to infrastructure before the job fails.
    infrastructure_attempts: int = limits.INFRASTRUCTURE_ATTEMPTS_MAX
    # Restarts of a job that is stuck time after time, before it fails.
    stuck_restarts: int = limits.STUCK_RESTARTS_MAX
    # How long a gang waits for capacity in one zone before it moves to the next.
    zone_wait_seconds: float = limits.ZONE_WAIT_SECONDS
    provision_seconds: float = limits.PROVISION_TIMEOUT_SECONDS  # how long hosts may take to come up
    # A node whose command has ended powers itself off after this long without a sign of the daemon; 0: never.
    power_off_seconds: float = limits.POWER_OFF_SECONDS


DEFAULT = Budgets()
