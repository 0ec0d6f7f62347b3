"""Measure inputs.

`python bench/inputs.py jobs [--jobs=10] [--mib=1024] [--cache]`: jobs on one machine with the same input, from the
storage endpoint; agents in a process each.
`python bench/inputs.py objects [--objects=1000000]`: one agent, small objects of a store that makes them up.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import queue
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

from bastion.adapters.folder.store import DirectoryStore
from bastion.agent.inputs import pinning
from bastion.agent.inputs.cache import InputCache
from bastion.agent.inputs.fetch import InputFetch, Progress
from bastion.agent.inputs.pinning import PinnedInput
from bastion.agent.inputs.problems import Patience
from bastion.core.bucket.objects import ObjectMeta
from bastion.emulators.gcs.api import handler
from bastion.emulators.gcs.buckets import Buckets
from bastion.emulators.gcs.uploads import Uploads
from bastion.net.http1 import HttpServer, Request, Response
from bastion.ports import ObjectStore, StoredObject
from bastion.testing.memory_store import MemoryStore
from bastion.wiring.buckets import open_bucket

_MIB = 1024 * 1024
_OBJECT = 64 * _MIB


class _MadeUp(MemoryStore):
    """A store with objects of 100 bytes that nothing holds."""

    def __init__(self, objects: int) -> None:
        super().__init__()
        self._count = objects

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        assert not (start_after or end_before)
        for number in range(self._count if prefix == "tokens/" else 0):
            yield ObjectMeta(
                key=f"tokens/{number // 1000:05}/{number:08}.bin", size=100, generation=number + 1, updated=0
            )

    def get(self, key: str, **_: int) -> StoredObject:
        number = int(key[-12:-4])
        return StoredObject(meta=ObjectMeta(key=key, size=100, generation=number + 1, updated=0), data=b"x" * 100)


def _fetch(own: ObjectStore, source: ObjectStore, url: str, folder: Path, cache: Path | None) -> Progress:
    stop, progress = threading.Event(), Progress()
    patience = Patience(Random(1), stop, last_seconds=1)
    listing = pinning.pin(own, "listing/", source, url, "tokens", patience=patience)
    kept = InputCache(cache, 1 << 40) if cache is not None else None
    fetch = InputFetch(
        source,
        listing,
        folder / "data",
        parts_folder=folder / "parts",
        cache=kept,
        patience=patience,
        stop=stop,
        progress=progress,
    )
    fetch.run(PinnedInput(own, "listing/", listing, patience).objects())
    if kept is not None:
        kept.close()
    return progress


def _job(endpoint: str, bucket: str, work: Path, number: int, cache: Path | None, done: multiprocessing.Queue) -> None:  # type: ignore[type-arg]
    os.environ["STORAGE_EMULATOR_HOST"] = endpoint
    source, _ = open_bucket(f"gs://{bucket}/tokens")
    own = DirectoryStore(work / f"own-{number}")
    progress = _fetch(own, source, f"gs://{bucket}/tokens", work / f"job-{number}", cache)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    done.put((progress.fetched, progress.done, usage.ru_maxrss // 1024, usage.ru_utime + usage.ru_stime))


def _result(done: multiprocessing.Queue, started: Sequence[multiprocessing.Process]) -> tuple[float, ...]:  # type: ignore[type-arg]
    while True:
        try:
            row: tuple[float, ...] = done.get(timeout=1)
        except queue.Empty:  # noqa: PERF203
            if any(each.exitcode for each in started):
                sys.exit("a job failed; its traceback is above")
        else:
            return row


def jobs(wanted: int, mib: int, *, cached: bool, at_once: int) -> None:
    work = Path(tempfile.mkdtemp(prefix="bench-inputs-"))
    (work / "buckets").mkdir()
    buckets = Buckets(work / "buckets")
    answer, asked = handler(buckets, Uploads(buckets)), collections.Counter[str]()

    def count(request: Request) -> Response:
        asked["media" if "alt=media" in request.target else "other"] += 1
        return answer(request)

    server = HttpServer(count)
    server.open()
    try:
        bucket, url = "data", f"http://127.0.0.1:{server.port}"
        buckets.create(bucket)
        os.environ["STORAGE_EMULATOR_HOST"] = url
        store, block = open_bucket(f"gs://{bucket}")[0], Random(1).randbytes(_OBJECT)
        for number in range(max(1, mib * _MIB // _OBJECT)):
            store.put(f"tokens/{number:04}", block[: min(_OBJECT, mib * _MIB)], generation=0)
        done: multiprocessing.Queue = multiprocessing.Queue()  # type: ignore[type-arg]
        cache = work / "cache" if cached else None
        began = time.monotonic()
        rows = []
        for first in range(0, wanted, at_once):
            numbers = range(first, min(wanted, first + at_once))
            started = [
                multiprocessing.Process(target=_job, args=(url, bucket, work, number, cache, done))
                for number in numbers
            ]
            for each in started:
                each.start()
            rows += [_result(done, started) for _ in started]
            for each in started:
                each.join()
            for number in numbers:
                shutil.rmtree(work / f"job-{number}")
        fetched = sum(row[0] for row in rows)
        print(
            f"{wanted} jobs ({at_once} at once), {mib} MiB, {'with' if cached else 'without'} a cache: "
            f"{time.monotonic() - began:.1f} s, fetched {fetched / _MIB:.0f} MiB in "
            f"{asked['media']} requests, each job {rows[0][1] / _MIB:.0f} MiB, "
            f"at most {max(row[2] for row in rows)} MiB of memory, "
            f"{sum(row[3] for row in rows):.1f} s of CPU"
        )
    finally:
        server.close(grace_seconds=1)
        shutil.rmtree(work)


def objects(count: int, *, cached: bool) -> None:
    work = Path(tempfile.mkdtemp(prefix="bench-inputs-"))
    try:
        own, source = DirectoryStore(work / "own", fsync=False), _MadeUp(count)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        began = time.monotonic()
        patience = Patience(Random(1), threading.Event(), last_seconds=1)
        listing = pinning.pin(own, "listing/", source, "gs://data/tokens", "tokens", patience=patience)
        stored = sum(meta.size for meta in own.list("listing/"))
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(
            f"{listing.objects} objects listed in {time.monotonic() - began:.1f} s: {listing.parts} parts, "
            f"{stored / _MIB:.1f} MiB; memory {before} -> {memory} MiB"
        )
        began = time.monotonic()
        _fetch(own, source, "gs://data/tokens", work / "job", work / "cache" if cached else None)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"fetched in {time.monotonic() - began:.1f} s; memory {memory} MiB")
    finally:
        shutil.rmtree(work)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["jobs", "objects"])
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--at_once", type=int, default=10)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--cache", action="store_true")
    options = parser.parse_args()
    if options.what == "jobs":
        jobs(options.jobs, options.mib, cached=options.cache, at_once=options.at_once)
    else:
        objects(options.objects, cached=options.cache)


if __name__ == "__main__":
    main()
