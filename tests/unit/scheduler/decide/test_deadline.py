"""Who has waited for more than a day: whom it keeps from passing it, and what becomes of them in the same pass."""

from __future__ import annotations

import pytest

from scheduler import ReasonCode
from tests.support.scheduler_jobs import decision
from tests.support.scheduler_pools import NOW, pass_over, pending, policy, running

# Jobs of `pending` have waited for days unless they are told otherwise.
LATELY = NOW - 60.0
V5E = {"v5e": 64}


@pytest.mark.parametrize(
    ("asked", "stopped"), [pytest.param(32, (), id="possible"), pytest.param(40, ("loan",), id="impossible")]
)
def test_only_those_are_not_passed_for_whom_loans_would_do_if_their_project_held_nothing(
    asked: int, stopped: tuple[str, ...]
) -> None:
    jobs = [running("own", "a", 16), running("share", "b", 32), running("loan", "b", 16)]
    waiting = [pending("x", "a", asked, priority=1), pending("y", "a", 8, priority=2, queued_at=LATELY)]
    plan = pass_over(policy(), *jobs, *waiting)
    assert plan.evicted == stopped
    reason = decision(plan, "y").reason
    assert reason is not None and (reason.code is ReasonCode.BEHIND_HIGHER_PRIORITY) == (not stopped)


def test_those_that_did_not_pass_it_get_room_in_the_pass_that_recalls_for_it() -> None:
    running_jobs = [running("own", "a", 16), running("share", "b", 24), running("r", "b", 16), running("s", "b", V5E)]
    waiting = [
        pending("older", "a", 20, priority=2, queued_at=50.0),
        pending("x", "a", 20, priority=1),
        pending("y", "a", {"v5e": 8}, priority=2, queued_at=LATELY),
    ]
    plan = pass_over(policy(kinds=("v4", "v5e")), *running_jobs, *waiting)
    assert (plan.evicted, plan.promised) == (("r", "s"), {"x", "y"})


@pytest.mark.parametrize(
    ("held", "asked", "stopped"),
    [
        pytest.param(16, {"v5e": 16}, "dear", id="what it gives back of another type"),
        pytest.param(16, {"v5e": 17}, "cheap", id="more than that"),
        pytest.param(12, {"v4": 4, "v5e": 8}, "dear", id="and what its project has not claimed yet"),
        pytest.param(12, {"v4": 5, "v5e": 8}, "cheap", id="more of the type that is lacking"),
        pytest.param(12, {"v4": 4, "v5e": 17}, "cheap", id="more of the other"),
    ],
)
def test_a_recall_takes_no_loan_in_whose_place_its_project_could_claim_as_much(
    held: int, asked: dict[str, int], stopped: str
) -> None:
    quota = policy(kinds=("v4", "v5e"), a=1.0, b=1.0, c=2.0)  # 16, 16 and 32 of each
    other = {"v5e": 8} if held == 16 else {}
    jobs = [
        running("dear", "b", held),
        running("cheap", "b", {"v4": 16, **other}, checkpointed_at=NOW - 1),
        running("rest", "c", {"v5e": 64 - sum(other.values())}),
    ]
    waiting = [pending("x", "a", 40), pending("w", "b", asked, queued_at=LATELY)]
    assert pass_over(quota, *jobs, *waiting).evicted == (stopped,)


def test_behind_an_overdue_job_of_other_types_those_are_missing_too_in_order() -> None:
    kinds = ("v4", "v5e")
    share = {"v4": 32, "v5e": 32}
    waiting = [
        pending("x", "a", {"v4": 16, "v5e": 16}, priority=1),
        pending("y", "a", {"v5e": 8}, priority=2, queued_at=LATELY),
    ]
    plan = pass_over(policy(kinds=kinds), running("r", "a", share), running("s", "b", share), *waiting)
    reason = decision(plan, "y").reason
    assert reason is not None and reason.code is ReasonCode.BEHIND_HIGHER_PRIORITY
    assert reason.unblock == "x starts and 16 more v4 and 24 more v5e become free"
