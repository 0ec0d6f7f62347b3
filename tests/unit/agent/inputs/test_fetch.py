"""Objects become files: verified, continued after a kill, each as it was listed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from bastion.agent.download import Cancelled
from bastion.agent.inputs import fetch, parts
from bastion.agent.inputs.problems import InputProblem
from bastion.core.bucket import host_errors
from bastion.core.bucket.pinned import PinnedObject, pack, part_name
from bastion.core.errors import AccessDenied
from bastion.ports import StoredObject
from bastion.testing.faulty_store import Fault
from bastion.testing.memory_store import MemoryStore
from tests.support.input_stage import FOLDER, Agent, Stage

LARGE = bytes(range(256)) * 40  # ten ranges of 1 KiB
FILES = {"a": b"small", "b/c": LARGE, "empty": b"", "one-range": b"x" * 1024, "range-and-one": b"y" * 1025}


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "RANGE_BYTES", 1024)


@pytest.fixture(name="stage")
def _stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    for path, data in FILES.items():
        stage.put(path, data)
    return stage


def _problem(agent: Agent) -> InputProblem:
    with pytest.raises(InputProblem) as caught:
        agent.run()
    return caught.value


def _at_read(stage: Stage, number: int, act: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something before the read with that number, from 0."""
    reads = iter(range(1_000_000))
    inner = stage.store._call

    def call(method: str, key: str, ask: Callable[[], StoredObject]) -> StoredObject:
        if method == "get" and next(reads) == number:
            act()
        return inner(method, key, ask)

    monkeypatch.setattr(stage.store, "_call", call)


def test_every_object_becomes_a_file(stage: Stage) -> None:
    agent = stage.agent()
    agent.run()
    assert agent.files() == FILES
    size = sum(map(len, FILES.values()))
    assert (agent.progress.fetched, agent.progress.found) == (size, 0)
    assert stage.gets() == 3 + 10 + 2


def test_a_store_that_does_not_answer_is_asked_again(stage: Stage) -> None:
    stage.store.fail_next("get", times=5)
    stage.store.fail_next("get", fault=Fault.AFTER, times=5)
    agent = stage.agent()
    agent.run()
    assert agent.files() == FILES


