"""Print the yardsticks of several policies on a trace: `python bench/yardsticks.py --trace=FILE.csv.gz`.

One row for each policy, load and checkpoint interval; with several replicates, means and deviations.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from pathlib import Path

from bastion.cli.simulate.runs import POLICIES, Task, run_tasks
from scheduler.simulation.replay.yardsticks import spread

COLUMNS = (
    ("eff", "eff", 1, 4),
    ("SD total %", "share_deficit_total", 100, 4),
    ("SD worst %", "share_deficit_worst", 100, 3),
    ("return s", "owner_return_max_s", 1, 0),
    ("in-quota", "in_quota_evictions", 1, 0),
    ("evictions", "preemptions", 1, 0),
    ("waste %", "waste_fraction", 100, 3),
    ("livelocked", "livelocked_jobs", 1, 0),
    ("most of one", "max_preemptions", 1, 0),
    ("wait s", "wait_mean_s", 1, 0),
    ("p95 h", "wait_p95_s", 1 / 3600, 2),
    ("max h", "wait_max_s", 1 / 3600, 1),
    ("never-ent. h", "never_entitled_wait_max_s", 1 / 3600, 1),
    ("slowdown", "bounded_slowdown_mean", 1, 2),
    ("rho>1.05 %", "rho_violation_fraction", 100, 3),
    ("ms p50", "decision_ms_p50", 1, 2),
    ("ms max", "decision_ms_max", 1, 0),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", required=True)
    parser.add_argument("--quota", type=Path, default=Path(__file__).parent / "philly.toml")
    parser.add_argument("--start_day", type=float, default=28)
    parser.add_argument("--days", type=float, default=14)
    parser.add_argument("--loads", type=float, nargs="+", default=[0.994])
    parser.add_argument("--checkpoints", type=float, nargs="+", default=[1800])
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES))
    parser.add_argument("--replicates", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    rows = list(itertools.product(options.loads, options.checkpoints, options.policies))
    tasks = [
        Task(
            quota=options.quota.read_bytes(),
            trace=options.trace,
            start_day=options.start_day,
            days=options.days,
            load=load,
            tick=30.0,
            checkpoint=checkpoint,
            restart=300.0,
            policy=policy,
            jitter=60.0 if copy else 0.0,
            seed=1000 + copy,
        )
        for load, checkpoint, policy in rows
        for copy in range(options.replicates)
    ]
    print("| load | checkpoint s | policy |" + "".join(f" {title} |" for title, *_ in COLUMNS))
    print("|---" * (3 + len(COLUMNS)) + "|")
    results = run_tasks(tasks, options.processes)
    for load, checkpoint, policy in rows:
        found = [next(results).yardsticks for _ in range(options.replicates)]
        means, deviations = spread(found)
        cells = []
        for _, name, scale, digits in COLUMNS:
            deviation = f" ± {deviations[name] * scale:,.{digits}f}" if len(found) > 1 else ""
            cells.append(f" {means[name] * scale:,.{digits}f}{deviation} |")
        print(f"| {load:g} | {checkpoint:g} | {policy} |" + "".join(cells))
        sys.stdout.flush()


if __name__ == "__main__":
    main()
