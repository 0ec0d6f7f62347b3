"""Measure a daemon's tick with many waiting jobs: `python bench/tick.py [--jobs=10000] [--s3] [--inbox]`.

Uses a bucket in memory, so only the daemon is measured. The baseline is to list the same objects once. With `--s3` the
bucket is S3 as Amazon documents it, in this process, and what is counted are its requests.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from bastion.core.bucket import keys
from bastion.testing.cluster import LONG_QUEUES, QUOTA, Cluster
from bastion.testing.counting_store import CountingStore

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.s3_stub import S3Stub

# As on a bucket in the cloud.
TICK_SECONDS = 10.0
LEASE_TTL_SECONDS = 60.0
TICKS = 12


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--s3", action="store_true")
    parser.add_argument("--inbox", action="store_true", help="take the jobs from an inbox")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        measure(given.jobs, stack.enter_context(s3_stub()) if given.s3 else None, "alice" if given.inbox else "")


@contextlib.contextmanager
def s3_stub() -> Iterator[S3Stub]:
    stub = S3Stub()
    stub.open()
    yield stub
    stub.close()


def measure(jobs: int, stub: S3Stub | None, inbox: str) -> None:
    cluster = Cluster(quota=None, lease_ttl_seconds=LEASE_TTL_SECONDS)
    if stub is not None:
        stub.now = cluster.clock.now
        cluster.store = stub.store(stub.new_bucket())
    cluster.write_quota(QUOTA + LONG_QUEUES)
    if inbox:
        cluster.use_inboxes()
    counting = CountingStore(cluster.store)
    cluster.daemon = cluster.new_daemon(counting)
    for number in range(jobs):
        cluster.submit(f"job-{number}", inbox=inbox, instance_type="tpu-v4-64")
    began = time.process_time()
    cluster.step(TICK_SECONDS)
    print(f"first tick, which accepts {jobs} jobs: {(time.process_time() - began) * 1000:.0f} ms of CPU")
    while cluster.step(TICK_SECONDS).outcome.done:
        pass
    taken, requests, kinds = [], [], Counter[str]()
    for _ in range(TICKS):
        counting.reset()
        if stub is not None:
            stub.asked.clear()
        began = time.process_time()
        cluster.step(TICK_SECONDS)
        taken.append(time.process_time() - began)
        requests.append(counting.requests if stub is None else len(stub.asked))
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
