"""Compare the folder store with plain file operations: `python bench/directory_store.py [--dir=FOLDER]`.

The baseline of a put is to write another file and rename it (with fsync: of the file and its folder); of an append,
open, write, close; of a listing, to scan the folder and stat each file. Both sides alternate in one run.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bastion.adapters.folder.store import DirectoryStore

DATA = b"x" * 1000
OBJECTS = 300
LISTED = 10_000


def milliseconds(operation: Callable[[int], object], count: int) -> float:
    """Return the median of `count` single operations."""
    taken = []
    for number in range(count):
        began = time.perf_counter()
        operation(number)
        taken.append((time.perf_counter() - began) * 1000)
    return statistics.median(taken)


def store_put(folder: Path, *, fsync: bool) -> Callable[[int], object]:
    store = DirectoryStore(folder, fsync=fsync)
    return lambda number: store.put(f"puts-{fsync}/{number}", DATA, generation=0)


def bare_put(folder: Path, *, fsync: bool) -> Callable[[int], None]:
    def put(number: int) -> None:
        draft = folder / f".draft{number}"
        with draft.open("wb") as file:
            file.write(DATA)
            if fsync:
                file.flush()
                os.fsync(file.fileno())
        draft.replace(folder / f"bare{number}")
        if fsync:
            descriptor = os.open(folder, os.O_RDONLY)
            os.fsync(descriptor)
            os.close(descriptor)

    return put


def bare_append(folder: Path) -> Callable[[int], None]:
    def append(_: int) -> None:
        with (folder / "bare-log").open("ab") as file:
            file.write(DATA)

    return append


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dir", default=None, help="a folder on the disk to measure")
    with tempfile.TemporaryDirectory(dir=parser.parse_args().dir) as name:
        folder = Path(name)
        for fsync in (False, True):
            ours = milliseconds(store_put(folder, fsync=fsync), OBJECTS)
            baseline = milliseconds(bare_put(folder, fsync=fsync), OBJECTS)
            print(f"put, fsync={fsync}: {ours:.3f} ms, {ours / baseline:.1f} x the bare operations")
        generations = {0: 0}

        def append(_: int) -> None:
            generations[0] = store.append("log", DATA, generation=generations[0]).generation

        store = DirectoryStore(folder, fsync=False)
        ours, baseline = milliseconds(append, OBJECTS), milliseconds(bare_append(folder), OBJECTS)
        print(f"append, fsync=False: {ours:.3f} ms, {ours / baseline:.1f} x the bare operations")
        many = folder / "many"
        many.mkdir()
        for number in range(LISTED):
            (many / f"{number:05d}").write_bytes(b"")
        ours = milliseconds(lambda _: list(store.list("many/")), 7)
        baseline = milliseconds(lambda _: [entry.stat() for entry in os.scandir(many)], 7)
        print(f"list of {LISTED}: {ours:.0f} ms, {ours / baseline:.1f} x the bare operations")


if __name__ == "__main__":
    main()
