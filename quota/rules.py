"""What a project may do with its share: borrowing, lending, runtimes, and order inside the project."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

DEFAULT_USER_WEIGHT = 1.0
# A longer queue would take days; each job costs daemon memory and status bytes.
DEFAULT_MAX_QUEUED_JOBS = 10_000
DEFAULT_MAX_QUEUED_JOBS_PER_USER = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRules:
    """One project's rules.

    Attributes:
        half_life_seconds: Half-life of a user's past usage, above 0.
        minimum_runtime_seconds: A borrower below it is evicted only if no other borrower suffices.
        keep_idle_seconds: How long units that the project gave back stay reserved for its next job, since a short loan
            costs a restart; None: as long as a restart takes.
        grace_seconds: Between the stop order and the end.
        maximum_runtime_seconds: A job that runs longer is stopped for good; None: unlimited.
        fifo: No job passes the project's job in front.
        hold: No job of the project starts; running jobs continue.
        max_queued_jobs: Accepted waiting jobs of the project; later ones are accepted as these start or end.
        max_queued_jobs_per_user: The same per user.
        highest_priority: The best priority that a job may have, from 1 (the highest of all) to 5.
        instance_types: Names of the types that a job may use, also with one `*` at the end; None: all.
        allow_bastion_jobs: Whether jobs without a slice may run, on the bastion's own host.
        allow_root: Whether jobs may run as root on their hosts.
        borrowing_limit: By resource type, units above its entitlement that it may hold; absent: unlimited.
        lending_limit: By resource type, units of its entitlement that others may use; absent: all.
        user_weights: Weight by user id in the fair share between users; absent: 1.
    """

    half_life_seconds: float = 168 * 3600.0
    minimum_runtime_seconds: float = 0.0
    keep_idle_seconds: float | None = None
    grace_seconds: float = 60.0
    maximum_runtime_seconds: float | None = None
    fifo: bool = False
    hold: bool = False
    max_queued_jobs: int = DEFAULT_MAX_QUEUED_JOBS
    max_queued_jobs_per_user: int = DEFAULT_MAX_QUEUED_JOBS_PER_USER
    highest_priority: int = 1
    instance_types: tuple[str, ...] | None = None
    allow_bastion_jobs: bool = True
    allow_root: bool = False
    borrowing_limit: Mapping[str, int] = field(default_factory=dict)
    lending_limit: Mapping[str, int] = field(default_factory=dict)
    user_weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("borrowing_limit", "lending_limit", "user_weights"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def user_weight(self, user: str) -> float:
        return self.user_weights.get(user, DEFAULT_USER_WEIGHT)

    def evolve(self, **changes: object) -> ProjectRules:
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


DEFAULT_RULES = ProjectRules()
