"""Measure the memory of `bastion proxy run` for one large object: `python bench/proxy_memory.py [--up=10] [--down=3]`.

Counts all its processes. Sizes are in GiB. The server is `bench/storage_sink.py`, which keeps the object to download in
memory, twice.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import sys
import tempfile
from pathlib import Path

import proxy

GIB = 1024 * proxy.MIB


def taken(process: int) -> float:
    """Return the memory of a process and its children now, in MB; shared memory counts once."""
    return sum(kilobytes(each, "smaps_rollup", "Pss:") for each in proxy.with_children(process)) * 1024 / 1e6


def peak(process: int) -> float:
    """Return the maximum memory of a process and its children so far, in MB; shared memory counts for each."""
    return sum(kilobytes(each, "status", "VmHWM:") for each in proxy.with_children(process)) * 1024 / 1e6


def kilobytes(process: int, file: str, name: str) -> int:
    lines = Path(f"/proc/{process}/{file}").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1])


def told(when: str, process: int) -> float:
    most = peak(process)
    print(f"{when}: {taken(process):.0f} MB, at most {most:.0f} MB", flush=True)
    return most


def move(job: proxy.Job) -> float:
    """Move the object in a separate process with one connection."""
    proxy.CONNECTIONS = 1
    return proxy.work(job)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--up", type=float, default=10.0)
    parser.add_argument("--down", type=float, default=3.0)
    parser.add_argument("--within", type=float, help="fail if it takes more MB")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        *_, on = proxy.ways(stack, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        told("at its start", on.between)
        clients = stack.enter_context(multiprocessing.get_context("spawn").Pool(1))
        seconds = clients.apply(move, (proxy.Job(route=on, method="POST", size=int(given.up * GIB)),))
        told(f"after {given.up:g} GiB up in {seconds:.0f} s", on.between)
        proxy.keep(on, int(given.down * GIB))
        seconds = clients.apply(move, (proxy.Job(route=on, method="GET", size=int(given.down * GIB)),))
        most = told(f"after {given.down:g} GiB down in {seconds:.0f} s", on.between)
    if given.within is not None and most > given.within:
        sys.exit(1)


if __name__ == "__main__":
    main()
