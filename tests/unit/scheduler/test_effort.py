"""How many waiting jobs a pass looks at, and how often: its cost follows what changed, even where all are overdue.

Looks are counted, for they are the same on every machine; how long they take is measured by `bastion simulate bench`.
"""

from __future__ import annotations

from collections import Counter

import pytest

from quota import Policy
from scheduler import Job, JobStatus, Plan, Scheduler, Snapshot

NOW = 1_000_000.0
DAY = 86_400.0
PROJECTS = ("vision", "speech", "robots", "games")
SHARE = 24
SIZES = (1, 2, 4, 8)


def _kind_of_job(reads: Counter[str]) -> type[Job]:
    """Jobs that count in `reads`, by name, how often anything but their names is looked at."""

    class Watched(Job):
        __slots__ = ()

        def __getattribute__(self, attribute: str) -> object:
            value: object = super().__getattribute__(attribute)
            if attribute not in ("name", "__class__"):
                reads[super().__getattribute__("name")] += 1
            return value

    return Watched


def _full_pool(reads: Counter[str], waiting: int, waited: float) -> list[Job]:
    """Every project runs what it is entitled to; so many jobs wait, each for so many seconds at least."""
    watched = _kind_of_job(reads)
    jobs = [
        Job(
            name=f"running-{project}-{number}",
            project_id=project,
            user_id="u",
            queued_at=NOW - DAY / 2,
            status=JobStatus.RUNNING,
            tier=0,
            charged={"v4": 1},
            started_at=NOW - DAY / 2,
        )
        for project in PROJECTS
        for number in range(SHARE)
    ]
    for number in range(waiting):
        turn, size = divmod(number, len(SIZES))
        jobs.append(
            watched(
                name=f"waiting-{number:05d}",
                project_id=PROJECTS[turn % len(PROJECTS)],
                user_id="u",
                priority=1 + number % 5,
                queued_at=NOW - waited - number,
                demand={"v4": SIZES[size]},
            )
        )
    return jobs


def _after_one_came(reads: Counter[str], waiting: int, waited: float) -> Plan:
    """The plan of a pass that finds one job more than the one before it; `reads` are those of this pass."""
    jobs = _full_pool(reads, waiting, waited)
    pool = {"v4": SHARE * len(PROJECTS)}
    policy = Policy(tiers=(pool,), weights={project: {"v4": 1.0} for project in PROJECTS}, members={})
    scheduler = Scheduler()
    scheduler.schedule(Snapshot(policy=policy, jobs=tuple(jobs), check_membership=False), NOW)
    jobs.append(Job(name="new", project_id="vision", user_id="u", queued_at=NOW, demand={"v4": 2}))
    reads.clear()
    return scheduler.schedule(Snapshot(policy=policy, jobs=tuple(jobs), check_membership=False), NOW + 10)


@pytest.mark.parametrize("waited", [pytest.param(60.0, id="a minute"), pytest.param(2 * DAY, id="two days")])
def test_a_pass_looks_at_no_more_jobs_when_ten_times_as_many_wait(waited: float) -> None:
    few, many = Counter[str](), Counter[str]()
    _after_one_came(few, 400, waited)
    _after_one_came(many, 4000, waited)
    assert len(many) <= len(few) + 10
    assert many.total() <= few.total() + 50


def test_telling_those_behind_an_overdue_job_why_they_wait_takes_hardly_more_looks() -> None:
    waiting = 1000
    fresh, overdue = Counter[str](), Counter[str]()
    plans = [_after_one_came(fresh, waiting, 60.0), _after_one_came(overdue, waiting, 2 * DAY)]
    fresh.clear()
    overdue.clear()
    behind = [
        sum(d.reason is not None and "and has waited for more than" in d.reason.message for d in p.decisions)
        for p in plans
    ]
    assert behind[0] == 0 and behind[1] > waiting / 2
    assert overdue.total() <= 1.5 * fresh.total()
