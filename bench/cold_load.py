"""Measure how a new daemon reads a bucket full of specs: `python bench/cold_load.py [--jobs=10000] [--s3]`.

Uses the local storage endpoint over loopback, or with `--s3` an S3 server (SeaweedFS). The baseline is
google-cloud-storage or boto3 fetching the same objects with 32 threads; a second one is our own store. Then the daemon
accepts all jobs and dies, and another one starts.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import boto3
from botocore.config import Config
from endpoint import BUCKET, endpoint
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.model import job_spec
from bastion.core.model.job_spec import JobOptions
from bastion.daemon.daemon import Daemon
from bastion.testing.cluster import BASTION, LONG_QUEUES, QUOTA, Cluster
from bastion.testing.counting_store import CountingStore
from bastion.wiring.roots import open_root

THREADS = 32
# Accepting ten thousand jobs takes longer than the lease's TTL, and continues in the next tick.
LEASE_TTL_SECONDS = 3600.0


def seconds(what: Callable[[], object]) -> float:
    began = time.perf_counter()
    what()
    return time.perf_counter() - began


def submit(root: str, count: int) -> list[str]:
    """Write that many specs; return their keys."""
    store = open_root(root)
    store.put(keys.PROJECT_QUOTAS, QUOTA + LONG_QUEUES, generation=0)

    def write(number: int) -> str:
        name = f"job-{number:05}"
        spec = job_spec.new(
            name=name,
            bastion=BASTION,
            command=f"python3 train.py --seed={random.randrange(10**9)}",
            user_id="alice",
            project_id="a",
            now=time.time(),
            options=JobOptions(instance_type="tpu-v4-64"),
        )
        return store.put(keys.active(name), documents.dumps(spec.document), generation=0).key

    with ThreadPoolExecutor(THREADS) as threads:
        return list(threads.map(write, range(count)))


def plain_library(names: list[str], url: str) -> None:
    """Fetch each object with `Blob.download_as_bytes`, with its own retries."""
    client = storage.Client(project="bench", credentials=AnonymousCredentials(), client_options={"api_endpoint": url})
    bucket = client.bucket(BUCKET)
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda name: bucket.blob(f"{BASTION}/{name}").download_as_bytes(), names))


def plain_boto3(names: list[str], _url: str) -> None:
    """Fetch each object with `get_object`, with boto3's own retries."""
    client = boto3.client("s3", config=Config(max_pool_connections=THREADS))
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(lambda name: client.get_object(Bucket=BUCKET, Key=f"{BASTION}/{name}")["Body"].read(), names))


def our_store(root: str, names: list[str]) -> None:
    store = open_root(root)
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(store.get, names))


def load(daemon: Daemon) -> None:
    """Do what precedes a daemon's first decision: the listings, and one download per object."""
    daemon._listings.begin(spent=0)
    daemon._listings.look(whole=True)
    daemon._observer.observe(entropy=b"", dry_run=False, whole=True, policy=daemon._policy.refresh().policy)


def report(what: str, taken: float, baseline: float, counting: CountingStore) -> None:
    calls = ", ".join(f"{count} {name}" for name, count in sorted(counting.calls.items()))
    print(f"{what}: {taken:.1f} s, {taken / baseline:.2f} x the library; {counting.requests} requests ({calls})")
    counting.reset()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--s3", action="store_true")
    given = parser.parse_args()
    jobs = given.jobs
    root = f"{'s3' if given.s3 else 'gs'}://{BUCKET}/{BASTION}"
    library = plain_boto3 if given.s3 else plain_library
    with endpoint(s3=given.s3) as served:
        names = submit(root, jobs)
        baseline = seconds(lambda: library(names, served.url))
        print(f"{jobs} specs with the plain library and {THREADS} threads: {baseline:.1f} s")
        own = seconds(lambda: our_store(root, names))
        print(f"the same with our store: {own:.1f} s, {own / baseline:.2f} x the library")
        cluster = Cluster(quota=None, lease_ttl_seconds=LEASE_TTL_SECONDS)
        counting = CountingStore(open_root(root))
        daemon = cluster.new_daemon(counting)
        report("cold load", seconds(lambda: load(daemon)), baseline, counting)
        report("first tick, which accepts them", seconds(daemon.tick), baseline, counting)
        daemon.close()
        counting.reset()
        successor = cluster.new_daemon(counting)
        report("load after a restart", seconds(lambda: load(successor)), baseline, counting)
        report("first tick after it", seconds(successor.tick), baseline, counting)
        report("the next one", seconds(successor.tick), baseline, counting)
        successor.close()


if __name__ == "__main__":
    main()
