"""`bastion simulate bench`: the scheduler's time and memory on synthetic jobs."""

from __future__ import annotations

import gc
import random
import resource
import sys
import time
import tracemalloc
from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, table

if TYPE_CHECKING:
    from scheduler.simulation.replay.synthetic import SyntheticLoad

# The first decisions start and stop many jobs; they are not the steady state.
_WARMING_DECISIONS = 5
_CHANGES = 3
# Decisions between two measurements of all reasons.
_EXPLAIN_EVERY = 5


def _define(values: flags.FlagValues) -> None:
    most = 1_000_000
    for name, default, meaning in (
        ("jobs", 10_000, "Number of waiting jobs."),
        ("projects", 16, "Projects."),
        ("running", 1_000, "Number of running jobs; they fill the pool."),
        ("decisions", 200, "Number of decisions to measure."),
    ):
        least = 0 if name in ("jobs", "running") else 1
        flags.DEFINE_integer(name, default, meaning, lower_bound=least, upper_bound=most, flag_values=values)
    flags.DEFINE_integer(
        "chain",
        1,
        "Length of the chains of waiting jobs: each job but the first of a chain awaits the one before it.",
        lower_bound=1,
        upper_bound=most,
        flag_values=values,
    )
    flags.DEFINE_float(
        "seconds", 60.0, "Stop after this time and at least five decisions.", lower_bound=0, flag_values=values
    )
    flags.DEFINE_integer("seed", 1, "Random seed of the synthetic jobs.", lower_bound=0, flag_values=values)


def _run(call: Invocation) -> int:
    values = call.flags
    load = _load(call, values.jobs)
    cold, times, explaining = _measure(load, values.decisions, values.seconds)
    # Read it before tracing, which uses memory itself.
    peak = _peak_rss_mb()
    del load
    (held, explained), (idle, _) = _traced_bytes(call, values.jobs), _traced_bytes(call, 0)
    from scheduler.simulation.replay.yardsticks import percentile

    found = {
        "decision_ms_p50": round(1000 * percentile(times, 0.5), 3),
        "decision_ms_p99": round(1000 * percentile(times, 0.99), 3),
        "cold_ms": round(1000 * cold, 3),
        "peak_rss_mb": round(peak, 1),
        "bytes_per_pending_job": round(max(0, held - idle) / values.jobs) if values.jobs else 0,
        "decision_ms_max": round(1000 * times[-1], 3),
        "explain_ms_p50": round(1000 * percentile(explaining, 0.5), 3),
        "bytes_per_explained_job": round(max(0, explained - idle) / values.jobs) if values.jobs else 0,
        "decisions": len(times),
        "jobs": values.jobs,
        "projects": values.projects,
        "running": values.running,
        "chain": values.chain,
    }
    if call.json:
        emit_json(found)
    else:
        print(table(("WHAT", "FIGURE"), [(name, f"{value:,}") for name, value in found.items()]), end="")
    return 0


def _load(call: Invocation, pending: int) -> SyntheticLoad:
    from scheduler.simulation.replay.synthetic import SyntheticLoad

    values = call.flags
    draw = random.Random(values.seed).random
    return SyntheticLoad(
        pending=pending, projects=values.projects, running=values.running, draw=draw, chain=values.chain
    )


def _measure(load: SyntheticLoad, decisions: int, seconds: float) -> tuple[float, list[float], list[float]]:
    """Seconds of the first decision, of decisions in the steady state, and of explaining some of them; sorted."""
    from scheduler import Scheduler

    gc.collect()
    scheduler = Scheduler()
    times: list[float] = []
    explaining: list[float] = []
    plan = None
    deadline = time.perf_counter() + seconds
    for number in range(decisions + _WARMING_DECISIONS):
        if plan is not None:
            load.step(plan, changes=_CHANGES)
        snapshot = load.snapshot()
        began = time.perf_counter()
        plan = scheduler.schedule(snapshot, load.now)
        decided = time.perf_counter()
        times.append(decided - began)
        if number % _EXPLAIN_EVERY == _EXPLAIN_EVERY - 1:
            assert len(plan.decisions) == len(snapshot.jobs) and plan.projects
            explaining.append(time.perf_counter() - decided)
        if began > deadline and number >= _WARMING_DECISIONS + 4:
            break
    return times[0], sorted(times[_WARMING_DECISIONS:]), sorted(explaining)


def _traced_bytes(call: Invocation, pending: int) -> tuple[int, int]:
    """Bytes held after a decision by the jobs, the scheduler's memory and the plan: without and with all reasons."""
    from scheduler import Scheduler

    gc.collect()
    tracemalloc.start()
    try:
        load = _load(call, pending)
        scheduler = Scheduler()
        plan = scheduler.schedule(load.snapshot(), load.now)
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
        decided = len(plan.decisions)
        gc.collect()
        explained, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert decided == pending + call.flags.running
    return held, explained


def _peak_rss_mb() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


BENCH = Command(
    summary="Measures the scheduler on synthetic jobs of several sizes, types, users and priorities.",
    usage="[--jobs=N] [--projects=M] [--running=K] [--chain=L] [--output=json]",
    details="""cold_ms is the first decision. decision_ms_p50 and decision_ms_p99 are for the steady state: between two
        decisions three jobs arrive, three end and three are cancelled, besides what the plan starts and stops.
        explain_ms_p50 is the extra time for the reasons of all waiting jobs, their queue positions and the projects'
        sums. bytes_per_pending_job is the memory of the waiting jobs, the plan and the scheduler's state, and
        bytes_per_explained_job the same with all reasons; peak_rss_mb is for the whole process.""",
    examples=("bastion simulate bench --jobs=10000 --projects=16 --running=1000 --output=json",),
    define=_define,
    takes_target=False,
    takes_output=True,
    run=_run,
)
