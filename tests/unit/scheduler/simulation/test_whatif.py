"""Small histories replayed under two quota files, with waits and evictions worked out by hand."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace

import pytest

from quota import Policy
from quota.rules import ProjectRules
from scheduler import Job, JobStatus, Plan, Scheduler, Snapshot
from scheduler.simulation import production
from scheduler.simulation.durations import Durations
from scheduler.simulation.queue_outlook import PLACES_MAX, outlook
from scheduler.simulation.whatif import Comparison, PastJob, compare

HOUR = 3600.0
DAY = 86_400.0
# The grace period, and until the nodes are gone.
STOPPING = 60.0 + 30.0


def policy(a: float, b: float, *, pool: int = 16, members: Mapping[str, tuple[str, ...]] | None = None) -> Policy:
    rules = ProjectRules(keep_idle_seconds=0.0)
    return Policy(
        tiers=({"v4": pool},),
        weights={"a": {"v4": a}, "b": {"v4": b}},
        members=members or {"a": ("ann",), "b": ("bob",)},
        project_rules={"a": rules, "b": rules},
    )


def past(
    name: str,
    chips: int,
    at: float,
    seconds: float,
    *,
    project: str = "a",
    user: str = "",
    began: float | None = None,
    kind: str = "v4",
) -> PastJob:
    user = user or {"a": "ann", "b": "bob"}[project]
    job = Job(name=name, project_id=project, user_id=user, queued_at=at, demand={kind: chips})
    return PastJob(job=job, seconds=seconds, began_at=at if began is None else began)


def told(
    jobs: list[PastJob],
    before: Policy,
    after: Policy,
    *,
    begin: float = 0.0,
    end: float = DAY,
    work_max: int = 100_000,
    tick: float = 0.0,
) -> Comparison:
    found = compare(jobs, before, after, begin=begin, end=end, work_max=work_max, tick=tick)
    assert found is not None
    return found


def test_a_file_that_doubles_a_projects_share_shortens_its_wait_by_what_the_borrower_had_left() -> None:
    """a borrows the whole pool for ten hours; b's job of half of it comes after one."""
    jobs = [past("a-1", 16, 0, 10 * HOUR), past("b-1", 8, HOUR, HOUR, project="b")]
    found = told(jobs, policy(3, 1), policy(2, 2))
    before, after = found.before.projects["b"], found.after.projects["b"]
    assert (before.wait_mean, after.wait_mean) == (9 * HOUR, STOPPING)
    assert (before.wait_p50, before.wait_p95) == (9 * HOUR, 9 * HOUR)
    assert (found.before.total.evictions, found.after.projects["a"].evictions) == (0, 1)
    assert before.held == after.held == {"v4": 8 * HOUR}
    # Stopped after an hour, a-1 does all of it again.
    assert found.before.projects["a"].held == {"v4": 16 * 10 * HOUR}
    assert found.after.projects["a"].held == {"v4": 16 * (HOUR + STOPPING + 10 * HOUR)}
    assert found.after.total.held == {"v4": 16 * (11 * HOUR + STOPPING) + 8 * HOUR}


def test_a_job_that_ran_when_the_window_begins_takes_part_and_is_not_counted() -> None:
    jobs = [past("a-1", 16, -HOUR, 3 * HOUR), past("b-1", 8, HOUR, HOUR, project="b")]
    found = told(jobs, policy(3, 1), policy(2, 2))
    assert found.before.projects["a"].jobs == 0
    assert found.before.projects["a"].wait_mean is None
    assert found.before.projects["a"].held == {"v4": 16 * 2 * HOUR}
    assert found.before.projects["b"].wait_mean == HOUR
    assert found.after.projects["b"].wait_mean == STOPPING


def test_a_job_that_waited_when_the_window_begins_goes_first_and_is_not_counted() -> None:
    jobs = [past("old", 16, -HOUR, HOUR, began=HOUR), past("new", 16, HOUR / 2, HOUR)]
    found = told(jobs, policy(1, 1), policy(1, 1))
    assert found.before.total.jobs == 1
    assert found.before.total.wait_mean == HOUR / 2
    assert found.before == found.after


