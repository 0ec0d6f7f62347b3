"""What a project may do with its share: how much it borrows and lends, how long jobs run, whose turn it is inside.

Layer: lowest, pure. Rules are a value; the defaults are what a quota file without `[project_rules]` means.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

DEFAULT_USER_WEIGHT = 1.0
# A queue of so many jobs takes days; each costs the daemon memory, and every reader of the status bytes.
DEFAULT_MAX_QUEUED_JOBS = 10_000
DEFAULT_MAX_QUEUED_JOBS_PER_USER = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectRules:
    """One project's rules.

    Attributes:
        half_life_seconds: After how long a user's past usage counts half, between users of one project; over 0.
        minimum_runtime_seconds: A borrower that ran shorter is stopped only if no other borrower will do.
        keep_idle_seconds: For so long what the project gave back is kept for its next job before it is lent, since a
            loan that is called back within minutes costs a restart; None: for as long as a restart takes.
        grace_seconds: Between the order to stop and the end.
        maximum_runtime_seconds: A job that ran longer is stopped for good; None: it may run for ever.
        fifo: Nobody passes the project's job in front.
        hold: Nothing of the project starts; what runs goes on.
        max_queued_jobs: Jobs of the project that are accepted and wait for their start; later ones are accepted as
            these start or end.
        max_queued_jobs_per_user: The same of each of its users.
        borrowing_limit: By resource type, units above its entitlement that it may hold; an absent type has no limit.
        lending_limit: By resource type, units of its entitlement that others may use; an absent type lends all.
        user_weights: By user id, the weight in the project's fair share between users; others weigh 1.
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
    borrowing_limit: Mapping[str, int] = field(default_factory=dict)
    lending_limit: Mapping[str, int] = field(default_factory=dict)
    user_weights: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("borrowing_limit", "lending_limit", "user_weights"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    def user_weight(self, user: str) -> float:
        """The user's weight; 1 unless the file gives another."""
        return self.user_weights.get(user, DEFAULT_USER_WEIGHT)

    def evolve(self, **changes: object) -> ProjectRules:
        """The same rules but for what is given, by attribute."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


DEFAULT_RULES = ProjectRules()
