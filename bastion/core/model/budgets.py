"""How much of each kind of trouble a job bears, besides what its own spec says.

`World.settings.budgets` are those in force.
"""

from __future__ import annotations

from dataclasses import dataclass

from bastion.core import limits


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """What an operator may set; the defaults are the limits of the same names.

    Attributes:
        eviction_grace_seconds: Between SIGTERM and SIGKILL of a cancelled job; of one that is stopped otherwise, too,
            if there is no quota file with its project's own `grace_seconds`.
        failure_grace_seconds: The same for the other hosts of a job of which one host failed.
        infrastructure_attempts: Attempts lost to infrastructure before the job fails.
        zone_wait_seconds: A gang that waits for capacity in one zone for so long is given up for the next zone.
        provision_seconds: Hosts that do not come up within this time are given up.
        power_off_seconds: A node whose command has ended and that sees no life of the daemon for so long powers itself
            off; 0: never.
    """

    eviction_grace_seconds: float = limits.EVICTION_GRACE_SECONDS
    failure_grace_seconds: float = limits.FAILURE_GRACE_SECONDS
    infrastructure_attempts: int = limits.INFRASTRUCTURE_ATTEMPTS_MAX
    zone_wait_seconds: float = limits.ZONE_WAIT_SECONDS
    provision_seconds: float = limits.PROVISION_TIMEOUT_SECONDS
    power_off_seconds: float = limits.POWER_OFF_SECONDS


DEFAULT = Budgets()