def test_an_agent_that_goes_on_fetches_only_what_is_missing(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = stage.agent()
    _at_read(stage, 8, killed.stop.set, monkeypatch)
    with pytest.raises(Cancelled):
        killed.run()
    assert "b/c" not in killed.files()
    before, size = stage.gets(), sum(map(len, FILES.values()))
    again = stage.agent()
    again.run()
    assert again.files() == FILES
    assert again.progress.found > 0
    assert again.progress.done == size
    assert stage.gets() - before < 15
    assert before + stage.gets() - before <= 15 + 4  # what was at work when it was killed is asked again


def test_a_range_that_was_damaged_on_disk_is_fetched_again(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    killed = stage.agent()
    _at_read(stage, 9, killed.stop.set, monkeypatch)
    with pytest.raises(Cancelled):
        killed.run()
    (part,) = (path for path in (stage.folder / "a" / "parts").iterdir() if path.stat().st_size > len(LARGE))
    with part.open("r+b") as file:
        file.write(b"damaged")
    again = stage.agent()
    again.run()
    assert again.files() == FILES


@pytest.mark.parametrize("path", ["a", "b/c"])
def test_an_object_that_is_replaced_meanwhile_is_noticed(
    stage: Stage, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(FILES[path])
    data[0] ^= 1
    _at_read(stage, 0, lambda: stage.put(path, bytes(data)), monkeypatch)
    problem = _problem(stage.agent())
    assert problem.error == host_errors.INPUT_CHANGED
    assert f"gs://data/tokens changed while it was fetched: {path} was replaced; launch" in str(problem)


def test_an_object_that_grows_or_goes_meanwhile_is_noticed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    _at_read(stage, 0, lambda: stage.put("a", b"x" * 5000), monkeypatch)
    assert "a is larger now" in str(_problem(stage.agent()))


def test_a_deleted_object_is_noticed(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    meta = stage.memory.head("tokens/a")
    assert meta is not None
    _at_read(stage, 0, lambda: stage.memory.delete("tokens/a", generation=meta.generation), monkeypatch)
    assert "a no longer exists" in str(_problem(stage.agent()))


def test_an_object_that_may_not_be_read_is_named(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = stage.store._call

    def call(method: str, key: str, ask: Callable[[], StoredObject]) -> StoredObject:
        if key == "tokens/b/c" and method == "get":
            raise AccessDenied("reading gs://data/tokens/b/c: x@y.z lacks the permission storage.objects.get")
        return inner(method, key, ask)

    monkeypatch.setattr(stage.store, "_call", call)
    problem = _problem(stage.agent())
    assert problem.error == host_errors.INPUT_MISSING
    assert "cannot be read: reading gs://data/tokens/b/c: x@y.z lacks" in str(problem)


def _refuse_reads(stage: Stage, refused: Callable[[int], bool], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Refuse reads by their number, from 0; return the numbers that were refused."""
    reads, found = iter(range(1_000_000)), list[int]()
    inner = stage.store._call

    def call(method: str, key: str, ask: Callable[[], StoredObject]) -> StoredObject:
        number = next(reads) if method == "get" else -1
        if refused(number):
            found.append(number)
            raise AccessDenied("reading s3://data/x: the credentials have expired (ExpiredToken)")
        return inner(method, key, ask)

    monkeypatch.setattr(stage.store, "_call", call)
    return found


def test_credentials_that_expire_in_the_middle_are_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.refused_max_seconds = 600.0
    refused = _refuse_reads(stage, lambda number: 5 <= number < 12, monkeypatch)
    agent = stage.agent()
    agent.run()
    assert (agent.files(), len(refused)) == (FILES, 7)


def test_credentials_that_stay_expired_end_the_fetch_after_a_while(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.refused_max_seconds = 0.1
    refused = _refuse_reads(stage, lambda number: number >= 5, monkeypatch)
    problem = _problem(stage.agent())
    assert problem.error == host_errors.INPUT_MISSING
    assert "the credentials have expired" in str(problem)
    assert len(refused) > 4  # as many as read at once


def test_a_bucket_that_refuses_from_the_start_is_not_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.refused_max_seconds = 600.0
    refused = _refuse_reads(stage, lambda number: number >= 0, monkeypatch)
    assert _problem(stage.agent()).error == host_errors.INPUT_MISSING
    assert len(refused) <= 4


def test_a_refusal_of_the_bastions_own_bucket_is_waited_for(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    refusals = {"get": 3, "put": 2}
    own = cast(MemoryStore, stage.own)

    def refusing(method: str) -> Callable[..., object]:
        inner = getattr(own, method)

        def call(*arguments: object, **options: object) -> object:
            if refusals[method]:
                refusals[method] -= 1
                raise AccessDenied("reading gs://bastion: the credentials have expired (ExpiredToken)")
            return inner(*arguments, **options)

        return call

    for method in ("get", "put"):
        monkeypatch.setattr(own, method, refusing(method))
    agent = stage.agent()
    agent.run()
    assert agent.files() == FILES


@pytest.mark.parametrize("part", [pack([PinnedObject("a", 5, 1)]), b"{}", None], ids=["another", "damaged", "removed"])
def test_a_listing_that_somebody_edited_is_not_the_jobs_fault(stage: Stage, part: bytes | None) -> None:
    agent = stage.agent()
    agent.run()
    key = FOLDER + part_name(0)
    present = stage.own.head(key)
    assert present is not None
    if part is None:
        stage.own.delete(key, generation=present.generation)
    else:
        stage.own.put(key, part, generation=present.generation)
    problem = _problem(agent)
    assert problem.error == host_errors.HOST_FAILED
    assert FOLDER in str(problem)


def test_a_disk_that_fills_meanwhile_is_the_jobs_failure(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(fetch.PartFile, "write", write)
    problem = _problem(stage.agent())
    assert problem.error == host_errors.DISK_LIMIT
    assert "no space left on device" in str(problem)


def test_memory_holds_a_few_ranges_of_a_large_object(stage: Stage) -> None:
    at_once = most = 0
    inner = stage.store._call

    def call(method: str, key: str, ask: Callable[[], StoredObject]) -> StoredObject:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        try:
            return inner(method, key, ask)
        finally:
            at_once -= 1

    stage.store._call = call  # type: ignore[method-assign]
    stage.put("huge", b"z" * 100_000)
    agent = stage.agent()
    agent.run()
    assert agent.files()["huge"] == b"z" * 100_000
    assert most <= 2 * 4
