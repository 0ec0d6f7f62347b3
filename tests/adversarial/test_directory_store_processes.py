"""Real processes on one folder: no update is lost, and an acknowledged write outlives its writer's violent death."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.adapters.folder.store import DirectoryStore

PRELUDE = """
import sys
from bastion.adapters.folder.store import DirectoryStore
from bastion.core.errors import NotFound, PreconditionFailed
store = DirectoryStore(sys.argv[1], fsync=False)
number = int(sys.argv[2])
"""


@contextlib.contextmanager
def writers(folder: Path, program: str, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes 0 .. count-1 that run `program` at the same time; all are gone at the end."""
    code = PRELUDE + textwrap.dedent(program)
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(folder), str(number)], stdout=subprocess.PIPE, text=True)
        for number in range(count)
    ]
    try:
        yield started
    finally:
        for process in started:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def run(folder: Path, program: str, count: int) -> list[str]:
    """The outputs of `count` processes, all of which must succeed."""
    with writers(folder, program, count) as started:
        outputs = [process.communicate(timeout=60)[0] for process in started]
        assert [process.returncode for process in started] == [0] * count
    return outputs


@pytest.mark.parametrize("key", ["counter", "hidden//counter"])
def test_compare_and_swap_from_many_processes_loses_no_update(folder: Path, key: str) -> None:
    store = DirectoryStore(folder)
    store.put(key, b"0", generation=0)
    program = f"""
    done = 0
    while done < 150:
        stored = store.get({key!r})
        try:
            store.put({key!r}, b"%d" % (int(stored.data) + 1), generation=stored.meta.generation)
        except PreconditionFailed:
            continue
        done += 1
    """
    run(folder, program, 4)
    assert store.get(key).data == b"600"


def test_appends_from_many_processes_all_arrive_whole_and_in_order(folder: Path) -> None:
    program = """
    for line in range(100):
        while True:
            meta = store.head("log")
            try:
                store.append("log", b"%d %d\\n" % (number, line), generation=meta.generation if meta else 0)
            except PreconditionFailed:
                continue
            break
    """
    run(folder, program, 4)
    lines = [tuple(map(int, line.split())) for line in DirectoryStore(folder).get("log").data.splitlines()]
    for number in range(4):
        assert [line for writer, line in lines if writer == number] == list(range(100))


def test_of_many_creating_processes_exactly_one_wins_each_key(folder: Path) -> None:
    program = """
    for claim in range(100):
        try:
            store.put(f"claims/{claim}", b"%d" % number, generation=0)
        except PreconditionFailed:
            continue
        print(claim, flush=True)
    """
    outputs = run(folder, program, 4)
    winners = {int(claim): number for number, output in enumerate(outputs) for claim in output.split()}
    assert sum(len(output.split()) for output in outputs) == 100
    store = DirectoryStore(folder)
    assert {int(meta.key[7:]): int(store.get(meta.key).data) for meta in store.list("claims/")} == winners


def test_mixed_operations_keep_every_object_whole_and_generations_unique(folder: Path) -> None:
    # Two keys that bar each other's paths, one plain. Every object is one repeated letter, one per 1000 bytes.
    program = """
    import random
    chance = random.Random(number)
    for _ in range(250):
        key = chance.choice(["x", "x/y", "plain"])
        letter = b"%d" % number
        try:
            stored = store.get(key)
        except NotFound:
            present, data = 0, b""
        else:
            present, data = stored.meta.generation, stored.data
            assert len(data) == stored.meta.size and len(data) % 1000 == 0, len(data)
            assert all(len(set(data[i:i + 1000])) == 1 for i in range(0, len(data), 1000))
        listed = [meta.key for meta in store.list("")]
        assert listed == sorted(set(listed)), listed
        try:
            match chance.randrange(3):
                case 0:
                    print(key, store.put(key, letter * 1000, generation=present).generation)
                case 1:
                    print(key, store.append(key, letter * 1000, generation=present).generation)
                case 2:
                    store.delete(key, generation=present)
        except PreconditionFailed:
            pass
    """
    outputs = run(folder, program, 4)
    written = [line for output in outputs for line in output.splitlines()]
    assert len(written) > 100
    assert len(written) == len(set(written))
    for output in outputs:
        for key in ("x", "x/y", "plain"):
            generations = [int(line.split()[1]) for line in output.splitlines() if line.split()[0] == key]
            assert generations == sorted(generations)


def test_no_look_shows_a_generation_that_was_never_written(folder: Path) -> None:
    program = """
    generation = store.head("k").generation
    for _ in range(2000):
        generation = store.put("k", b"", generation=generation).generation
        print(generation)
    """
    store = DirectoryStore(folder)
    seen = {store.put("k", b"", generation=0).generation}
    first = set(seen)
    with writers(folder, program, 1) as (writer,):
        while writer.poll() is None:
            seen.update(meta.generation for meta in (store.head("k"), *store.list("")) if meta)
            seen.add(store.get("k").meta.generation)
        assert writer.stdout is not None
        written = {int(line) for line in writer.stdout}
    assert len(written) == 2000
    # Not only the first and the last: the looks really fell between the writes.
    assert len(seen) > 2
    assert seen <= written | first


@pytest.mark.parametrize("method", ["put", "append"])
@pytest.mark.parametrize("after_lines", [1, 7, 40])
def test_what_was_acknowledged_survives_kill_nine(folder: Path, method: str, after_lines: int) -> None:
    program = f"""
    import os
    generation = 0
    for count in range(1, 1_000_000):
        data = b"line %06d\\n" % count
        if {method!r} == "put":
            data = data * 500
        generation = store.{method}("k", data, generation=generation).generation
        # One system call, so that no half line is acknowledged.
        os.write(1, b"%d %d\\n" % (count, generation))
    """
    with writers(folder, program, 1) as (writer,):
        assert writer.stdout is not None
        for _ in range(after_lines):
            acknowledged = writer.stdout.readline()
        os.kill(writer.pid, signal.SIGKILL)
        rest = writer.stdout.read()
    count, generation = map(int, ([acknowledged, *rest.splitlines()][-1]).split())
    store = DirectoryStore(folder)
    stored = store.get("k")
    if method == "put":
        # The last one acknowledged or the one after it, whole.
        assert stored.data in {b"line %06d\n" % number * 500 for number in (count, count + 1)}
    else:
        head = b"".join(b"line %06d\n" % number for number in range(1, count + 1))
        assert stored.data.startswith(head)
        assert (b"line %06d\n" % (count + 1)).startswith(stored.data[len(head) :])
    # The lock died with its holder, and the object goes on from where it is.
    assert stored.meta.generation >= generation
    assert store.put("k", b"next", generation=stored.meta.generation).generation > stored.meta.generation
