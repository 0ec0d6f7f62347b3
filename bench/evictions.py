"""Measure the decision in which owners of 150 jobs return at once: `python bench/evictions.py [--jobs=1000]`.

It is the most expensive decision. 450 jobs of eight projects fill the pool, four fifths of them with checkpoints;
`--jobs` more of these projects wait. Then 150 jobs of eight other projects arrive within their shares.
Compare `bastion simulate bench --jobs=1000`.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from dataclasses import replace

from quota import Policy
from scheduler import Job, JobStatus, Scheduler, Snapshot, Verdict

NOW = 1e6
PROJECTS = [f"project-{number}" for number in range(16)]
RUNNING = 450
OWNERS = 150
PASSES = 9


def jobs_of(seed: int, waiting: int) -> tuple[Policy, list[Job], list[Job]]:
    """Return the quota, the jobs before the owners return, and the owners' jobs."""
    draw = random.Random(seed)

    def job(name: str, projects: list[str], sizes: tuple[int, ...], age: float) -> Job:
        demand = {"v4": draw.choice(sizes)}
        queued_at = NOW - age * draw.random()
        return Job(name=name, project_id=draw.choice(projects), user_id="u", queued_at=queued_at, demand=demand)

    before = []
    for number in range(RUNNING):
        one = job(f"running-{number}", PROJECTS[:8], (1, 1, 1, 2, 4, 8), 80_000)
        before.append(
            replace(
                one,
                status=JobStatus.RUNNING,
                tier=0,
                charged=one.demand,
                started_at=one.queued_at,
                checkpointed_at=NOW - 1800 * draw.random() if draw.random() < 0.8 else None,
                evictions=draw.choice((0, 0, 0, 1, 2, 7)),
            )
        )
    pool = sum(one.charged["v4"] for one in before)
    before += [job(f"waiting-{n}", PROJECTS[:8], (1, 1, 2, 4, 8, 16, 32), 80_000) for n in range(waiting)]
    owners = [job(f"owner-{n}", PROJECTS[8:], (1, 1, 2, 4, 8), 60) for n in range(OWNERS)]
    weights = {project: {"v4": 1.0} for project in PROJECTS}
    return Policy(tiers=({"v4": pool},), weights=weights, members={}), before, owners


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1000)
    waiting = parser.parse_args().jobs
    taken, evictions = [], []
    for seed in range(PASSES):
        policy, before, owners = jobs_of(seed, waiting)
        scheduler = Scheduler()
        scheduler.schedule(Snapshot(policy=policy, jobs=tuple(before), check_membership=False), NOW)
        after = Snapshot(policy=policy, jobs=(*before, *owners), check_membership=False)
        began = time.process_time()
        plan = scheduler.schedule(after, NOW + 1)
        taken.append(time.process_time() - began)
        evictions.append(sum(decision.verdict is Verdict.EVICT for decision in plan.acting))
    print(
        f"{waiting} waiting, {RUNNING} running: {statistics.median(taken) * 1000:.1f} ms of CPU in the median, "
        f"{max(taken) * 1000:.1f} at most, for {min(evictions)} to {max(evictions)} evictions"
    )


if __name__ == "__main__":
    main()