def test_a_job_that_was_over_before_the_window_takes_no_part() -> None:
    found = told([past("gone", 16, -DAY, HOUR), past("a-1", 16, 0, HOUR)], policy(1, 1), policy(1, 1))
    assert (found.before.total.jobs, found.before.total.held) == (1, {"v4": 16 * HOUR})


def test_waits_that_end_after_the_window_count_and_capacity_then_does_not() -> None:
    jobs = [past("a-1", 16, 0, 2 * DAY), past("a-2", 16, HOUR, HOUR)]
    total = told(jobs, policy(1, 1), policy(1, 1)).before.total
    assert (total.jobs, total.never, total.wait_p95) == (2, 0, 2 * DAY - HOUR)
    assert total.held == {"v4": 16 * DAY}


def test_jobs_of_former_members_never_start_and_say_why() -> None:
    after = policy(1, 1, members={"a": ("ann",), "b": ("eve",)})
    jobs = [past("a-1", 8, 0, HOUR), past("b-1", 8, 0, HOUR, project="b")]
    found = told(jobs, policy(1, 1), after)
    assert found.before.never == ()
    ((job, why),) = found.after.never
    assert (job.name, why) == ("b-1", "user bob is not a member of project b; bob is a member of no project")
    assert (found.after.projects["b"].never, found.after.projects["b"].wait_mean) == (1, None)
    assert found.after.projects["a"].never == 0


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (past("a-1", 32, 0, HOUR), "32"),
        (past("a-1", 8, 0, HOUR, kind="v5e"), "v5e"),
    ],
    ids=["larger than the pool", "of a type that is not in the file"],
)
def test_a_job_that_no_capacity_could_start_is_named_under_both_files(job: PastJob, why: str) -> None:
    found = told([job], policy(1, 1), policy(2, 1))
    assert found.before.never == found.after.never
    assert why in found.before.never[0][1]


def test_a_maximum_runtime_cuts_jobs_short_and_those_behind_them_start_earlier() -> None:
    short = ProjectRules(keep_idle_seconds=0.0, maximum_runtime_seconds=2 * HOUR)
    after = replace(policy(1, 1), project_rules={"a": short, "b": short})
    jobs = [past("a-1", 16, 0, 10 * HOUR), past("a-2", 16, 0, HOUR)]
    found = told(jobs, policy(1, 1), after)
    assert (found.before.total.overtime, found.after.total.overtime) == (0, 1)
    assert (found.before.total.wait_p95, found.after.total.wait_p95) == (10 * HOUR, 2 * HOUR)


def test_a_user_with_less_recent_usage_goes_first() -> None:
    """The replay accounts usage as the daemon does: bea has used nothing when both of them wait."""
    both = {"a": ("ann", "bea"), "b": ("bob",)}
    jobs = [
        past("ann-1", 16, HOUR, 10 * HOUR),
        past("ann-2", 16, 2 * HOUR, 4 * HOUR),
        past("bea-1", 16, 3 * HOUR, 4 * HOUR, user="bea"),
    ]
    one = policy(1, 0, members=both)
    total = told(jobs, one, one).before.total
    # bea waits for 8 hours and ann-2 for 13; in order of age it would have been 9 and 12.
    assert (total.wait_p50, total.wait_p95) == (8 * HOUR, 13 * HOUR)


def test_a_start_is_late_by_at_most_a_tick() -> None:
    jobs = [past("a-1", 16, 0, 100.0), past("a-2", 16, 10.0, HOUR)]
    exact = told(jobs, policy(1, 1), policy(1, 1)).before.total.wait_p95
    late = told(jobs, policy(1, 1), policy(1, 1), tick=60.0).before.total.wait_p95
    assert exact == 90.0
    assert late is not None
    assert 90.0 <= late <= 150.0


def crowd(count: int) -> list[PastJob]:
    drawn = random.Random(7)
    jobs = []
    for number in range(count):
        at, project = drawn.random() * DAY, drawn.choice("ab")
        jobs.append(past(f"j-{number}", drawn.choice((2, 4, 8)), at, drawn.uniform(0.1, 2.0) * HOUR, project=project))
    return jobs


