"""Elastic jobs: the minimum is guaranteed, extra replicas compete, and they go before anybody is stopped."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from quota import Policy, ProjectRules
from scheduler import Decision, Job, JobStatus, Plan, ReasonCode, Scaling, Verdict
from scheduler.decide.elastic import drop_unneeded
from scheduler.decide.replicas import Replica
from tests.support import scheduler_jobs
from tests.support.scheduler_jobs import HOUR, NOW, pass_over
from tests.support.scheduler_jobs import pending as waiting


def scaling(units: int = 8, most: int = 4, extra: int = 0) -> tuple[Scaling, ...]:
    return (Scaling(per_replica={"v4": units}, most=most, extra=extra),)


def policy(total: int = 64, rules: ProjectRules | None = None, **weights: float) -> Policy:
    """Nothing is kept for those who gave it back: here it would only be in the way."""
    return scheduler_jobs.policy(total, rules or ProjectRules(keep_idle_seconds=0.0), **weights)


def running(name: str, project: str, units: int, *, extra: int = 0, **fields: Any) -> Job:
    """With `extra` replicas of 8, of at most 4, if that is given."""
    values = {"charged": {"v4": units + 8 * extra}, "scaling": scaling(extra=extra) if extra else (), **fields}
    return scheduler_jobs.running(name, project, units, **values)


def on(plan: Plan, name: str) -> Decision:
    return next(decision for decision in plan.decisions if decision.name == name)


def test_an_elastic_job_starts_with_the_replicas_that_nobody_else_can_use() -> None:
    plan = pass_over(policy(), waiting("x", "a", 16, scaling=scaling()), waiting("y", "b", 24))
    assert on(plan, "x").verdict is Verdict.START and on(plan, "x").extra == (3,)  # 64 - 16 - 24
    assert on(plan, "y").verdict is Verdict.START and on(plan, "y").extra == ()
    assert plan.projects["a"].usage == plan.projects["a"].demand == {"v4": 40}
    assert plan.pool["v4"].free == 0


def test_it_gets_no_more_than_it_can_use() -> None:
    plan = pass_over(policy(), waiting("x", "a", 16, scaling=scaling(most=2)))
    assert on(plan, "x").extra == (2,)
    assert plan.pool["v4"].free == 32


def test_of_a_type_that_the_quota_file_no_longer_has_it_gets_no_more() -> None:
    quota = policy()
    gone = replace(quota, tiers=({"v5e": 64},), weights={"a": {"v5e": 1.0}})
    assert on(pass_over(quota, running("r", "a", 16, extra=1)), "r").verdict is Verdict.RESIZE
    assert on(pass_over(gone, running("r", "a", 16, extra=1)), "r").verdict is Verdict.KEEP


def test_a_job_that_still_gives_replicas_back_gets_none() -> None:
    leaving = running("r", "a", 16, extra=1, charged={"v4": 32}, shrinking_for="x")
    assert on(pass_over(policy(), leaving), "r").verdict is Verdict.KEEP
    assert on(pass_over(policy(), replace(leaving, shrinking_for=None)), "r").verdict is Verdict.RESIZE


def test_replicas_on_their_way_are_room_for_whom_they_were_taken_back() -> None:
    leaving = running("r", "a", 16, extra=3, charged={"v4": 48}, shrinking_for="x")
    plan = pass_over(policy(), leaving, running("o", "b", 16), waiting("x", "b", 8))
    assert (on(plan, "r").verdict, on(plan, "x").verdict, plan.promised) == (Verdict.KEEP, Verdict.WAIT, {"x"})
    reason = on(plan, "x").reason
    assert reason is not None
    assert (reason.code, reason.since) == (ReasonCode.WAITING_FOR_PREEMPTED, NOW - 60.0)
    assert (reason.holders, reason.unblock) == (("r",), "extra replicas of r are gone")


def test_replicas_on_their_way_are_told_to_who_counts_on_them() -> None:
    leaving = running("r", "a", 16, extra=3, charged={"v4": 48}, shrinking_for="gone")
    reason = on(pass_over(policy(), leaving, running("o", "b", 16), waiting("x", "b", 8)), "x").reason
    assert reason is not None
    assert (reason.code, reason.holders) == (ReasonCode.WAITING_FOR_POOL, ("r",))
    assert reason.message.startswith("the capacity it needs is being freed by extra replicas of 1 job; ")
    assert reason.unblock == "extra replicas of r are gone, or 8 more v4 become free"
    stopping = running("s", "b", 8, status=JobStatus.STOPPING)
    reason = on(pass_over(policy(), leaving, running("o", "b", 8), stopping, waiting("x", "b", 16)), "x").reason
    assert reason is not None
    assert reason.message.startswith("the capacity it needs is being freed by 1 job and extra replicas of 1 job; ")
    assert reason.unblock.startswith("s is gone and extra replicas of r are gone, or ")


def test_where_a_job_awaits_what_is_being_freed_its_project_gets_no_replicas() -> None:
    elastic = running("r", "a", 8, scaling=scaling())
    jobs = [elastic, running("o", "b", 24), running("s", "a", 24, status=JobStatus.STOPPING)]
    assert on(pass_over(policy(), *jobs), "r").verdict is Verdict.RESIZE
    assert on(pass_over(policy(), *jobs, waiting("x", "a", 24)), "r").verdict is Verdict.KEEP


def test_what_does_not_start_for_lack_of_its_minimum_gets_no_replicas() -> None:
    plan = pass_over(policy(), running("r", "b", 56), waiting("x", "b", 16, scaling=scaling()))
    assert on(plan, "x").verdict is Verdict.WAIT
    assert plan.pool["v4"].free == 8


def test_a_running_job_grows_into_what_became_free() -> None:
    plan = pass_over(policy(), running("x", "a", 16, extra=1), running("r", "b", 24))
    assert on(plan, "x").verdict is Verdict.RESIZE and on(plan, "x").extra == (3,)
    assert on(plan, "x").message and on(plan, "x").evicted_for is None
    assert plan.projects["a"].usage == {"v4": 40}


def test_where_nothing_is_free_it_goes_on_as_it_is() -> None:
    plan = pass_over(policy(), running("x", "a", 16, extra=3), running("r", "b", 24))
    assert on(plan, "x").verdict is Verdict.KEEP and on(plan, "x").extra == (3,)


def test_whoever_waits_and_fits_goes_before_extra_replicas() -> None:
    plan = pass_over(policy(a=1.0, b=0.0), running("x", "a", 16, extra=1), waiting("y", "b", 32))
    assert on(plan, "y").verdict is Verdict.START
    assert on(plan, "x").extra == (2,)  # 64 - 24 - 32


def test_idle_replicas_go_to_the_least_served_project_first() -> None:
    jobs = [waiting("x", "a", 8, scaling=scaling()), waiting("y", "b", 8, scaling=scaling())]
    plan = pass_over(policy(40, a=1.0, b=3.0), *jobs)  # 10, 30: 24 idle
    assert (on(plan, "x").extra, on(plan, "y").extra) == ((1,), (2,))


@pytest.mark.parametrize(("limit", "extra"), [(0, 2), (8, 3)])
def test_extra_replicas_keep_to_the_borrowing_limit(limit: int, extra: int) -> None:
    rules = ProjectRules(borrowing_limit={"v4": limit}, keep_idle_seconds=0.0)
    plan = pass_over(policy(64, rules), waiting("x", "a", 16, scaling=scaling()))  # a may hold 32, or 40
    assert on(plan, "x").extra == (extra,)


def test_what_others_never_lend_is_no_extra_replica() -> None:
    rules = ProjectRules(lending_limit={"v4": 8}, keep_idle_seconds=0.0)
    plan = pass_over(policy(64, rules), waiting("x", "a", 16, scaling=scaling()))
    assert on(plan, "x").extra == (3,)  # 24 of b's 32 stay free


# Taking back


def test_an_owner_takes_extra_replicas_back_before_anybody_is_stopped() -> None:
    jobs = [running("x", "a", 16, extra=3), running("r", "a", 24)]  # a holds 40 of its own 32 without the replicas
    plan = pass_over(policy(), *jobs, waiting("y", "b", 12))
    assert on(plan, "r").verdict is Verdict.KEEP
    assert on(plan, "x").verdict is Verdict.RESIZE and on(plan, "x").extra == (1,)  # 16 of 24 go for 12
    assert on(plan, "x").evicted_for == "y"
    reason = on(plan, "y").reason
    assert reason is not None and reason.code is ReasonCode.WAITING_FOR_PREEMPTED
    assert reason.holders == ("x",)
    assert reason.message.startswith(
        "capacity is being freed for it by taking back extra replicas of 1 job; needs 12 v4"
    )
    assert reason.unblock == "extra replicas of x are gone"


def test_replicas_and_borrowers_go_together_where_replicas_are_too_few() -> None:
    jobs = [running("x", "a", 16, extra=1), running("r", "a", 16), running("s", "a", 24)]
    plan = pass_over(policy(), *jobs, waiting("y", "b", 24))
    verdicts = {name: on(plan, name).verdict for name in "xrs"}
    assert verdicts == {"x": Verdict.RESIZE, "r": Verdict.EVICT, "s": Verdict.KEEP}
    reason = on(plan, "y").reason
    assert reason is not None and reason.unblock == "r is gone and extra replicas of x are gone"
    assert reason.message.startswith(
        "capacity is being freed for it by stopping 1 job and by taking back extra replicas of 1 job"
    )


def test_replicas_that_are_not_needed_beside_a_victim_stay() -> None:
    jobs = [running("x", "a", 16, extra=1), running("r", "a", 40, checkpointed_at=NOW)]
    plan = pass_over(policy(a=1.0, b=2.0), *jobs, waiting("y", "b", 24))
    assert (on(plan, "x").verdict, on(plan, "r").verdict) == (Verdict.KEEP, Verdict.EVICT)


def test_a_jobs_own_project_takes_its_replicas_back_too() -> None:
    plan = pass_over(policy(), running("x", "a", 16, extra=2), running("r", "b", 32), waiting("y", "a", 8))
    assert on(plan, "x").extra == (1,) and on(plan, "x").evicted_for == "y"


def test_a_borrower_takes_no_replicas_back() -> None:
    jobs = [running("x", "a", 16, extra=2), running("r", "b", 32)]
    plan = pass_over(policy(a=1.0, b=1.0, c=0.0), *jobs, waiting("y", "c", 8))
    assert on(plan, "x").verdict is Verdict.KEEP


def test_a_job_that_waited_for_a_day_takes_replicas_back() -> None:
    jobs = [running("x", "a", 16, extra=2), running("r", "b", 32)]
    plan = pass_over(policy(a=1.0, b=1.0, c=0.0), *jobs, waiting("y", "c", 8, queued_at=NOW - 25 * HOUR))
    assert on(plan, "x").evicted_for == "y"


def test_an_elastic_job_that_borrowed_its_minimum_goes_whole() -> None:
    plan = pass_over(policy(a=0.0, b=1.0), running("x", "a", 16, extra=4), running("r", "b", 16), waiting("y", "b", 48))
    assert on(plan, "x").verdict is Verdict.EVICT
    assert [decision.name for decision in plan.acting].count("x") == 1


def test_the_newest_job_of_the_best_served_project_gives_first() -> None:
    quota = policy(88, a=1.0, b=1.0, c=2.0)  # 22, 22, 44
    jobs = [
        running("old", "a", 8, extra=1, started_at=NOW - 9 * HOUR),
        running("new", "a", 8, extra=1),
        running("other", "b", 8, extra=1),
        running("r", "c", 40),
    ]
    assert on(pass_over(quota, *jobs, waiting("y", "c", 4)), "new").evicted_for == "y"


def test_while_replicas_are_going_their_room_is_kept_and_nothing_is_ordered_twice() -> None:
    going = replace(running("x", "a", 16, extra=3), scaling=scaling(extra=1), shrinking_for="y")
    jobs = [going, running("r", "a", 24), waiting("y", "b", 12, promised=True), waiting("z", "a", 4)]
    plan = pass_over(policy(), *jobs)
    assert on(plan, "x").verdict is Verdict.KEEP and on(plan, "x").extra == (1,)
    assert on(plan, "y").verdict is Verdict.WAIT
    assert on(plan, "z").verdict is Verdict.WAIT
    gone = replace(going, charged={"v4": 24}, shrinking_for=None)
    later = pass_over(policy(), gone, *jobs[1:])
    assert on(later, "y").verdict is Verdict.START
    assert on(later, "z").verdict is Verdict.START  # of the 16 that were given back, 12 were asked for


def test_several_kinds_of_replicas_are_lent_and_taken_back_each_for_itself() -> None:
    both = (Scaling(per_replica={"v4": 8}, most=2), Scaling(per_replica={"cpu": 1}, most=5))
    quota = Policy(
        tiers=({"v4": 32, "cpu": 3},),
        weights={"a": {"v4": 1.0, "cpu": 1.0}, "b": {"v4": 1.0, "cpu": 1.0}},
        members={},
        default_rules=ProjectRules(keep_idle_seconds=0.0),
    )
    plan = pass_over(quota, waiting("x", "a", 8, scaling=both))
    assert on(plan, "x").extra == (2, 3)
    held = replace(
        waiting("x", "a", 8, scaling=tuple(replace(one, extra=count) for one, count in zip(both, (2, 3), strict=True))),
        status=JobStatus.RUNNING,
        tier=0,
        started_at=NOW,
        charged={"v4": 24, "cpu": 3},
    )
    assert on(pass_over(quota, held, waiting("y", "b", 0, demand={"cpu": 1})), "x").extra == (2, 2)


def test_the_bytes_of_a_plan_name_the_replicas() -> None:
    assert (
        b'"extra":[3]' in pass_over(policy(), waiting("x", "a", 16, scaling=scaling()), waiting("y", "b", 24)).to_json()
    )


def test_of_the_replicas_to_give_back_the_first_that_are_not_needed_stay() -> None:
    job = running("r", "a", 16, extra=2)
    replicas = [Replica(job, 0), Replica(replace(job, name="s"), 0)]
    assert drop_unneeded(replicas, {}, {"v4": 8}) == replicas[1:]
    assert drop_unneeded(replicas, {"v4": 8}, {"v4": 8}) == []
    assert drop_unneeded(replicas, {}, {"v4": 9}) == replicas
