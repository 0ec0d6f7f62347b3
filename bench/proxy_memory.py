"""How much memory `bastion proxy run` takes for one large object: `python bench/proxy_memory.py [--up=10] [--down=3]`.

Sizes in GiB. The server is `bench/storage_sink.py`, which keeps what is downloaded later in its own memory, twice.
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


def peak(process: int) -> float:
    """Most resident memory so far, in MB."""
    lines = Path(f"/proc/{process}/status").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024 / 1e6


def move(job: proxy.Job) -> float:
    """In a process of its own, whose connections are one."""
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
        print(f"at its start: {peak(on.between):.0f} MB")
        clients = stack.enter_context(multiprocessing.get_context("spawn").Pool(1))
        seconds = clients.apply(move, (proxy.Job(route=on, method="POST", size=int(given.up * GIB)),))
        print(f"after {given.up:g} GiB up in {seconds:.0f} s: {peak(on.between):.0f} MB", flush=True)
        proxy.keep(on, int(given.down * GIB))
        seconds = clients.apply(move, (proxy.Job(route=on, method="GET", size=int(given.down * GIB)),))
        most = peak(on.between)
        print(f"after {given.down:g} GiB down in {seconds:.0f} s: {most:.0f} MB")
    if given.within is not None and most > given.within:
        sys.exit(1)


if __name__ == "__main__":
    main()
