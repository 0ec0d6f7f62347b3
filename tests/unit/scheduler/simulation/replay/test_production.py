"""The production scheduler in the replay: what it is given, and how its plans are applied."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from quota import Policy
from scheduler import Decision, Job, JobStatus, Plan, ReasonCode, Snapshot, Verdict, schedule
from scheduler.simulation.production import Production
from scheduler.simulation.replay import chart
from scheduler.simulation.replay.policies import Static, private_window
from scheduler.simulation.replay.replay import Outcome, Replay
from scheduler.simulation.replay.synthetic import SyntheticLoad
from scheduler.simulation.replay.trace import TraceError, TraceJob, Window, only_type, scaled, shares_of
from scheduler.simulation.replay.yardsticks import completion_times, measure, unfinished

TICK, CHECKPOINT, RESTART = 600.0, 1200.0, 300.0
QUOTA = Policy(tiers=({"v4": 4},), weights={"a": {"v4": 1.0}, "b": {"v4": 1.0}}, members={})


def job(name: str, submit: float, duration: float, chips: int) -> TraceJob:
    return TraceJob(name=name, project=name[0], submit=submit, duration=duration, chips=chips, user="u")


def window(*jobs: TraceJob) -> Window:
    return Window(
        jobs=jobs,
        seconds=6000.0,
        pool=4,
        entitlements={"a": 2, "b": 2},
        shares={"a": 0.5, "b": 0.5},
        resource_type="v4",
    )


def production(plan: Callable[[Snapshot, float], Plan] | None = None) -> Production:
    return Production(Snapshot(policy=QUOTA, jobs=(), check_membership=False), plan=plan)


LENT = window(job("a1", 0, 3600, 4), job("b1", 900, 1800, 2))


def replay(policy: Production, over: Window = LENT, *, checkpoint: float = CHECKPOINT) -> Outcome:
    return Replay(over, policy, tick=TICK, checkpoint=checkpoint, restart=RESTART).run()


class Scripted:
    """Gives prepared plans for the passes of each tick; keeps the snapshots."""

    def __init__(self, script: dict[float, Sequence[dict[str, Verdict]]]) -> None:
        self._script = {now: iter(passes) for now, passes in script.items()}
        self.asked: list[tuple[float, dict[str, Job]]] = []

    def __call__(self, snapshot: Snapshot, now: float) -> Plan:
        self.asked.append((now, {job.name: job for job in snapshot.jobs}))
        verdicts = next(self._script.get(now, iter(())), {})
        acting = [Decision(name=name, verdict=verdict) for name, verdict in verdicts.items()]
        return Plan(
            acting=tuple(one for one in acting if one.verdict is not Verdict.WAIT),
            evicted=tuple(one.name for one in acting if one.verdict is Verdict.EVICT),
            promised=frozenset(name for name, verdict in verdicts.items() if verdict is Verdict.WAIT),
        )

    def of(self, name: str) -> list[tuple[float, Job]]:
        return [(now, jobs[name]) for now, jobs in self.asked if name in jobs]


# -- the real scheduler ------------------------------------------------------------------------------------------------


def test_the_owner_starts_in_the_tick_in_which_its_borrower_is_stopped() -> None:
    outcome = replay(production())
    a1, b1 = outcome.jobs
    assert (a1.first_start, b1.first_start, b1.end) == (0, 1200, 3000)
    assert a1.job.evictions == 1
    private = replay_private()
    found = measure(outcome, private)
    assert found["share_deficit_total"] == found["owner_return_max_s"] == found["in_quota_evictions"] == 0
    assert found["rho_violation_fraction"] == 0.0
    assert unfinished(outcome) == []


def replay_private() -> dict[str, float]:
    static = Replay(private_window(LENT), Static(), tick=TICK, checkpoint=CHECKPOINT, restart=RESTART)
    return completion_times(static.run())


def test_the_same_window_is_replayed_the_same() -> None:
    draw = random.Random(7).random
    jobs = sorted(
        (
            job(f"{'ab'[number % 2]}{number}", draw() * 5000, 300 + draw() * 2000, 1 + int(draw() * 4))
            for number in range(40)
        ),
        key=lambda one: one.submit,
    )
    first, second = (replay(production(), window(*jobs)) for _ in range(2))
    assert [one.end for one in first.jobs] == [one.end for one in second.jobs]
    assert unfinished(first) == []
    assert measure(first, {})["in_quota_evictions"] == 0


# -- the adapter -------------------------------------------------------------------------------------------------------


def test_after_an_eviction_a_second_plan_starts_the_claimant() -> None:
    script = Scripted(
        {
            0.0: [{"a1": Verdict.START}],
            1200.0: [{"a1": Verdict.EVICT, "b1": Verdict.WAIT}, {"b1": Verdict.START}],
            3000.0: [{"a1": Verdict.START}],
        }
    )
    outcome = replay(production(script))
    assert [one.first_start for one in outcome.jobs] == [0, 1200]
    second = [jobs for now, jobs in script.asked if now == 1200.0][1]
    # The stopped job is out of sight for the rest of the tick, and the claimant is known as one.
    assert list(second) == ["b1"]
    assert second["b1"].promised
    third = next(jobs for now, jobs in script.asked if now == 1800.0)
    assert third["b1"].status is JobStatus.RUNNING and not third["b1"].promised
    assert third["b1"].charged == {"v4": 2} and third["b1"].started_at == 1200.0
    assert third["a1"].status is JobStatus.PENDING and third["a1"].charged == {}


def test_a_promise_ends_unless_the_next_plan_repeats_it() -> None:
    script = Scripted({0.0: [{"a1": Verdict.WAIT}], 600.0: [{}], 1200.0: [{"a1": Verdict.START}]})
    replay(production(script), window(job("a1", 0, 600, 2)))
    assert [told.promised for _, told in script.of("a1")][:3] == [False, True, False]


def test_evictions_of_the_second_plan_do_not_count() -> None:
    script = Scripted(
        {
            0.0: [{"a1": Verdict.START}],
            600.0: [{"a1": Verdict.EVICT}, {"b1": Verdict.START}],
            1200.0: [{"b1": Verdict.EVICT}, {"a1": Verdict.START, "b1": Verdict.EVICT}],
            2400.0: [{"b1": Verdict.START}],
        }
    )
    outcome = replay(production(script), window(job("a1", 0, 900, 2), job("b1", 0, 700, 2)))
    a1, b1 = outcome.jobs
    assert (a1.job.evictions, b1.job.evictions, outcome.preemptions) == (1, 1, 2)
    assert b1.first_start == 600


def test_a_job_that_does_not_change_is_the_same_value() -> None:
    script = Scripted({0.0: [{"a1": Verdict.START}], 5400.0: [{"b1": Verdict.START}]})
    replay(production(script), window(job("a1", 0, 4000, 2), job("b1", 0, 600, 2)), checkpoint=0.0)
    told = [one for now, one in script.of("b1") if now <= 5400.0]
    assert len(told) >= 8
    assert len({id(one) for one in told}) == 1


def test_while_a_job_waits_each_tick_decides() -> None:
    script = Scripted({0.0: [{"a1": Verdict.START}], 1200.0: [{"b1": Verdict.START}]})
    replay(production(script), window(job("a1", 0, 9000, 2), job("b1", 0, 600, 2)))
    # Every tick while b1 waits, once more after it started, and at each end.
    assert [now for now, _ in script.asked] == [0, 600, 1200, 1800, 9000]


def test_the_scheduler_learns_of_checkpoints_and_evictions() -> None:
    script = Scripted(
        {
            0.0: [{"a1": Verdict.START}],
            1800.0: [{"a1": Verdict.EVICT}],
            2400.0: [{"a1": Verdict.START}],
            3000.0: [{"a1": Verdict.EVICT}],
            6000.0: [{"a1": Verdict.START}],
        }
    )
    jobs = (job("a1", 0, 9000, 2), job("b1", 0, 600, 2))
    replay(production(script), window(*jobs))
    told = dict(script.of("a1"))
    assert told[600.0].started_at == 0.0 and told[600.0].waiting_since is None
    assert told[2400.0].waiting_since == 1800.0
    assert told[3600.0].waiting_since == 3000.0
    assert told[600.0].checkpointed_at is None
    # One checkpoint at 1200; the next after 300 s of restarting and 1200 of progress.
    assert told[1200.0].checkpointed_at == told[1800.0].checkpointed_at == 1200.0
    assert told[6600.0].checkpointed_at is None
    assert told[7800.0].checkpointed_at == 7500.0
    assert (told[0.0].evictions, told[2400.0].evictions, told[3600.0].evictions) == (0, 1, 2)
    assert (told[2400.0].futile_evictions, told[3600.0].futile_evictions) == (0, 1)
    assert told[0.0].evicted_at is None and told[3600.0].evicted_at == 3000.0
    assert told[3600.0].evicted_seconds == 1800.0 + 600.0


def test_only_one_resource_type_can_be_replayed() -> None:
    assert only_type(QUOTA) == "v4"
    with pytest.raises(TraceError, match="has 0 resource types; use"):
        only_type(Policy(tiers=(), weights={}, members={}))
    with pytest.raises(TraceError, match="has 2 resource types: v4, v5e; use"):
        only_type(Policy(tiers=({"v4": 1, "v5e": 1},), weights={}, members={}))


def test_shares_stay_when_the_pool_is_sized_for_a_load() -> None:
    policy = Policy(
        tiers=({"v4": 1}, {"v4": 2}), weights={"a": {"v4": 3.0}, "b": {"v4": 1.0}, "c": {}}, members={"d": ()}
    )
    assert shares_of(policy, "v4") == {"a": 0.75, "b": 0.25}
    sized, over = scaled(policy, "v4", replace(LENT, pool=30))
    assert sized.total("v4") == 30 and len(sized.tiers) == 1
    assert over.entitlements == {"a": 22, "b": 7}
    assert shares_of(Policy(tiers=({"v4": 1},), weights={"a": {"v4": 0.0}}, members={}), "v4") == {"a": 0.0}


# -- synthetic jobs ----------------------------------------------------------------------------------------------------


def synthetic(**sizes: int) -> SyntheticLoad:
    return SyntheticLoad(**{"pending": 60, "projects": 3, "running": 20, **sizes}, draw=random.Random(3).random)


def test_synthetic_jobs_fill_the_pool_and_the_scheduler_can_work_with_them() -> None:
    load = synthetic()
    snapshot = load.snapshot()
    assert snapshot.policy is not None
    running = [one for one in snapshot.jobs if one.status is JobStatus.RUNNING]
    assert (len(running), len(snapshot.jobs)) == (20, 80)
    for kind in snapshot.policy.resource_types:
        assert sum(one.charged.get(kind, 0) for one in running) <= snapshot.policy.total(kind)
    assert len({one.name for one in snapshot.jobs}) == 80
    codes = {one.reason.code for one in schedule(snapshot, load.now).decisions if one.reason is not None}
    assert ReasonCode.NOT_MEMBER not in codes and ReasonCode.EXCEEDS_POOL not in codes
    assert synthetic().snapshot() == snapshot


def test_a_step_applies_the_plan_and_lets_jobs_come_and_go() -> None:
    load = synthetic()
    before = load.now
    names = [one.name for one in load.snapshot().jobs]
    plan = Plan(
        acting=(Decision(name=names[0], verdict=Verdict.EVICT), Decision(name=names[30], verdict=Verdict.START))
    )
    load.step(plan, changes=0)
    after = {one.name: one for one in load.snapshot().jobs}
    assert load.now > before
    assert after[names[0]].status is JobStatus.PENDING and after[names[0]].charged == {}
    assert after[names[30]].status is JobStatus.RUNNING and after[names[30]].charged == after[names[30]].demand
    assert after[names[31]].status is JobStatus.PENDING
    load.step(Plan(), changes=2)
    later = {one.name: one for one in load.snapshot().jobs}
    assert len(later) == 80
    assert sum(one.status is JobStatus.RUNNING for one in later.values()) == 18
    assert len(later.keys() - after.keys()) == 4


def test_a_step_removes_at_most_the_jobs_that_there_are() -> None:
    load = synthetic(pending=0, running=1)
    load.step(Plan(), changes=3)
    assert len(load.snapshot().jobs) == 6


# -- the chart ---------------------------------------------------------------------------------------------------------


def test_blocks_grow_with_the_value_and_nothing_above_zero_is_hidden() -> None:
    assert chart.blocks([0, 0.01, 1, 2, 3, 4, 9], 4) == " ▁▂▄▆██"
    assert chart.blocks([0, 5], 0) == " ▁"


def test_columns_are_means_of_equal_stretches() -> None:
    assert chart.columns([1, 3, 5, 7], 2) == [2, 6]
    assert chart.columns([1, 3], 10) == [1, 3]
    assert chart.columns([], 10) == []


def test_a_chart_has_a_row_for_each_project_the_largest_first_and_one_for_the_pool() -> None:
    shares = [(0.0, {"a": 0, "b": 4, "c": 0}), (1.0, {"a": 2, "b": 4, "c": 2})]
    assert chart.share_rows(shares, {"a": 2, "b": 4, "c": 0}, 8, 2) == [
        ("b", "4.0 of 4", "▄▄"),
        ("a", "1.0 of 2", " ▄"),
        ("c", "1.0 of 0", " ▂"),
        ("the pool", "6.0 of 8", "▄█"),
    ]
    assert chart.share_rows([], {}, 8, 2) == [("the pool", "0.0 of 8", "")]