def test_the_same_arguments_give_the_same_answer_whatever_the_order_of_the_jobs() -> None:
    jobs = crowd(60)
    found = told(jobs, policy(3, 1), policy(1, 1), tick=60.0)
    assert told(jobs[::-1], policy(3, 1), policy(1, 1), tick=60.0) == found
    assert found.before != found.after


def test_the_replays_ask_the_scheduler_no_more_than_the_work_allows_and_cover_the_last_part(monkeypatch) -> None:
    asked = []

    class Counting(Scheduler):
        def schedule(self, snapshot: Snapshot, now: float) -> Plan:
            asked.append(len(snapshot.jobs))
            return super().schedule(snapshot, now)

    monkeypatch.setattr(production, "Scheduler", Counting)
    jobs = crowd(300)
    found = told(jobs, policy(3, 1), policy(1, 1), work_max=4000, tick=60.0)
    assert 0 < found.begin < found.end == DAY
    assert found.before.total.jobs == found.after.total.jobs < 300
    # Two replays of at most three windows.
    assert sum(asked) <= 6 * 4000


def test_without_a_window_short_enough_there_is_no_answer() -> None:
    assert compare(crowd(50), policy(1, 1), policy(1, 1), begin=0, end=DAY, work_max=3) is None
    # The third window would still have an hour, and take too much as well.
    assert compare(crowd(300), policy(3, 1), policy(1, 1), begin=0, end=DAY, work_max=1000) is None


def test_a_claim_that_is_older_than_the_window_is_met_under_the_file_that_gives_it_a_share() -> None:
    jobs = [
        past("a-1", 16, -HOUR, 3 * HOUR),
        past("b-old", 8, -2 * DAY, 3 * HOUR, project="b", began=5 * HOUR),
        past("b-new", 8, HOUR, HOUR, project="b"),
    ]
    found = told(jobs, policy(1, 0), policy(1, 1))
    assert (found.before.projects["b"].wait_mean, found.before.total.evictions) == (HOUR, 0)
    # b-old has all of b's share for three hours; what a-1 freed beside it is lent to b-new at once.
    assert (found.after.projects["b"].wait_mean, found.after.total.evictions) == (0.0, 1)


def waiting(name: str, chips: int, *, project: str = "a", **fields: object) -> Job:
    user = {"a": "ann", "b": "bob"}[project]
    return Job(
        **{"name": name, "project_id": project, "user_id": user, "queued_at": 0.0, "demand": {"v4": chips}, **fields}
    )


def look(jobs: list[Job], before: Policy, after: Policy, declared: Mapping[str, float], decisions_max: int = 2000):
    return outlook(
        Snapshot(policy=before, jobs=tuple(jobs)),
        after,
        HOUR,
        Durations(declared=declared),
        draws=20,
        draw=lambda: random.Random(1).random,
        horizon_seconds=30 * DAY,
        decisions_max=decisions_max,
    )


def test_the_outlook_has_the_present_queue_in_order_under_both_files() -> None:
    running = waiting("a-1", 16, status=JobStatus.RUNNING, charged={"v4": 16}, tier=0, started_at=0.0)
    jobs = [running, waiting("b-1", 8, project="b"), waiting("a-2", 4, queued_at=1.0), waiting("big", 99)]
    found, untold = look(jobs, policy(3, 1), policy(2, 2), {"a-1": 5 * HOUR, "b-1": HOUR, "a-2": HOUR})
    assert untold == 0
    assert found[-1].job.name == "big"
    assert found[-1].before.p50 is None
    assert "ExceedsPool" in found[-1].before.why
    (b_1,) = [one for one in found if one.job.name == "b-1"]
    assert (b_1.before.p50, b_1.after.p50) == (5 * HOUR, HOUR + STOPPING)


def test_jobs_too_far_back_in_the_queue_are_counted_only() -> None:
    jobs = [waiting(f"w-{number:04}", 16, queued_at=float(number)) for number in range(PLACES_MAX + 7)]
    found, untold = look(jobs, policy(1, 1), policy(1, 1), {}, decisions_max=3)
    assert (len(found), untold) == (PLACES_MAX, 7)
    assert found[0].job.name == "w-0000"
