"""A daemon's tick with many waiting jobs: `python bench/tick.py [--jobs=10000]`.

On a bucket in memory, so that what is measured is the daemon itself. The floor is to list the same objects once.
"""

from __future__ import annotations

import argparse
import statistics
import time

from bastion.core import keys
from bastion.testing.cluster import Cluster
from bastion.testing.counting_store import CountingStore


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    jobs = parser.parse_args().jobs
    cluster = Cluster()
    counting = CountingStore(cluster.store)
    cluster.daemon = cluster.new_daemon(counting)
    for number in range(jobs):
        cluster.submit(f"job-{number}", instance_type="tpu-v4-64")
    began = time.perf_counter()
    cluster.step()
    print(f"first tick, which accepts {jobs} jobs: {(time.perf_counter() - began) * 1000:.0f} ms")
    for _ in range(4):
        cluster.step()
    counting.reset()
    taken = []
    for _ in range(10):
        began = time.perf_counter()
        cluster.step()
        taken.append(time.perf_counter() - began)
    began = time.perf_counter()
    for prefix in (keys.JOBS_ACTIVE, keys.JOBS_STATES):
        list(cluster.store.list(prefix))
    floor = time.perf_counter() - began
    tick = statistics.median(taken)
    calls = ", ".join(f"{counting.calls[name] / 10:g} {name}" for name in sorted(counting.calls))
    print(f"idle tick: median {tick * 1000:.0f} ms, {tick / floor:.1f} x listing the objects; requests a tick: {calls}")


if __name__ == "__main__":
    main()
