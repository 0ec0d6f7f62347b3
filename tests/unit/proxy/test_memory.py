"""The memory of uploads and downloads: what is lent, given back, and what becomes of pieces when there is little."""

from __future__ import annotations

import random

import pytest

from bastion.net.http1 import Response
from bastion.proxy.memory import BUDGET_BYTES, Gathering, MemoryBudget
from bastion.proxy.sealed.segments import SEGMENT_BYTES
from tests.support.proxy_objects import content, stage
from tests.support.proxy_stage import PieceBody, Stage, document
from tests.support.proxy_uploads import INSERT, MIB, Uploader, noise

__all__ = ["stage"]

MEDIA = f"{INSERT}?uploadType=media&name=a"


def crowd(stage: Stage) -> None:
    """Others have all that is lent."""
    memory = stage.parts.memory
    while memory.free > SEGMENT_BYTES:
        memory.borrow(most=memory.free, least=0)


def pieces(data: bytes) -> list[bytes]:
    return [data[at : at + 100_000] for at in range(0, len(data), 100_000)]


def chunks(stage: Stage) -> list[int]:
    """The sizes of the parts that were sent through a session."""
    return [len(body) for asked, body in stage.upstream.asked if asked.method == "PUT" and body]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_lent_is_never_more_than_the_budget_and_the_least_of_each(seed: int) -> None:
    seeded, budget, lent = random.Random(seed), MemoryBudget(1000), list[int]()
    for _ in range(500):
        if lent and seeded.random() < 0.4:
            budget.give_back(lent.pop(seeded.randrange(len(lent))))
        most = seeded.randrange(1, 600)
        lent.append(budget.borrow(most=most, least=min(most, 7), step=1))
        assert min(most, 7) <= lent[-1] <= most
        assert budget.free == 1000 - sum(lent) >= -7 * len(lent)
    for size in lent:
        budget.give_back(size)
    assert budget.free == 1000


def test_a_gathering_grows_when_others_have_given_back() -> None:
    budget = MemoryBudget(64 * SEGMENT_BYTES)
    others = [budget.borrow(most=60 * SEGMENT_BYTES, least=0) for _ in range(6)]
    with Gathering(budget, most=16, least=2) as gathering:
        assert gathering.capacity == 2
        gathering.add(memoryview(bytes(SEGMENT_BYTES)))
        gathering.add(memoryview(b"end"))
        assert [len(segment) for segment in gathering.segments] == [SEGMENT_BYTES, 3]
        for size in others:
            budget.give_back(size)
        gathering.clear()
        assert (gathering.capacity, gathering.size) == (16, 0)
    assert budget.free == 64 * SEGMENT_BYTES


@pytest.mark.parametrize("size", [0, 5, 3 * MIB, 8 * MIB, 8 * MIB + 1, 16 * MIB, 17 * MIB])
@pytest.mark.parametrize("crowded", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_objects_are_stored_and_read_whatever_there_is_of_memory(
    stage: Stage, size: int, crowded: bool, known: bool
) -> None:
    data = content(size)
    if crowded:
        crowd(stage)
    free = stage.parts.memory.free
    document(stage.ask("POST", MEDIA, data if known else PieceBody(pieces(data), None)))
    assert stage.content("a") == data
    assert stage.parts.memory.free == free


def test_pieces_of_unknown_size_are_large_where_there_is_room_and_small_where_there_is_none(stage: Stage) -> None:
    data = content(40 * MIB)
    document(stage.ask("POST", MEDIA, PieceBody(pieces(data), None)))
    assert chunks(stage)[:-1] == [16 * MIB, 16 * MIB]
    stage.forget_asked()
    crowd(stage)
    document(stage.ask("POST", MEDIA, PieceBody(pieces(data), None)))
    assert set(chunks(stage)[:-1]) == {MIB}


def test_chunks_of_unknown_length_go_up_in_small_pieces_where_there_is_no_room(stage: Stage) -> None:
    data = noise(5 * MIB)
    upload = Uploader(stage, data, name="a", total=None)
    stage.upstream.asked.clear()
    stage.upstream.answers.clear()
    crowd(stage)
    free = stage.parts.memory.free
    document(stage.ask("PUT", upload.target, PieceBody(pieces(data), None)))
    assert max(chunks(stage)) == MIB
    assert stage.content("a") == data
    assert stage.parts.memory.free == free


def test_many_stalled_downloads_take_less_each_than_few(stage: Stage) -> None:
    data = content(4 * MIB)
    stage.put("a", data)
    stalled: list[Response] = []
    for _ in range(400):
        stalled.append(stage.get("a"))
        next(iter(stalled[-1].body))  # type: ignore[arg-type]
    assert stage.parts.memory.free > -400 * 2 * SEGMENT_BYTES
    assert stage.content("a") == data
    for response in stalled:
        response.close()
        response.close()
    assert stage.parts.memory.free == BUDGET_BYTES


def test_memory_is_given_back_where_a_body_breaks(stage: Stage) -> None:
    stage.put("a", content(3 * MIB))
    stage.upstream.break_after = 100
    assert stage.get("a").status == 503
    stage.upstream.break_after = None
    assert stage.parts.memory.free == BUDGET_BYTES
