"""The replays behind `bastion simulate replay`: from files to yardsticks, one or several at once.

Layer: cli. A `Task` holds plain values only, so that it can be handed to another process.
"""

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
from scheduler.simulation.replay import trace
from scheduler.simulation.replay.engine import Outcome, Replay, ReplayPolicy
from scheduler.simulation.replay.policies import Fifo, Greedy, Static, private_window
from scheduler.simulation.replay.production import Production, only_type, scaled, shares_of
from scheduler.simulation.replay.trace import TraceError, TraceJob, Window
from scheduler.simulation.replay.yardsticks import completion_times, measure, unfinished

POLICIES = ("bastion", "greedy", "fifo", "static")
# How many samples of the shares a replay takes; a chart has no more columns than that.
_SAMPLES = 1000
# Packed and unpacked: some millions of jobs. A few megabytes of gzip can hold more than any memory.
_TRACE_MAX_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One replay.

    Attributes:
        quota: The quota file.
        load: Demand as a part of the pool, which follows from it; None: the pool is that of the quota file.
        jitter: Seconds by which jobs come earlier or later.
        seed: Of the jitter.
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
    """What came of it.

    Attributes:
        jobs: How many were replayed.
        larger_than_pool: Jobs left out because no policy could run them.
        larger_than_quota: Jobs left out because hard private quotas cannot run them.
        without_quota: Jobs of the trace whose project has no quota; in any window.
        never_ended: Replayed jobs that the policy left waiting for ever.
        shares: Chips held by project, at instants of equal distance.
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
    """The results in the order of the tasks, as they come.

    Raises:
        Refused: the trace cannot be read, or has nothing to replay.
    """
    if processes == 1 or len(tasks) == 1:
        yield from map(run_task, tasks)
        return
    try:
        with ProcessPoolExecutor(min(processes, len(tasks))) as pool:
            yield from pool.map(run_task, tasks)
    except BrokenProcessPool as error:
        raise BastionError("a process that replayed was killed; try fewer at once: --processes=1") from error


def run_task(task: Task) -> Result:
    """Replays one task from its files."""
    policy = load(task.quota)
    jobs = read_trace(task.trace)
    try:
        return _replay(task, policy, jobs)
    except TraceError as error:
        raise Refused(f"{plain(task.trace)}: {plain(error)}") from error


def read_trace(path: str) -> list[TraceJob]:
    """The jobs of a trace file, CSV or gzipped CSV; `-` is stdin.

    Raises:
        Refused: it cannot be read; the message names the line where there is one.
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
            raise Refused(f"the trace {plain(path)} has more than {_TRACE_MAX_BYTES} bytes; replay a part of it")
        return trace.read(io.StringIO(data.decode("utf-8-sig"), newline=""))
    except (TraceError, csv.Error, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise Refused(f"the trace {plain(path)} cannot be used: {plain(error)}") from error
    except OSError as error:
        raise Refused(f"the trace {plain(path)} cannot be read: {plain(error.strerror or error)}") from error


def _replay(task: Task, policy: Policy, jobs: list[TraceJob]) -> Result:
    kind = only_type(policy)
    shares = shares_of(policy, kind)
    without_quota = sum(job.project not in shares for job in jobs)
    if task.jitter:
        jobs = trace.jittered(jobs, task.jitter, random.Random(task.seed).random)
    whole = trace.cut(jobs, shares, start_day=task.start_day, days=task.days, load=task.load or 1.0)
    if task.load is None:
        whole = replace(whole, pool=policy.total(kind))
    policy, whole = scaled(policy, kind, whole)
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
            outcome = _run(task, Production(policy, kind), window)
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
