"""Budgets: how much of each class of failure a job may have, besides what its own spec says."""

from __future__ import annotations

from dataclasses import dataclass

from bastion.core import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The operator's budgets, in seconds or attempts; the defaults are the limits of the same names.

    Attributes:
        eviction_grace_seconds: From SIGTERM to SIGKILL of a cancelled job, and of any stopped job whose project has no
            `grace_seconds`.
        failure_grace_seconds: The same for the other hosts of a job after one host failed.
        infrastructure_attempts: Attempts lost to infrastructure before the job fails.
        zone_wait_seconds: How long a gang waits for capacity in one zone before it moves to the next.
        provision_seconds: How long hosts may take to come up.
        power_off_seconds: A node whose command has ended powers itself off after this long without a sign of the
            daemon; 0: never.
    """

    eviction_grace_seconds: float = limits.EVICTION_GRACE_SECONDS
    failure_grace_seconds: float = limits.FAILURE_GRACE_SECONDS
    infrastructure_attempts: int = limits.INFRASTRUCTURE_ATTEMPTS_MAX
    zone_wait_seconds: float = limits.ZONE_WAIT_SECONDS
    provision_seconds: float = limits.PROVISION_TIMEOUT_SECONDS
    power_off_seconds: float = limits.POWER_OFF_SECONDS


DEFAULT = Budgets()
