"""The cache: one fetch for all jobs of a host, within a limit, never damaged."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bastion.agent.download import Cancelled
from bastion.agent.inputs import cache as cache_module
from bastion.agent.inputs import fetch, parts
from bastion.agent.inputs.cache import InputCache
from bastion.agent.inputs.parts import PartFile
from bastion.ports import StoredObject
from tests.support.input_stage import FOLDER, Agent, Stage

LARGE = bytes(range(256)) * 40
FILES = {"a": b"small", "b/c": LARGE, "empty": b""}
READS = 12  # two small objects, ten ranges


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "RANGE_BYTES", 1024)


@pytest.fixture(name="stage")
def _stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    for path, data in FILES.items():
        stage.put(path, data)
    return stage


def _run(stage: Stage, name: str, limit: int = 1 << 30) -> Agent:
    cache = stage.cache(limit)
    agent = stage.agent(name, cache=cache)
    try:
        agent.run()
    finally:
        cache.close()
    return agent


def _objects(stage: Stage) -> list[Path]:
    return sorted((stage.folder / "cache" / "objects").rglob("*/*"))


def _used(stage: Stage) -> int:
    return int((stage.folder / "cache" / "used").read_text())


def test_ten_jobs_one_after_the_other_fetch_once(stage: Stage) -> None:
    agents = [_run(stage, f"job-{number}") for number in range(10)]
    assert all(agent.files() == FILES for agent in agents)
    assert stage.gets() == READS
    size = sum(map(len, FILES.values()))
    assert [agent.progress.fetched for agent in agents] == [size] + [0] * 9
    assert all(agent.progress.done == size for agent in agents)


def test_ten_jobs_at_once_fetch_once(stage: Stage) -> None:
    stage.agent().run()  # the listing
    before = stage.gets()
    agents = [stage.agent(f"job-{number}", cache=stage.cache()) for number in range(10)]
    threads = [threading.Thread(target=agent.run) for agent in agents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert all(agent.files() == FILES for agent in agents)
    assert stage.gets() - before == READS


def test_what_another_job_puts_there_meanwhile_is_not_taken_for_damaged(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner, first = parts.opened, iter([True])

    @contextlib.contextmanager
    def opened(path: Path, size: int) -> Iterator[PartFile | None]:
        with inner(path, size) as file:
            if next(first, False):
                _run(stage, "other")
            yield file

    monkeypatch.setattr(parts, "opened", opened)
    assert _run(stage, "slow").files() == FILES
    assert stage.gets() == READS


def test_ten_jobs_without_a_cache_fetch_ten_times(stage: Stage) -> None:
    for number in range(10):
        stage.agent(f"job-{number}").run()
    assert stage.gets() == 10 * READS


def test_a_cache_that_is_removed_while_it_is_used_is_done_without(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = stage.store._call

    def call(method: str, key: str, ask: Callable[[], StoredObject]) -> StoredObject:
        shutil.rmtree(stage.folder / "cache", ignore_errors=True)
        return inner(method, key, ask)

    monkeypatch.setattr(stage.store, "_call", call)
    assert _run(stage, "first").files() == FILES
    monkeypatch.undo()
    monkeypatch.setattr(parts, "RANGE_BYTES", 1024)
    assert _run(stage, "second").files() == FILES
    assert _objects(stage)


def test_a_job_that_writes_into_its_input_changes_nothing_for_others(stage: Stage) -> None:
    first = _run(stage, "first")
    for path in first.into.rglob("*"):
        if path.is_file():
            with path.open("r+b") as file:
                file.write(b"mine")
    assert _run(stage, "second").files() == FILES
    assert stage.gets() == READS


@pytest.mark.parametrize("at", [0, 5000, len(LARGE) + 3])
def test_a_changed_byte_in_the_cache_is_noticed_and_fetched_again(stage: Stage, at: int) -> None:
    _run(stage, "first")
    (large,) = (path for path in _objects(stage) if path.stat().st_size > len(LARGE))
    with large.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))
    assert _run(stage, "second").files() == FILES
    assert stage.gets() == READS + 10
    assert _used(stage) == sum(path.stat().st_size for path in _objects(stage))


def test_a_changed_object_is_another_one(stage: Stage) -> None:
    _run(stage, "first")
    stage.put("a", b"new")
    (listing,) = stage.own.list(FOLDER + "listing")
    stage.own.delete(listing.key, generation=listing.generation)
    assert _run(stage, "second").files() == {**FILES, "a": b"new"}
    assert stage.gets() == READS + 1


def test_what_a_dead_agent_left_is_continued(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = stage.agent("killed", cache=stage.cache())
    reads = iter(range(1_000_000))
    inner = stage.store._call

    def call(method, key, ask):  # type: ignore[no-untyped-def]
        if method == "get" and next(reads) == 8:
            killed.stop.set()
        return inner(method, key, ask)

    with monkeypatch.context() as patch:
        patch.setattr(stage.store, "_call", call)
        with pytest.raises(Cancelled):
            killed.run()
    before = stage.gets()
    assert all(path.stat().st_size != parts.stored_size(len(LARGE)) for path in _objects(stage))
    assert _run(stage, "next").files() == FILES
    assert 0 < stage.gets() - before < READS


def test_the_least_recently_used_goes_first_and_the_limit_holds(stage: Stage) -> None:
    limit = 3 * parts.stored_size(10_000)
    for number in range(5):
        name = f"set-{number}"
        one = Stage(stage.folder)
        one.put(name, name.encode() * 1666)
        for path in _objects(stage):  # an hour passes
            os.utime(path, (path.stat().st_mtime - 3600,) * 2)
        agent = _run(one, name, limit)
        assert agent.files() == {name: name.encode() * 1666}
        assert _used(stage) == sum(path.stat().st_size for path in _objects(stage)) <= limit
    # Files of jobs that run stay, whatever goes from the cache.
    assert (stage.folder / "set-0" / "data" / "set-0").read_bytes() == b"set-0" * 1666


def test_what_another_agent_uses_now_stays(stage: Stage) -> None:
    at_work = stage.cache(parts.stored_size(9000))
    one = stage.agent("one", cache=at_work)
    for path in ("b/c", "empty"):
        stage.memory.delete(f"tokens/{path}", generation=stage.memory.head(f"tokens/{path}").generation)  # type: ignore[union-attr]
    one.run()
    held = _objects(stage)
    other = Stage(stage.folder)
    other.put("data", b"o" * 9000)
    assert _run(other, "other", parts.stored_size(9000)).files() == {"data": b"o" * 9000}
    assert _objects(stage) == held  # no room: fetched without the cache
    at_work.close()
    for path in held:
        os.utime(path, (0, 0))
    third = Stage(stage.folder)
    third.put("data", b"t" * 9000)
    _run(third, "third", parts.stored_size(9000))
    assert len(_objects(stage)) == 1
    assert _objects(stage) != held


def test_an_object_larger_than_the_limit_is_fetched_without_the_cache(stage: Stage) -> None:
    assert _run(stage, "first", limit=3000).files() == FILES
    assert _run(stage, "second", limit=3000).files() == FILES
    assert stage.gets() == READS + 10
    assert _used(stage) <= 3000


def test_a_full_disk_of_the_cache_is_not_the_jobs_problem(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = parts.PartFile.write

    def write(file: parts.PartFile, number: int, data: bytes) -> None:
        if "cache" in file.path.parts:
            raise OSError(28, "No space left on device")
        inner(file, number, data)

    monkeypatch.setattr(parts.PartFile, "write", write)
    assert _run(stage, "first").files() == FILES
    assert _objects(stage) == []
    assert _used(stage) == 0


def test_agents_that_died_do_not_protect_anything(tmp_path: Path) -> None:
    dead = InputCache(tmp_path, 100)
    os.close(dead._user)
    alive = InputCache(tmp_path, 100)
    alive._oldest_user()
    assert len(list((tmp_path / "users").iterdir())) == 1
    alive.close()
    assert list((tmp_path / "users").iterdir()) == []


def test_a_cache_whose_disk_cannot_be_read_is_done_without(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    _run(stage, "first")

    def unreadable(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(parts.PartFile, "_copied", unreadable)
    assert _run(stage, "second").files() == FILES


@pytest.mark.parametrize("what", ["a folder", "a link"])
def test_something_else_in_the_place_of_an_object_ends_no_job(stage: Stage, what: str) -> None:
    _run(stage, "first")
    (large,) = (path for path in _objects(stage) if path.stat().st_size > len(LARGE))
    large.unlink()
    if what == "a folder":
        large.mkdir()
    else:
        large.symlink_to("/dev/zero")
    assert _run(stage, "second").files() == FILES


def test_a_pipe_in_the_place_of_an_object_does_not_hang_a_job(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    found = []

    def look() -> None:
        with parts.opened(tmp_path / "pipe", 10) as file:
            found.append(file)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(10.0)
    assert found == [None]


def test_a_job_whose_agent_is_frozen_does_not_hold_up_others(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_OTHER_JOB_SECONDS", 0.01)
    monkeypatch.setattr(fetch, "_OTHER_JOB_SILENT_SECONDS", 0.1)
    _run(stage, "first")
    (large,) = (path for path in _objects(stage) if path.stat().st_size > len(LARGE))
    large.unlink()
    cache = stage.cache()
    with parts.owned(cache.part_of(large.name), len(LARGE)) as frozen:
        assert frozen is not None
        agent = stage.agent("second", cache=cache)
        thread = threading.Thread(target=agent.run)
        thread.start()
        thread.join(10.0)
        agent.stop.set()
    thread.join()
    cache.close()
    assert agent.files() == FILES


def test_a_lock_that_somebody_keeps_does_not_hang_a_job(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "_LOCK_SECONDS", 0.1)
    cache = stage.cache()
    agent = stage.agent("a", cache=cache)
    with (stage.folder / "cache" / "lock").open() as kept:
        fcntl.flock(kept, fcntl.LOCK_EX)
        thread = threading.Thread(target=agent.run, daemon=True)
        thread.start()
        thread.join(20.0)
        assert not thread.is_alive()
        with pytest.raises(OSError, match=r"a process holds .*/lock for"):
            stage.cache()
    cache.close()
    assert agent.files() == FILES


def test_a_cache_whose_disk_is_so_full_that_it_cannot_count_is_done_without(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = stage.agent("first", cache=stage.cache())

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(InputCache, "_write_used", full)
    agent.run()
    assert agent.files() == FILES
