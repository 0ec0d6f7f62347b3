"""The replays behind `bastion simulate replay`: from files to metrics, one or several in parallel."""

from __future__ import annotations

import csv
import gzip
import io
import random
import sys
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path

from bastion.cli.output import plain
from bastion.core.errors import BastionError, Refused
from quota import Policy, load
from scheduler import Snapshot
from scheduler.simulation.production import Production
from scheduler.simulation.replay import trace
from scheduler.simulation.replay.policies import Fifo, Greedy, Static, private_window
from scheduler.simulation.replay.replay import Outcome, Replay, ReplayPolicy
from scheduler.simulation.replay.trace import TraceError, TraceJob, Window, only_type, scaled, shares_of
from scheduler.simulation.replay.yardsticks import completion_times, measure, unfinished

POLICIES = ("bastion", "greedy", "fifo", "static")
# Samples of the shares per replay; a chart has fewer columns.
_SAMPLES = 1000
# Packed and unpacked: some million jobs. A few megabytes of gzip may exceed any memory.
_TRACE_MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One replay, as plain values for another process.

    Attributes:
        load: Demand as a fraction of the pool, which it determines; None: the pool of the quota file.
        jitter: Maximum shift of submit times, in seconds; `seed` is that of the shifts.
    """

    quota: bytes
    trace: str
    start_day: float
    days: float
    load: float | None
    tick: float
    checkpoint: float
    restart: float
    policy: str
    jitter: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The result of a replay.

    Attributes:
        jobs: Number of replayed jobs; of these, `never_ended` were not completed.
        larger_than_pool, larger_than_quota: Jobs left out because no policy, or no private quota, can run them.
        without_quota: Jobs of the whole trace whose project has no quota.
        shares: Chips in use by project, sampled at equal intervals.
    """

    yardsticks: Mapping[str, float]
    jobs: int
    pool: int
    entitlements: Mapping[str, int]
    larger_than_pool: int
    larger_than_quota: int
    without_quota: int
    never_ended: int
    shares: Sequence[tuple[float, Mapping[str, int]]]


def run_tasks(tasks: Sequence[Task], processes: int) -> Iterator[Result]:
    """Yield the results in the order of the tasks.

    Raises:
        Refused: the trace cannot be read, or contains nothing to replay.
    """
    if processes == 1 or len(tasks) == 1:
        yield from map(run_task, tasks)
        return
    try:
        with ProcessPoolExecutor(min(processes, len(tasks))) as pool:
            yield from pool.map(run_task, tasks)
    except BrokenProcessPool as error:
        raise BastionError("a replay process was killed; use fewer: --processes=1") from error


def run_task(task: Task) -> Result:
    policy = load(task.quota)
    jobs = read_trace(task.trace)
    try:
        return _replay(task, policy, jobs)
    except TraceError as error:
        raise Refused(f"{plain(task.trace)}: {plain(error)}") from error


def read_trace(path: str) -> list[TraceJob]:
    """Read a trace, CSV or gzipped CSV; `-` means stdin.

    Raises:
        Refused: it cannot be read; names the line if there is one.
    """
    try:
        if path == "-":
            data = sys.stdin.buffer.read(_TRACE_MAX_BYTES + 1)
        else:
            with Path(path).open("rb") as file:
                data = file.read(_TRACE_MAX_BYTES + 1)
        if data.startswith(b"\x1f\x8b"):
            with gzip.GzipFile(fileobj=io.BytesIO(data)) as packed:
                data = packed.read(_TRACE_MAX_BYTES + 1)
        if len(data) > _TRACE_MAX_BYTES:
            raise Refused(f"the trace {plain(path)} is longer than {_TRACE_MAX_BYTES} bytes; replay a part of it")
        return trace.read(io.StringIO(data.decode("utf-8-sig"), newline=""))
    except (TraceError, csv.Error, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise Refused(f"cannot use the trace {plain(path)}: {plain(error)}") from error
    except OSError as error:
        raise Refused(f"cannot read the trace {plain(path)}: {plain(error.strerror or error)}") from error


def _replay(task: Task, policy: Policy, jobs: list[TraceJob]) -> Result:
    resource_type = only_type(policy)
    shares = shares_of(policy, resource_type)
    without_quota = sum(job.project not in shares for job in jobs)
    if task.jitter:
        jobs = trace.jittered(jobs, task.jitter, random.Random(task.seed).random)
    whole = trace.cut(jobs, shares, start_day=task.start_day, days=task.days, load=task.load or 1.0)
    if task.load is None:
        whole = replace(whole, pool=policy.total(resource_type))
    policy, whole = scaled(policy, resource_type, whole)
    window = trace.fitting(whole)
    private = private_window(window)
    alone = _run(task, Static(), private)
    match task.policy:
        case "static":
            outcome = alone
        case "greedy":
            outcome = _run(task, Greedy(), window)
        case "fifo":
            outcome = _run(task, Fifo(), window)
        case _:
            settings = Snapshot(policy=policy, jobs=(), check_membership=False)
            outcome = _run(task, Production(settings), window)
    return Result(
        yardsticks=measure(outcome, completion_times(alone), demanded=window),
        jobs=len(outcome.jobs),
        pool=window.pool,
        entitlements=window.entitlements,
        larger_than_pool=len(whole.jobs) - len(window.jobs),
        larger_than_quota=len(window.jobs) - len(outcome.jobs),
        without_quota=without_quota,
        never_ended=len(unfinished(outcome)),
        shares=outcome.shares,
    )


def _run(task: Task, policy: ReplayPolicy, window: Window) -> Outcome:
    replay = Replay(
        window,
        policy,
        tick=task.tick,
        checkpoint=task.checkpoint,
        restart=task.restart,
        sample=window.seconds / _SAMPLES,
        timer=time.perf_counter,
    )
    return replay.run()
