"""Measure log segments per second from many hosts: `bench/log_segments.py [--writers=100] [--seconds=10] [--s3]`.

Each writer is a thread with the agent's `SegmentStore` for a host of its own job, and writes as fast as it can. A few
processes share the threads. They write over loopback to the local storage endpoint. At the end a listing must show
every segment of every writer, with its size. The baseline does the same with bare HTTP requests (`http.client`, one
connection per writer); with `--s3`, on an S3 server (SeaweedFS), with boto3's `put_object`.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

import boto3
from botocore.config import Config
from endpoint import BUCKET, endpoint

from bastion.agent.logs.segments import SegmentStore
from bastion.core.bucket import keys, segment_proofs
from bastion.core.run_keys import RunKey
from bastion.wiring.roots import open_root

ROOT = "bench-bastion"
RUN = "aaaaaaaaaa-1"
LINES = 20


def job_of(writer: int) -> str:
    return f"job-{writer:03}"


def text(writer: int, number: int) -> bytes:
    """Return a segment of almost 2 KiB; all sizes differ, so that no segment can be taken for another."""
    line = f"2027-01-15T08:00:00.000000Z stdout F writer {writer} step {number} loss 0.{number:06}"
    return b"".join(f"{line} {'x' * (number % 17)}\n".encode() for _ in range(LINES))


def stack(_url: str, writer: int) -> Callable[[bytes, int], None]:
    return _segments("gs", writer)


def stack_on_s3(_url: str, writer: int) -> Callable[[bytes, int], None]:
    return _segments("s3", writer)


def _segments(scheme: str, writer: int) -> Callable[[bytes, int], None]:
    segments = SegmentStore(
        open_root(f"{scheme}://{BUCKET}/{ROOT}"), job=job_of(writer), run=RUN, host=0, run_key=RunKey(bytes(32))
    )
    return lambda data, _number: segments.write(data)


def bare(url: str, writer: int) -> Callable[[bytes, int], None]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc)

    def write(data: bytes, number: int) -> None:
        key = quote(f"bench-bastion/{keys.log_segment(job_of(writer), RUN, 0, number)}", safe="")
        target = f"/upload/storage/v1/b/{BUCKET}/o?uploadType=media&ifGenerationMatch=0&name={key}"
        connection.request("POST", target, body=data, headers={"Content-Type": "text/plain"})
        response = connection.getresponse()
        answer = response.read()
        assert response.status == http.client.OK, answer

    return write


def plain_boto3(_url: str, writer: int) -> Callable[[bytes, int], None]:
    client = _clients.setdefault("one", boto3.client("s3", config=Config(max_pool_connections=64)))

    def write(data: bytes, number: int) -> None:
        key = f"bench-bastion/{keys.log_segment(job_of(writer), RUN, 0, number)}"
        client.put_object(Bucket=BUCKET, Key=key, Body=data, IfNoneMatch="*")

    return write


_clients: dict[str, Any] = {}
GS_KINDS = ("the worker's own stack", "bare HTTP")
S3_KINDS = ("the worker's own stack on S3", "boto3")
OWN_KINDS = (GS_KINDS[0], S3_KINDS[0])
KINDS = dict(zip((*GS_KINDS, *S3_KINDS), (stack, bare, stack_on_s3, plain_boto3), strict=True))


def work(kind: str, url: str, writers: list[int], seconds: float, start, results, cpu) -> None:  # type: ignore[no-untyped-def]
    """Run all writers of one process until the time is up.

    Puts (writer, segments) for each into `results`, and the CPU time of all into `cpu`.
    """
    writes = {writer: KINDS[kind](url, writer) for writer in writers}

    def one(writer: int) -> None:
        number = 0
        while time.monotonic() < ends:
            number += 1
            writes[writer](text(writer, number), number)
        results.put((writer, number))

    start.wait()
    used = time.process_time()
    ends = time.monotonic() + seconds
    threads = [threading.Thread(target=one, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    cpu.put(time.process_time() - used)


def measure(kind: str, writers: int, processes: int, seconds: float) -> float:
    """Return the segments per second.

    Raises:
        AssertionError: A segment is missing.
    """
    with endpoint(s3=kind in S3_KINDS) as served:
        spawning = multiprocessing.get_context("spawn")
        start, results, cpu = spawning.Barrier(processes + 1), spawning.Queue(), spawning.Queue()
        shares = [list(range(writers))[n::processes] for n in range(processes)]
        workers = [
            spawning.Process(target=work, args=(kind, served.url, share, seconds, start, results, cpu))
            for share in shares
        ]
        for worker in workers:
            worker.start()
        start.wait()
        began, used = time.monotonic(), served.cpu_seconds()
        written = dict(results.get() for _ in range(writers))
        taken, used = time.monotonic() - began, served.cpu_seconds() - used
        writers_used = sum(cpu.get() for _ in workers)
        for worker in workers:
            worker.join()
        store = open_root(f"{'s3' if kind in S3_KINDS else 'gs'}://{BUCKET}/{ROOT}")
        for writer, count in written.items():
            folder = keys.log_segments(job_of(writer), RUN, 0)
            found = [(meta.key, meta.size) for meta in store.list(folder)]
            proof = segment_proofs.PROOF_BYTES if kind in OWN_KINDS else 0
            expected = [
                (keys.log_segment(job_of(writer), RUN, 0, n), len(text(writer, n)) + proof) for n in range(1, count + 1)
            ]
            assert found == expected, f"writer {writer}: {len(found)} of {count} segments, or others"
    total = sum(written.values())
    rate = total / taken
    print(
        f"{kind}: {rate:.0f} segments/s from {writers} writers in {processes} processes, {total} in {taken:.1f} s, all "
        f"there; the slowest writer {min(written.values())}, the fastest {max(written.values())}\n"
        f"  CPU a segment: writers {writers_used / total * 1000:.2f} ms, endpoint {used / total * 1000:.2f} ms; "
        f"they had {(writers_used + used) / taken:.1f} of {os.cpu_count()} cores"
    )
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writers", type=int, default=100)
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--s3", action="store_true")
    given = parser.parse_args()
    kinds = S3_KINDS if given.s3 else GS_KINDS
    rates = [measure(kind, given.writers, given.processes, given.seconds) for kind in kinds]
    print(f"the stack reaches {rates[0] / rates[1]:.2f} of what {kinds[1]} does")


if __name__ == "__main__":
    main()
