"""Writes whose answers are lost: what the store finds out, and what it says when nobody can know."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from bastion.adapters.bucket_requests.retry import Patience
from bastion.adapters.gcs.store import GcsStore
from bastion.core.errors import PreconditionFailed, StoreUnavailable
from bastion.emulators.gcs.fault_rules import FaultRule
from bastion.ports import ObjectMeta
from bastion.testing.manual_clock import ManualClock
from tests.support.gcs_storage import Storage


class Meanwhile(ManualClock):
    """While the store pauses before its second try, something else happens."""

    def __init__(self) -> None:
        super().__init__()
        self.happens: list[Callable[[], object]] = []

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds)
        while self.happens:
            self.happens.pop(0)()


@dataclass
class World:
    """A store that is in trouble, and another client that is not.

    Attributes:
        meanwhile: Done, in order, in the first pause between two tries.
    """

    storage: Storage
    bucket: str
    store: GcsStore
    other: GcsStore
    meanwhile: list[Callable[[], object]]

    def lose(self, method: str = "POST", path: str = "", *, times: int | None = 1) -> None:
        """The next requests are carried out without an answer."""
        self.storage.faults.replace([FaultRule(fault="lost-reply", method=method, path=path, times=times)])

    def refuse(self, method: str = "POST", *, times: int | None = 1) -> None:
        """The next requests are answered with 503 before anything happens, which is not to be told from after."""
        self.storage.faults.replace([FaultRule(fault="503", method=method, times=times)])

    def heal(self) -> None:
        self.storage.faults.replace(())


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storage]:
    storage = Storage(tmp_path_factory.mktemp("buckets"))
    storage.open()
    yield storage
    storage.close()


@pytest.fixture
def world(storage: Storage) -> Iterator[World]:
    storage.faults.replace(())
    bucket = storage.new_bucket()
    clock = Meanwhile()
    patience = Patience(deadline_seconds=60)
    yield World(
        storage=storage,
        bucket=bucket,
        store=storage.store(bucket, clock=clock, patience=patience),
        other=storage.store(bucket),
        meanwhile=clock.happens,
    )
    storage.faults.replace(())


@dataclass(frozen=True)
class Write:
    """A write that makes "beginning" "beginning and end"; `path` is that of the request that decides."""

    path: str
    call: Callable[[GcsStore, ObjectMeta], ObjectMeta]

    def __call__(self, store: GcsStore, meta: ObjectMeta) -> ObjectMeta:
        return self.call(store, meta)


PUT = Write("uploadType", lambda store, meta: store.put("k", b"beginning and end", generation=meta.generation))
APPEND = Write("/compose", lambda store, meta: store.append("k", b" and end", generation=meta.generation))
both_writes = pytest.mark.parametrize("write", [PUT, APPEND], ids=["put", "append"])


@both_writes
def test_a_write_whose_answer_was_lost_has_landed_once(world: World, write: Write) -> None:
    first = world.other.put("k", b"beginning", generation=0)
    world.lose(path=write.path)
    landed = write(world.store, first)
    assert world.other.get("k").data == b"beginning and end"
    assert world.other.head("k") == landed


def test_a_part_whose_answer_was_lost_is_appended_once(world: World) -> None:
    first = world.other.put("k", b"beginning", generation=0)
    world.lose(path="uploadType")
    APPEND(world.store, first)
    assert world.other.get("k").data == b"beginning and end"
    assert [*world.other.list("bastion-parts/")] == []


def test_a_creation_whose_answer_was_lost_has_landed(world: World) -> None:
    world.lose()
    landed = world.store.put("k", b"mine", generation=0)
    assert world.other.head("k") == landed


@both_writes
def test_a_write_that_was_refused_in_doubt_is_tried_again(world: World, write: Write) -> None:
    first = world.other.put("k", b"beginning", generation=0)
    world.refuse()
    write(world.store, first)
    assert world.other.get("k").data == b"beginning and end"


@both_writes
def test_a_write_that_another_one_forestalled_has_failed_for_certain(world: World, write: Write) -> None:
    first = world.other.put("k", b"beginning", generation=0)
    world.refuse(times=None)
    world.meanwhile += [world.heal, lambda: world.other.put("k", b"theirs", generation=first.generation)]
    with pytest.raises(PreconditionFailed):
        write(world.store, first)
    assert world.other.get("k").data == b"theirs"


@both_writes
def test_when_others_wrote_on_after_a_lost_answer_nobody_can_know(world: World, write: Write) -> None:
    first = world.other.put("k", b"beginning", generation=0)
    world.lose(path=write.path, times=None)

    def overwrite() -> None:
        world.heal()
        present = world.other.head("k")
        assert present is not None
        assert world.other.get("k").data == b"beginning and end"
        world.other.put("k", b"theirs", generation=present.generation)

    world.meanwhile.append(overwrite)
    with pytest.raises(StoreUnavailable, match="it is unknown whether"):
        write(world.store, first)
    assert world.other.get("k").data == b"theirs"


def test_a_creation_in_doubt_that_finds_another_object_says_that_nobody_can_know(world: World) -> None:
    world.refuse(times=None)
    world.meanwhile += [world.heal, lambda: world.other.put("k", b"theirs", generation=0)]
    with pytest.raises(StoreUnavailable, match="it is unknown whether"):
        world.store.put("k", b"mine", generation=0)
    assert world.other.get("k").data == b"theirs"
    with pytest.raises(PreconditionFailed):
        world.store.put("k", b"mine", generation=0)


def test_a_creation_that_was_told_to_come_later_was_not_carried_out(world: World) -> None:
    world.storage.faults.replace([FaultRule(fault="429", method="POST")])
    world.meanwhile += [world.heal, lambda: world.other.put("k", b"theirs", generation=0)]
    with pytest.raises(PreconditionFailed):
        world.store.put("k", b"mine", generation=0)


def test_a_write_that_vanished_with_its_object_says_that_nobody_can_know(world: World) -> None:
    first = world.other.put("k", b"beginning", generation=0)
    world.lose(times=None)

    def delete() -> None:
        world.heal()
        present = world.other.head("k")
        assert present is not None
        world.other.delete("k", generation=present.generation)

    world.meanwhile.append(delete)
    with pytest.raises(StoreUnavailable, match="does not exist"):
        world.store.put("k", b"mine", generation=first.generation)


def test_a_write_that_never_gets_through_is_not_written_so_far(world: World) -> None:
    first = world.other.put("k", b"beginning", generation=0)
    world.refuse(times=None)
    with pytest.raises(StoreUnavailable, match="not been written so far"):
        world.store.put("k", b"mine", generation=first.generation)
    assert world.other.get("k").data == b"beginning"


def test_the_deadline_leaves_time_to_find_out_that_the_last_try_landed(world: World) -> None:
    world.lose(times=None)
    landed = world.store.put("k", b"mine", generation=0)
    assert world.other.head("k") == landed


def test_a_first_refusal_is_a_failed_precondition_without_another_question(world: World) -> None:
    first = world.other.put("k", b"1", generation=0)
    second = world.other.put("k", b"2", generation=first.generation)
    world.storage.forget()
    with pytest.raises(PreconditionFailed):
        world.store.put("k", b"stale", generation=first.generation)
    assert world.storage.asked == ["upload"]
    assert world.other.head("k") == second


def test_an_object_of_another_program_is_never_taken_for_ours(world: World) -> None:
    bucket = world.storage.client.bucket(world.bucket)
    world.refuse(times=None)

    def write_by_hand() -> None:
        world.heal()
        bucket.blob("k").upload_from_string(b"by hand", if_generation_match=0)

    world.meanwhile.append(write_by_hand)
    with pytest.raises(StoreUnavailable, match="it is unknown whether"):
        world.store.put("k", b"mine", generation=0)


def test_a_write_in_doubt_whose_next_turn_comes_too_late_is_looked_up_all_the_same(world: World) -> None:
    # The first try takes the key's turn, and the next one is later than any try may begin.
    paced = world.storage.store(
        world.bucket, clock=ManualClock(), interval=60.0, patience=Patience(deadline_seconds=60)
    )
    world.lose()
    meta = paced.put("k", b"1", generation=0)
    assert world.other.head("k") == meta
    world.refuse(times=None)
    impatient = world.storage.store(
        world.bucket, clock=ManualClock(), interval=60.0, patience=Patience(deadline_seconds=60)
    )
    with pytest.raises(StoreUnavailable, match="503"):
        impatient.put("k", b"2", generation=meta.generation)


# Deletions


def test_a_deletion_whose_answer_was_lost_is_success(world: World) -> None:
    first = world.other.put("k", b"", generation=0)
    world.lose("DELETE")
    world.store.delete("k", generation=first.generation)
    assert world.other.head("k") is None


def test_a_deletion_that_never_gets_an_answer_is_success_if_the_object_is_gone(world: World) -> None:
    first = world.other.put("k", b"", generation=0)
    world.lose("DELETE", times=None)
    world.store.delete("k", generation=first.generation)


def test_a_deletion_that_never_gets_through_is_unavailable(world: World) -> None:
    first = world.other.put("k", b"", generation=0)
    world.refuse("DELETE", times=None)
    with pytest.raises(StoreUnavailable):
        world.store.delete("k", generation=first.generation)
    assert world.other.head("k") == first


def test_a_deletion_in_doubt_that_finds_a_newer_object_leaves_it_and_says_so(world: World) -> None:
    first = world.other.put("k", b"1", generation=0)
    world.lose("DELETE")
    world.meanwhile.append(lambda: world.other.put("k", b"2", generation=0))
    with pytest.raises(PreconditionFailed):
        world.store.delete("k", generation=first.generation)
    assert world.other.get("k").data == b"2"
