"""Measure a daemon's tick with many waiting jobs: `python bench/tick.py [--jobs=10000]`.

Uses a bucket in memory, so only the daemon is measured. The baseline is to list the same objects once.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter

from bastion.core.bucket import keys
from bastion.testing.cluster import LONG_QUEUES, QUOTA, Cluster
from bastion.testing.counting_store import CountingStore

# As on a bucket in the cloud.
TICK_SECONDS = 10.0
LEASE_TTL_SECONDS = 60.0
TICKS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    jobs = parser.parse_args().jobs
    cluster = Cluster(quota=QUOTA + LONG_QUEUES, lease_ttl_seconds=LEASE_TTL_SECONDS)
    counting = CountingStore(cluster.store)
    cluster.daemon = cluster.new_daemon(counting)
    for number in range(jobs):
        cluster.submit(f"job-{number}", instance_type="tpu-v4-64")
    began = time.process_time()
    cluster.step(TICK_SECONDS)
    print(f"first tick, which accepts {jobs} jobs: {(time.process_time() - began) * 1000:.0f} ms of CPU")
    while cluster.step(TICK_SECONDS).outcome.done:
        pass
    taken, requests, kinds = [], [], Counter[str]()
    for _ in range(TICKS):
        counting.reset()
        began = time.process_time()
        cluster.step(TICK_SECONDS)
        taken.append(time.process_time() - began)
        requests.append(counting.requests)
        kinds += Counter(f"LIST {prefix or '(the end of the ROOT)'}" for prefix in counting.listed)
        kinds += Counter(f"write {key}" for key in counting.written)
    began = time.process_time()
    for prefix in (keys.JOBS_ACTIVE, keys.JOBS_STATES):
        list(cluster.store.list(prefix))
    listing = time.process_time() - began
    tick = statistics.median(taken)
    print(f"idle tick: median {tick * 1000:.0f} ms of CPU; listing specs and states once: {listing * 1000:.0f} ms")
    print(f"requests a tick, in pages of 1000 objects: at most {max(requests)}, mean {statistics.mean(requests):.1f}")
    for kind, count in sorted(kinds.items()):
        print(f"  {kind}: in {count} of {TICKS} ticks")


if __name__ == "__main__":
    main()
