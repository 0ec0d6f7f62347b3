"""Forecasts of queues with known distributions, compared with what a replay then does."""

from __future__ import annotations

import random

from quota import Policy
from scheduler import JobStatus, Plan, Snapshot, schedule
from scheduler.simulation.durations import Durations, JobProfile
from scheduler.simulation.forecast import Eta, forecast
from scheduler.simulation.production import Production
from scheduler.simulation.replay.replay import Replay
from scheduler.simulation.replay.trace import TraceJob, Window

POOL, SHARES = 64, {"a": 0.5, "b": 0.3, "c": 0.2}
POLICY = Policy(
    tiers=({"v4": POOL},), weights={project: {"v4": share} for project, share in SHARES.items()}, members={}
)
# Of lognormal durations in seconds, by size: median and spread. Large jobs run longer.
KINDS = {4: (1800.0, 0.9), 8: (3600.0, 0.7), 16: (7200.0, 0.6)}
ASKED_AT = 7200.0


def duration(rng: random.Random, chips: int) -> float:
    median, spread = KINDS[chips]
    return median * rng.lognormvariate(0.0, spread)


def load(rng: random.Random, jobs: int) -> list[TraceJob]:
    """Jobs submitted before `ASKED_AT`; a forecast cannot know later ones."""
    drawn = []
    for submit in sorted(rng.uniform(0.0, ASKED_AT - 1.0) for _ in range(jobs)):
        chips, number = rng.choice(sorted(KINDS)), len(drawn)
        project = rng.choice(sorted(SHARES))
        drawn.append(
            TraceJob(
                name=f"j{number}",
                project=project,
                submit=submit,
                duration=duration(rng, chips),
                chips=chips,
                user=f"u-{project}",
            )
        )
    return drawn


class Watched:
    """The scheduler; keeps the first snapshot of the last tick until `ASKED_AT`."""

    def __init__(self) -> None:
        self.now, self.snapshot = -1.0, Snapshot(policy=None, jobs=())

    def __call__(self, snapshot: Snapshot, now: float) -> Plan:
        if self.now < now <= ASKED_AT:
            self.now, self.snapshot = now, snapshot
        return schedule(snapshot, now)


def history(rng: random.Random, jobs: int) -> list[tuple[JobProfile, float]]:
    """Durations of earlier jobs, of the same distributions."""
    past = []
    for _ in range(jobs):
        chips, project = rng.choice(sorted(KINDS)), rng.choice(sorted(SHARES))
        past.append((JobProfile(project, f"u-{project}", (("v4", chips),)), duration(rng, chips)))
    return past


def asked_and_answered(seed: int, jobs: int, past: int) -> list[tuple[float, float, Eta]]:
    """For a sample of the waiting jobs: the instant of the forecast, the actual start, and the forecast."""
    rng = random.Random(seed)
    trace = load(rng, jobs)
    known = Durations(history(rng, past))
    window = Window(
        jobs=trace,
        seconds=30 * 86_400.0,
        pool=POOL,
        entitlements={project: int(share * POOL) for project, share in SHARES.items()},
        shares=SHARES,
        resource_type="v4",
    )
    watched = Watched()
    policy = Production(Snapshot(policy=POLICY, jobs=(), check_membership=False), plan=watched)
    outcome = Replay(window, policy, tick=30.0, checkpoint=0.0, restart=0.0).run()
    first = {job.trace.name: job.first_start for job in outcome.jobs}
    waiting = [job.name for job in watched.snapshot.jobs if job.status is JobStatus.PENDING and not job.evictions]
    # Jobs of one queue are early or late together, so a few of each of many queues tell more than all of one.
    waiting = rng.sample(waiting, min(3, len(waiting)))
    etas = forecast(
        watched.snapshot,
        watched.now,
        known,
        waiting,
        draws=30,
        draw=rng.random,
        horizon_seconds=30 * 86_400.0,
        decisions_max=100_000,
    )
    return [(watched.now, first[name], etas[name]) for name in waiting]


def test_the_band_from_p10_to_p90_holds_the_actual_start_of_seventy_to_ninety_in_a_hundred_jobs() -> None:
    told = [one for seed in range(30) for one in asked_and_answered(seed, jobs=28, past=300)]
    known = [(actual, eta) for _, actual, eta in told if eta.p10 is not None and eta.p90 is not None]
    inside = sum(eta.p10 <= actual <= eta.p90 for actual, eta in known)
    sooner = sum(actual <= eta.p50 for actual, eta in known)
    assert len(known) > 0.9 * len(told) > 70
    assert 0.7 <= inside / len(known) <= 0.9
    assert 0.35 <= sooner / len(known) <= 0.65
