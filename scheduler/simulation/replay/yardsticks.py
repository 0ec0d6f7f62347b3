"""Metrics of a replay for owners, borrowers and chip usage."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence

from scheduler.simulation.replay.replay import Outcome, ReplayJob
from scheduler.simulation.replay.trace import Window

_SHORT_SECONDS = 600.0
_LIVELOCK_SEGMENTS = 3
_RHO_LIMIT = 1.05


def measure(outcome: Outcome, private: Mapping[str, float], *, demanded: Window | None = None) -> dict[str, float]:
    """All metrics of one replay by name; waits, slowdowns and rho cover only the jobs that ended.

    Args:
        private: Completion times by name under private quotas, for `rho_violation_fraction`.
        demanded: The window with the jobs too large for the replay, for `eff`.
    """
    window = outcome.window
    jobs = [job for job in outcome.jobs if job.end >= 0]
    waits = sorted(job.first_start - job.trace.submit for job in jobs)
    total = sum(owed.due_integral for owed in outcome.owed.values())
    deficits = [
        owed.owed_integral / owed.due_integral
        for owed in outcome.owed.values()
        if owed.due_integral >= 0.01 * total > 0
    ]
    never = [j.first_start - j.trace.submit for j in jobs if j.chips > window.entitlements[j.trace.project]]
    times = sorted(outcome.decision_seconds)
    return {
        "eff": outcome.useful / useful_at_most(demanded or window),
        "share_deficit_total": sum(owed.owed_integral for owed in outcome.owed.values()) / total if total else 0.0,
        "share_deficit_worst": max(deficits, default=0.0),
        "owner_return_max_s": max((owed.longest_return for owed in outcome.owed.values()), default=0.0),
        "in_quota_evictions": outcome.in_quota_evictions,
        "preemptions": outcome.preemptions,
        "waste_fraction": outcome.wasted / outcome.allocated if outcome.allocated else 0.0,
        "livelocked_jobs": sum(job.most_futile >= _LIVELOCK_SEGMENTS for job in outcome.jobs),
        "max_preemptions": max((job.job.evictions for job in outcome.jobs), default=0),
        "wait_mean_s": _mean(waits),
        "wait_p95_s": percentile(waits, 0.95),
        "wait_max_s": max(waits, default=0.0),
        "never_entitled_wait_max_s": max(never, default=0.0),
        "bounded_slowdown_mean": _mean([_bounded_slowdown(job) for job in jobs]),
        "rho_violation_fraction": _rho_violations(jobs, window, private),
        "decision_ms_p50": 1000 * percentile(times, 0.5),
        "decision_ms_max": 1000 * (times[-1] if times else 0.0),
    }


def spread(measurements: Sequence[Mapping[str, float]]) -> tuple[dict[str, float], dict[str, float]]:
    """The mean and the sample standard deviation (0 for one replay) of each metric."""
    means = {name: _mean([one[name] for one in measurements]) for name in measurements[0]}
    deviations = {}
    for name, mean in means.items():
        squares = sum((one[name] - mean) ** 2 for one in measurements)
        deviations[name] = math.sqrt(squares / max(1, len(measurements) - 1))
    return means, deviations


def unfinished(outcome: Outcome) -> list[ReplayJob]:
    return [job for job in outcome.jobs if job.end < 0]


def completion_times(outcome: Outcome) -> dict[str, float]:
    """Seconds from submission to end, by name, of the jobs that ended."""
    return {job.trace.name: job.end - job.trace.submit for job in outcome.jobs if job.end >= 0}


def percentile(ordered: Sequence[float], part: float) -> float:
    """The nearest-rank percentile of a sorted sequence; 0 if empty."""
    return ordered[max(0, math.ceil(part * len(ordered)) - 1)] if ordered else 0.0


def useful_at_most(window: Window) -> float:
    """Chip-seconds that no policy can exceed: min over s of A(s) + P(T - s).

    A(s) is what infinite capacity would have done by s, piecewise linear. So the minimum is at an arrival, an end, or a
    border.
    """
    events = sorted(
        [(job.submit, job.chips) for job in window.jobs]
        + [(job.submit + job.duration, -job.chips) for job in window.jobs]
    )
    done, slope, at = 0.0, 0, 0.0
    least = window.pool * window.seconds
    for instant, chips in events:
        instant = min(instant, window.seconds)
        done += slope * (instant - at)
        at = instant
        slope += chips
        least = min(least, done + window.pool * (window.seconds - at))
    done += slope * (window.seconds - at)
    return min(least, done)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _bounded_slowdown(job: ReplayJob) -> float:
    return max(1.0, (job.end - job.trace.submit) / max(job.trace.duration, _SHORT_SECONDS))


def _rho_violations(jobs: Sequence[ReplayJob], window: Window, private: Mapping[str, float]) -> float:
    ratios = sorted(
        (job.end - job.trace.submit) / private[job.trace.name]
        for job in jobs
        if job.chips <= window.entitlements[job.trace.project] and job.trace.name in private
    )
    return (len(ratios) - bisect_right(ratios, _RHO_LIMIT)) / len(ratios) if ratios else 0.0
