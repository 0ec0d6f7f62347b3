"""What a project may claim, borrow and keep, and when it has waited too long, each answer by itself."""

from __future__ import annotations

import pytest

from quota import Policy, ProjectRules
from scheduler.decide.deadline import is_overdue
from scheduler.decide.shares import Shares, Standing
from scheduler.model import Job

HOUR = 3600.0


def shares(rules: ProjectRules | None = None, **held: int) -> Shares:
    """Of 64 v4 and 64 v5e a is entitled to 32 v4, b to 32 v4 and all v5e, c to nothing."""
    policy = Policy(
        tiers=({"v4": 64, "v5e": 64},),
        weights={"a": {"v4": 1.0}, "b": {"v4": 1.0, "v5e": 1.0}, "c": {"v4": 0.0}},
        members={},
        default_rules=rules or ProjectRules(),
    )
    return Shares(policy, {"a": held})


def test_what_is_ordered_for_a_project_counts_as_used() -> None:
    own = shares(ProjectRules(lending_limit={"v4": 4}, borrowing_limit={"v4": 8}), v4=16)
    assert (own.unlent("a", "v4"), own.below_limit("a", "v4"), own.over("a", "v4")) == (12, 24, -16)
    own.order("a", (("v4", 10),))
    assert (own.unlent("a", "v4"), own.below_limit("a", "v4"), own.over("a", "v4")) == (2, 14, -16)
    assert (own.covers("a", (("v4", 6),)), own.covers("a", (("v4", 7),))) == (True, False)
    assert (own.permits("a", (("v4", 14),)), own.permits("a", (("v4", 15),))) == (True, False)
    assert (own.holdings("a"), own.rank("a")) == ({"v4": 26}, (False, 26 / 32))
    own.withdraw("a", (("v4", 10),))
    own.release("a", (("v4", 16),))
    assert (own.unlent("a", "v4"), own.rank("a")) == (28, (False, 0.0))
    own.hold("a", (("v4", 40),))
    assert (own.unlent("a", "v4"), own.over("a", "v4"), own.rank("a")) == (0, 8, (False, 40 / 32))


def test_who_is_entitled_to_anything_goes_before_who_is_not() -> None:
    own = shares(v5e=3)
    assert [own.is_entitled(project) for project in "abc"] == [True, True, False]
    assert (own.rank("a"), own.rank("b"), own.rank("c")) == ((False, 3.0), (False, 0.0), (True, 0.0))


def test_a_project_is_ranked_by_the_type_of_which_it_holds_most_of_its_share() -> None:
    assert Standing(shares(v4=16, v5e=0), "a").rank((("v4", 4), ("v5e", 1))) == (False, 1.0)
    for units, part in ((0, 0.5), (1, 1.0)):
        own = shares(v4=16, v5e=units)
        assert own.rank("a") == Standing(own, "a").rank() == (False, part)


def test_what_is_granted_in_thought_counts_as_held() -> None:
    own = shares(ProjectRules(borrowing_limit={"v4": 8}), v4=16)
    standing = Standing(own, "a")
    standing.grant((("v4", 8),))
    standing.grant((("v4", 4),))
    assert (standing.rank(), standing.rank((("v4", 4),))) == ((False, 28 / 32), (False, 1.0))
    assert (standing.covers((("v4", 4),)), standing.covers((("v4", 5),))) == (True, False)
    assert (standing.permits((("v4", 12),)), standing.permits((("v4", 13),))) == (True, False)
    assert (own.held("a", "v4"), own.rank("a")) == (16, (False, 0.5))


@pytest.mark.parametrize(
    ("units", "waited", "evictions", "futile", "since_eviction", "expected"),
    [
        (8, 24 * HOUR, 0, 0, None, True),
        (8, 24 * HOUR - 1, 0, 0, None, False),
        (32, 48 * HOUR, 1, 0, 40 * HOUR, False),  # its share protects it
        (33, 48 * HOUR, 1, 0, 1800.0, True),
        (33, 48 * HOUR, 1, 0, 1799.0, False),
        (33, 48 * HOUR, 2, 1, 3600.0, True),
        (33, 48 * HOUR, 2, 1, 3599.0, False),
        (33, 1e10, 6, 5, 16 * HOUR, True),
        (33, 1e10, 6, 5, 16 * HOUR - 1, False),
        (33, 1e10, 30, 30, 24 * HOUR, True),  # it is not doubled for ever
        (33, 1e10, 30, 30, 24 * HOUR - 1, False),
        (33, 48 * HOUR, 1, 0, None, True),  # nobody knows when
    ],
)
def test_a_job_is_overdue_after_a_day_and_again_after_a_pause(
    units: int, waited: float, evictions: int, futile: int, since_eviction: float | None, expected: bool
) -> None:
    now = 2e10
    job = Job(
        name="x",
        project_id="a",
        user_id="u",
        queued_at=now - waited,
        demand={"v4": units},
        evictions=evictions,
        futile_evictions=futile,
        evicted_at=None if since_eviction is None else now - since_eviction,
    )
    assert is_overdue(job, shares(), now) is expected
