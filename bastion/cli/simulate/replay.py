"""`bastion simulate replay`: replay a trace of jobs through a policy, and measure the result."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, plain, say, table
from bastion.cli.phrases import count, duration
from bastion.cli.progress_line import ProgressLine
from bastion.cli.quota import file as quota_file
from bastion.core.errors import EXIT_REFUSED, Refused
from quota import QuotaFileError, load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bastion.cli.simulate.runs import Result, Task

_WIDEST_CHART = 160
# A trace may count seconds from 1970.
_START_DAY_MAX = 36_600.0
# The longest job of a trace; a longer interval means no checkpoints, which is 0.
_CHECKPOINT_INTERVAL_MAX = 10 * 365 * 86_400.0
# With more than a day per restart a replay might not end.
_RESTART_OVERHEAD_MAX = 86_400.0
# More than a week is another trace.
_JITTER_MAX = 7 * 86_400.0


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string("quota", None, "The quota file, with one resource type.", flag_values=values)
    flags.DEFINE_string("trace", None, "The trace: CSV, optionally gzipped; - means stdin.", flag_values=values)
    flags.DEFINE_float(
        "start_day",
        0.0,
        "Day of the trace at which the window begins.",
        lower_bound=0.0,
        upper_bound=_START_DAY_MAX,
        flag_values=values,
    )
    flags.DEFINE_float("days", 14.0, "Length of the window.", lower_bound=0.001, upper_bound=3660.0, flag_values=values)
    flags.DEFINE_float(
        "load",
        None,
        "Requested chip-time as a fraction of capacity; sets the pool. Default: the pool of the quota file.",
        lower_bound=0.001,
        upper_bound=1000.0,
        flag_values=values,
    )
    flags.DEFINE_float(
        "tick", 30.0, "Seconds between decisions.", lower_bound=1.0, upper_bound=86400.0, flag_values=values
    )
    flags.DEFINE_float(
        "checkpoint_interval",
        1800.0,
        "Seconds of progress between a job's checkpoints; 0: no checkpoints.",
        lower_bound=0.0,
        upper_bound=_CHECKPOINT_INTERVAL_MAX,
        flag_values=values,
    )
    flags.DEFINE_float(
        "restart_overhead",
        300.0,
        "Seconds that a stopped job loses on restart.",
        lower_bound=0.0,
        upper_bound=_RESTART_OVERHEAD_MAX,
        flag_values=values,
    )
    flags.DEFINE_enum("policy", "bastion", ["bastion", "greedy", "fifo", "static"], "The policy.", flag_values=values)
    flags.DEFINE_integer(
        "replicates",
        1,
        "Number of replays: the trace, and copies of it with shifted submit times. Shows means.",
        lower_bound=1,
        upper_bound=1000,
        flag_values=values,
    )
    flags.DEFINE_float(
        "jitter",
        60.0,
        "Maximum shift of a copy's submit times, in seconds.",
        lower_bound=0.0,
        upper_bound=_JITTER_MAX,
        flag_values=values,
    )
    flags.DEFINE_integer("seed", 1, "Random seed of the shifts.", lower_bound=0, flag_values=values)
    flags.DEFINE_integer("processes", 1, "Parallel replays.", lower_bound=1, upper_bound=256, flag_values=values)
    flags.DEFINE_string("plot", None, "Plot the projects' chips over time in this PNG file.", flag_values=values)


def _run(call: Invocation) -> int:
    if not call.flags.quota or not call.flags.trace:
        raise Refused("bastion simulate replay requires both files: --quota=FILE --trace=FILE.csv")
    if call.flags.quota == call.flags.trace == "-":
        raise Refused("only one of the two files can be - (stdin)")
    if 0 < call.flags.checkpoint_interval < 1:
        raise Refused("--checkpoint_interval must be at least 1, or 0 for jobs without checkpoints")
    if call.flags.trace == "-" and call.flags.replicates > 1:
        raise Refused("with several replicates the trace is read several times, so it cannot be - (stdin)")
    if call.flags.plot is not None:
        from bastion.cli.simulate import plot

        plot.check(call.flags.plot)
    data = quota_file.read(call.flags.quota)
    try:
        load(data)
    except QuotaFileError as error:
        quota_file.tell_problems(call.flags.quota, error, json=call.json)
        return EXIT_REFUSED
    results = _replay(_tasks(call, data), call.flags.processes)
    _tell_left_out(results[0])
    if call.flags.plot is not None:
        _plot(call, results[0])
    if call.json:
        emit_json(document(call, results))
    else:
        _show(call, results)
    return 0


def _tasks(call: Invocation, quota: bytes) -> list[Task]:
    from bastion.cli.simulate.runs import Task

    values = call.flags
    return [
        Task(
            quota=quota,
            trace=values.trace,
            start_day=values.start_day,
            days=values.days,
            load=values.load,
            tick=values.tick,
            checkpoint=values.checkpoint_interval,
            restart=values.restart_overhead,
            policy=values.policy,
            jitter=values.jitter if copy else 0.0,
            seed=values.seed * 1000 + copy,
        )
        for copy in range(values.replicates)
    ]


def _replay(tasks: list[Task], processes: int) -> list[Result]:
    from bastion.cli.simulate.runs import run_tasks

    progress = ProgressLine()
    results: list[Result] = []
    if sys.stderr.isatty() or len(tasks) > 1:
        progress.update("replaying")
    for result in run_tasks(tasks, processes):
        results.append(result)
        if len(tasks) > 1:
            progress.update(f"replayed {len(results)} of {len(tasks)}")
    progress.clear()
    return results


def _tell_left_out(result: Result) -> None:
    """Report the jobs that the metrics leave out."""
    for number, what in (
        (result.larger_than_pool, f"larger than the pool of {result.pool} chips, left out"),
        (result.larger_than_quota, "larger than their project's private quota, left out"),
        (result.without_quota, "of projects without a quota, in the whole trace, left out"),
        (result.never_ended, "not completed by this policy, not in the waits"),
    ):
        if number:
            say(f"bastion: note: jobs {what}: {number}")


def document(call: Invocation, results: list[Result]) -> dict[str, Any]:
    """The metrics (means of several replays) and the parameters, for `--output=json`."""
    from scheduler.simulation.replay.yardsticks import spread

    first, values = results[0], call.flags
    means, deviations = spread([result.yardsticks for result in results])
    metrics: dict[str, Any] = {
        **(first.yardsticks if len(results) == 1 else means),
        "policy": values.policy,
        "jobs": first.jobs,
        "pool": first.pool,
        "entitlements": dict(first.entitlements),
        "jobs_larger_than_pool": first.larger_than_pool,
        "jobs_larger_than_quota": first.larger_than_quota,
        "jobs_without_quota": first.without_quota,
        "jobs_never_ended": first.never_ended,
    }
    if len(results) > 1:
        metrics["sd"] = deviations
        metrics["replicates"] = [{**result.yardsticks, "pool": result.pool} for result in results]
    return metrics


def _show(call: Invocation, results: list[Result]) -> None:
    from scheduler.simulation.replay.chart import share_rows
    from scheduler.simulation.replay.yardsticks import spread

    first, values = results[0], call.flags
    pool = "the pool of the quota file" if values.load is None else f"load {values.load:g}"
    checkpoints = duration(values.checkpoint_interval) if values.checkpoint_interval else ""
    print(
        f"{values.policy} on days {values.start_day:g} to {values.start_day + values.days:g}, {pool}: "
        f"{first.jobs:,} jobs, {first.pool:,} chips, a tick every {duration(values.tick)}, "
        f"{f'a checkpoint every {checkpoints}' if checkpoints else 'no checkpoints'}, "
        f"{duration(values.restart_overhead)} to restart\n"
    )
    means, deviations = spread([result.yardsticks for result in results])
    if len(results) > 1:
        rows = [(name, f"{mean:,.5g}", f"{deviations[name]:,.2g}") for name, mean in means.items()]
        print(table(("METRIC", f"MEAN OF {len(results)}", "SD"), rows))
    else:
        print("".join(f"{line}\n" for line in summary(first.yardsticks)))
    print("Chips in use over time; a full block is twice a project's entitlement, or the whole pool")
    taken = max(len(project) for project in first.entitlements) + 24
    width = min(_WIDEST_CHART, max(20, shutil.get_terminal_size().columns - taken))
    rows = share_rows(first.shares, first.entitlements, first.pool, width)
    print(table(("PROJECT", "MEAN", f"DAY {values.start_day:g} TO {values.start_day + values.days:g}"), rows), end="")


def summary(found: Mapping[str, float]) -> list[str]:
    """The metrics of one replay as text."""
    names = ("owner_return_max_s", "wait_mean_s", "wait_p95_s", "wait_max_s", "never_entitled_wait_max_s")
    returned, mean, most, longest, never = (duration(found[name]) for name in names)
    livelocked = count(int(found["livelocked_jobs"]), "job")
    return [
        f"Owners:    {found['share_deficit_total']:.3%} of their chip-time came late, "
        f"{found['share_deficit_worst']:.3%} in the worst project; longest wait for own chips {returned}; "
        f"{found['in_quota_evictions']:.0f} evictions within a share",
        f"Evictions: {found['preemptions']:,.0f}, at most {found['max_preemptions']:.0f} of one job; "
        f"{livelocked} three times in a row without a new checkpoint; "
        f"{found['waste_fraction']:.2%} of the chip-time in use was wasted",
        f"Waiting:   mean {mean}, p95 {most}, maximum {longest}; maximum {never} for jobs larger than a share",
        f"Slowdown:  mean {found['bounded_slowdown_mean']:.2f}; {found['rho_violation_fraction']:.2%} of the "
        "jobs took over 5% longer than on a private quota",
        f"Chips:     {found['eff']:.1%} of the possible useful work",
        f"Decisions: median {found['decision_ms_p50']:.2f} ms, maximum {found['decision_ms_max']:.1f} ms",
    ]


def _plot(call: Invocation, result: Result) -> None:
    from bastion.cli.simulate import plot

    title = f"{call.flags.policy}, days {call.flags.start_day:g} to {call.flags.start_day + call.flags.days:g}"
    plot.draw(call.flags.plot, result, title=title, start_day=call.flags.start_day)
    say(f"bastion: wrote {plain(call.flags.plot)}")


REPLAY = Command(
    summary="Replays a trace of jobs through a scheduling policy and measures the result.",
    usage="--quota=FILE --trace=FILE.csv [--load=L] [--policy=P] [--output=json]",
    details="""The trace is CSV with a header: job_id, project, submit_s, duration_s (seconds), chips, and user, which
        may be empty. Chips are units of the quota file's only resource type. The window holds the jobs submitted in it
        and those that would still run at its beginning. With --load the pool follows from the window's jobs, and each
        project keeps its fraction of it. Membership is not checked. Leave out jobs that Kueue decided on.

        Policies: bastion is the production scheduler; greedy distributes the pool anew at every tick and stops jobs
        that get nothing; fifo is one queue for all; static gives each project a private quota.

        --output=json prints the metrics by name, with several replicates their means with sd and replicates. For their
        meaning see docs/how-to/simulate.md.""",
    examples=(
        "bastion simulate replay --quota=quotas.config --trace=jobs.csv.gz --days=14 --load=0.95",
        "bastion simulate replay --quota=quotas.config --trace=jobs.csv --policy=greedy --output=json",
        "bastion simulate replay --quota=quotas.config --trace=jobs.csv --replicates=12 --plot=shares.png",
    ),
    define=_define,
    takes_target=False,
    takes_output=True,
    run=_run,
)
