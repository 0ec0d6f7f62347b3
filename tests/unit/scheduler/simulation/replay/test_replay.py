"""The replay on traces small enough to be worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from scheduler.simulation.replay import policies, trace
from scheduler.simulation.replay.replay import Outcome, Replay, ReplayPolicy
from scheduler.simulation.replay.trace import TraceError, TraceJob, Window
from scheduler.simulation.replay.yardsticks import (
    completion_times,
    measure,
    percentile,
    spread,
    unfinished,
    useful_at_most,
)

# A tick, twice of which is a checkpoint's interval, and half of which is a restart's overhead.
TICK, CHECKPOINT, RESTART = 600.0, 1200.0, 300.0
SHARES = {"a": 0.5, "b": 0.5}


def job(name: str, submit: float, duration: float, chips: int, project: str = "") -> TraceJob:
    return TraceJob(name=name, project=project or name[0], submit=submit, duration=duration, chips=chips)


def window(*jobs: TraceJob, pool: int = 4, seconds: float = 6000.0) -> Window:
    half = pool // 2
    return Window(jobs=jobs, seconds=seconds, pool=pool, entitlements={"a": half, "b": half}, shares=SHARES)


# A borrower of the whole pool, and an owner who comes in the middle.
LENT = window(job("a1", 0, 3600, 4), job("b1", 900, 1800, 2))


def replay(
    policy: ReplayPolicy, over: Window = LENT, *, checkpoint: float = CHECKPOINT, sample: float = 0.0
) -> Outcome:
    return Replay(over, policy, tick=TICK, checkpoint=checkpoint, restart=RESTART, sample=sample).run()


def yardsticks(policy: ReplayPolicy, over: Window = LENT, *, checkpoint: float = CHECKPOINT) -> dict[str, float]:
    private = replay(policies.Static(), policies.private_window(over))
    return measure(replay(policy, over, checkpoint=checkpoint), completion_times(private))


class Scripted:
    """Evicts and starts the given jobs at each tick."""

    def __init__(
        self, script: dict[float, tuple[Sequence[int], Sequence[int]]], *, time_dependent: bool = False
    ) -> None:
        self.time_dependent = time_dependent
        self._script = script
        self.asked: list[float] = []

    def decide(self, replay: Replay, /) -> None:
        self.asked.append(replay.now)
        stop, start = self._script.get(replay.now, ((), ()))
        for index in stop:
            replay.evict(replay.trace[index].trace.name)
        for index in start:
            replay.start(replay.trace[index].trace.name)


# -- yardsticks --------------------------------------------------------------------------------------------------------


def test_first_come_first_served_lets_the_owner_wait_for_the_borrower() -> None:
    found = yardsticks(policies.Fifo())
    # b1 is seen at 1200, owed 2 chips until 3600, and runs to 5400; a holds its 2 for 3600 s.
    assert found["share_deficit_worst"] == pytest.approx(4800 / (4800 + 3600))
    assert found["share_deficit_total"] == pytest.approx(4800 / (4800 + 3600 + 7200))
    assert found["owner_return_max_s"] == 2400
    assert (found["wait_mean_s"], found["wait_p95_s"], found["wait_max_s"]) == (1350, 2700, 2700)
    assert found["never_entitled_wait_max_s"] == 0
    assert found["bounded_slowdown_mean"] == pytest.approx((1 + 4500 / 1800) / 2)
    # Alone it would have ended 2100 s after it was submitted; a1 fits no private quota.
    assert found["rho_violation_fraction"] == 1.0
    assert found["preemptions"] == found["waste_fraction"] == found["max_preemptions"] == 0
    assert found["eff"] == pytest.approx(1.0)


def test_the_greedy_rule_stops_the_borrower_in_the_tick_in_which_the_owner_is_seen() -> None:
    outcome = replay(policies.Greedy())
    a1, b1 = outcome.jobs
    # a1 has just made a checkpoint at 1200, goes on at 3000 when b1 ends, and then restarts for 300 s.
    assert (b1.first_start, b1.end, a1.end) == (1200, 3000, 5700)
    found = yardsticks(policies.Greedy())
    assert found["share_deficit_total"] == found["owner_return_max_s"] == found["in_quota_evictions"] == 0
    assert (found["preemptions"], found["max_preemptions"], found["livelocked_jobs"]) == (1, 1, 0)
    assert outcome.allocated == 4 * 1200 + 2 * 1800 + 4 * 2700
    assert outcome.useful == 4 * 3600 + 2 * 1800
    assert found["waste_fraction"] == pytest.approx(4 * 300 / outcome.allocated)
    assert found["rho_violation_fraction"] == 0.0


def test_without_checkpoints_a_stopped_job_begins_anew() -> None:
    outcome = replay(policies.Greedy(), checkpoint=0.0)
    assert outcome.jobs[0].end == 3000 + 300 + 3600
    assert outcome.wasted == 4 * (1200 + 300)
    # After 6000 nothing counts: of a1's last run 3000 s of which 300 were overhead.
    assert outcome.allocated == 4 * 1200 + 2 * 1800 + 4 * 3000
    assert outcome.useful == 4 * (3000 - 300) + 2 * 1800


def test_integrals_end_with_the_window() -> None:
    late = window(job("a1", 0, 3600, 4), job("b1", 900, 1800, 2), seconds=2400)
    outcome = replay(policies.Fifo(), late)
    assert outcome.allocated == outcome.useful == 4 * 2400
    found = yardsticks(policies.Fifo(), late)
    assert found["share_deficit_total"] == pytest.approx(2400 / (2400 + 2 * 2400))
    # It began in the window, so it counts although it ended behind.
    assert found["owner_return_max_s"] == 2400
    stopped_late = Scripted({0: ((), (0,)), 3000: ((0,), (1,)), 4800: ((), (0,))}, time_dependent=True)
    outcome = replay(stopped_late, late)
    assert outcome.jobs[0].job.evictions == 1
    assert outcome.preemptions == outcome.wasted == 0


def test_a_project_within_its_share_that_is_stopped_is_counted() -> None:
    over = window(job("a1", 0, 1200, 2), job("b1", 0, 1200, 2))
    found = yardsticks(Scripted({0: ((), (0, 1)), 600: ((0,), ()), 1200: ((), (0,))}, time_dependent=True), over)
    assert found["in_quota_evictions"] == 1


def test_a_job_stopped_three_times_without_a_new_checkpoint_is_livelocked() -> None:
    over = window(job("a1", 0, 3000, 2), seconds=60_000)
    script: dict[float, tuple[Sequence[int], Sequence[int]]] = {0.0: ((), (0,))}
    for number in range(3):
        script |= {1200.0 * number + 600: ((0,), ()), 1200.0 * number + 1200: ((), (0,))}
    outcome = replay(Scripted(script, time_dependent=True), over)
    (a1,) = outcome.jobs
    assert (a1.job.evictions, a1.most_futile, a1.job.evicted_at) == (3, 3, 3000)
    assert a1.job.evicted_seconds == 3 * 600
    assert measure(outcome, {})["livelocked_jobs"] == 1
    saved = Scripted({0: ((), (0,)), 1200: ((0,), (0,)), 1800: ((0,), (0,))})
    saved.time_dependent = True
    (a1,) = replay(saved, over).jobs
    # The first stop came with a checkpoint, the second after 300 s of work.
    assert (a1.job.futile_evictions, a1.most_futile, a1.end) == (1, 1, 1800 + 300 + 1800)


def test_useful_work_is_bounded_by_demand_over_time() -> None:
    assert useful_at_most(LENT) == 4 * 3600 + 2 * 1800
    busy = window(job("a1", 0, 9000, 4), seconds=6000)
    assert useful_at_most(busy) == 4 * 6000
    late = window(job("a1", 3000, 9000, 8), seconds=6000)
    assert useful_at_most(late) == 4 * 3000


def test_eff_counts_the_demand_of_jobs_left_out() -> None:
    private = policies.private_window(LENT)
    assert [one.name for one in private.jobs] == ["b1"]
    outcome = replay(policies.Static(), private)
    assert measure(outcome, {})["eff"] == 1.0
    assert measure(outcome, {}, demanded=LENT)["eff"] == pytest.approx(3600 / 18_000)


def test_without_jobs_all_yardsticks_are_zero() -> None:
    nothing = Outcome(window=LENT, jobs=[], owed={})
    assert set(measure(nothing, {}).values()) == {0.0}
    assert percentile([], 0.5) == 0.0


def test_several_replays_have_means_and_deviations() -> None:
    assert spread([{"eff": 1.0}, {"eff": 0.5}, {"eff": 0.0}]) == ({"eff": 0.5}, {"eff": 0.5})
    assert spread([{"eff": 1.0}]) == ({"eff": 1.0}, {"eff": 0.0})


# -- the engine --------------------------------------------------------------------------------------------------------


def test_a_policy_that_starts_nothing_ends_the_replay_and_its_jobs_are_unfinished() -> None:
    for time_dependent in (False, True):
        policy = Scripted({}, time_dependent=time_dependent)
        outcome = replay(policy)
        assert [one.trace.name for one in unfinished(outcome)] == ["a1", "b1"]
        assert policy.asked[0] == 0.0
        assert measure(outcome, {})["wait_max_s"] == 0.0
        assert completion_times(outcome) == {}
        # What is owed until the window ends is owed, although nothing happens any more.
        assert measure(outcome, {})["share_deficit_total"] == 1.0


def test_endless_evictions_end_the_replay() -> None:
    class Cruel:
        time_dependent = True

        def decide(self, replay: Replay, /) -> None:
            if replay.trace[0].running:
                replay.evict("a1")
            replay.start("a1")

    outcome = replay(Cruel(), window(job("a1", 0, 6000, 2)), checkpoint=0.0)
    assert len(unfinished(outcome)) == 1
    assert outcome.jobs[0].job.evictions > 100


def test_a_policy_cannot_use_more_than_the_pool() -> None:
    with pytest.raises(AssertionError, match="more than the pool"):
        replay(Scripted({0: ((), (0, 1))}), window(job("a1", 0, 10, 4), job("b1", 0, 10, 1)))


def test_shares_are_sampled_as_they_were_before_a_change() -> None:
    outcome = replay(policies.Fifo(), sample=1200.0)
    assert outcome.shares == [
        (0.0, {"a": 0, "b": 0}),
        (1200.0, {"a": 4, "b": 0}),
        (2400.0, {"a": 4, "b": 0}),
        (3600.0, {"a": 4, "b": 0}),
        (4800.0, {"a": 0, "b": 2}),
        (6000.0, {"a": 0, "b": 0}),
    ]


def test_decisions_are_timed_by_the_given_clock() -> None:
    clock = iter(range(1000))
    run = Replay(LENT, policies.Fifo(), tick=TICK, checkpoint=0, restart=0, timer=lambda: float(next(clock))).run()
    assert set(run.decision_seconds) == {1.0}
    assert measure(run, {})["decision_ms_p50"] == measure(run, {})["decision_ms_max"] == 1000.0


# -- reference policies ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "jobs", "starts"),
    [
        (policies.Fifo(), (("a1", 3), ("b1", 2), ("a2", 1)), [0, 600, 600]),
        (policies.Static(), (("a1", 1), ("a2", 2), ("a3", 1), ("a4", 1)), [0, 600, 0, 1200]),
        # b1 (2), then a1 (3) is passed over, a2 (1), and b2 (4) is passed over. Later b2 (2) goes before a1 (3).
        (policies.Greedy(), (("a1", 3), ("b1", 2), ("b2", 2), ("a2", 1)), [1200, 0, 600, 0]),
    ],
    ids=[
        "the head holds up a queue for all",
        "private quotas lend nothing",
        "the greedy rule ranks by what is asked for",
    ],
)
def test_reference_policies_start_jobs_by_their_rules(
    policy: object, jobs: tuple[tuple[str, int], ...], starts: list[int]
) -> None:
    over = window(*(job(name, 0, 600, chips) for name, chips in jobs))
    assert [one.first_start for one in replay(policy, over).jobs] == starts


def test_for_the_greedy_rule_a_project_without_a_share_comes_last() -> None:
    over = replace(window(job("a1", 0, 600, 4), job("b1", 0, 600, 4)), shares={"a": 0.0, "b": 1.0})
    assert [one.first_start for one in replay(policies.Greedy(), over).jobs] == [600, 0]


# -- traces ------------------------------------------------------------------------------------------------------------

HEADER = "job_id,project,user,submit_s,duration_s,chips"


def read(*rows: str, header: str = HEADER) -> list[TraceJob]:
    return trace.read([f"{line}\n" for line in (header, *rows)])


def test_a_trace_is_read_by_the_names_of_its_columns() -> None:
    assert read("j1,a,,5,60.5,8", "j2,a,eve,6,1,1") == [
        TraceJob(name="j1", project="a", submit=5.0, duration=60.5, chips=8),
        TraceJob(name="j2", project="a", submit=6.0, duration=1.0, chips=1, user="eve"),
    ]
    assert read("8,60,5,a,j1", header="chips,duration_s,submit_s,project,job_id")[0].chips == 8


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (("j1,a,,5,60,8", "j1,a,,5,60,8"), "line 3 of the trace: duplicate job_id 'j1'"),
        (("j1,a,,5,60",), "line 2 of the trace has too few columns"),
        (("j1,a,,5,4e8,1",), "duration_s above 0 and at most ten years"),
        (("j1,a,,five,60,8",), "line 2 of the trace: submit_s and duration_s must be numbers"),
        (("j1,a,,-1,60,8",), "line 2 of the trace: a job needs"),
        (("j1,a,,1,0,8",), "line 2 of the trace: a job needs"),
        (("j1,a,,1,nan,8",), "line 2 of the trace: a job needs"),
        (("j1,a,,inf,1,8",), "line 2 of the trace: a job needs"),
        (("j1,a,,1,1,0",), "line 2 of the trace: a job needs"),
        ((",a,,1,1,1",), "line 2 of the trace: a job needs"),
    ],
)
def test_an_error_names_the_line_of_a_bad_row(rows: tuple[str, ...], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        read(*rows)


def test_missing_columns_are_named() -> None:
    with pytest.raises(TraceError, match="no column duration_s, chips; it needs job_id, project"):
        read(header="job_id,project,submit_s")
    with pytest.raises(TraceError, match="no column job_id"):
        trace.read([])


def test_a_window_holds_what_is_submitted_in_it_and_what_would_still_run() -> None:
    day = trace.DAY_SECONDS
    jobs = [
        job("a3", 2 * day, day, 4),
        job("a1", 0, day, 4),  # has ended
        job("a2", 0.5 * day, day, 4),  # half of it is left
        job("b1", 1.5 * day, 2 * day, 2),
        job("a4", 3 * day, day, 4),  # comes later
        job("x1", 1.5 * day, day, 4),  # has no share
    ]
    cut = trace.cut(jobs, SHARES, start_day=1, days=2, load=0.5)
    assert [(one.name, one.submit / day, one.duration / day) for one in cut.jobs] == [
        ("a2", 0.0, 0.5),
        ("b1", 0.5, 2.0),
        ("a3", 1.0, 1.0),
    ]
    # Demanded in the window: 4 * 0.5 + 2 * 1.5 + 4 * 1 = 9 chip-days of its 2 days.
    assert cut.pool == 9
    assert cut.entitlements == {"a": 4, "b": 4}
    with pytest.raises(TraceError, match="no job of a project with a share in days 5 to 6"):
        trace.cut(jobs, SHARES, start_day=5, days=1, load=1)


def test_jobs_larger_than_the_pool_are_left_out() -> None:
    assert [one.name for one in trace.fitting(window(job("a1", 0, 1, 5), job("a2", 0, 1, 4))).jobs] == ["a2"]
    with pytest.raises(TraceError, match="every job of these days needs more than the pool's 4 chips"):
        trace.fitting(window(job("a1", 0, 1, 5)))


def test_copies_come_a_little_earlier_or_later() -> None:
    jobs = [job("a1", 100, 1, 1), job("a2", 100, 1, 1), job("a3", 10, 1, 1)]
    draws = iter([0.0, 0.75, 0.0])
    assert [one.submit for one in trace.jittered(jobs, 60.0, lambda: next(draws))] == [40.0, 130.0, 0.0]
