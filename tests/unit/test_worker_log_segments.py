"""Segments of the log in the bucket."""

import threading
from random import Random

import pytest

from bastion.core import keys
from bastion.core.errors import PreconditionFailed, StoreUnavailable
from bastion.testing.faulty_store import Fault, FaultyStore
from bastion.testing.memory_store import MemoryStore
from bastion.worker.backoff import Backoff
from bastion.worker.log_buffer import LogBuffer
from bastion.worker.log_lines import LogBlock
from bastion.worker.log_segments import SegmentStore, Uploader

RUN = "abcdefghij-1"
LINE = b"2027-01-15T08:00:00.000000Z stdout F x\n"


def segments(store, raw_log: str = "") -> SegmentStore:
    return SegmentStore(store, job="job", run=RUN, host=3, raw_log=raw_log)


def stored(store) -> dict[str, bytes]:
    folder = keys.log_segments("job", RUN, 3)
    return {meta.key.removeprefix(folder): store.get(meta.key).data for meta in store.list(folder)}


def test_segments_are_numbered_from_one_with_ten_digits():
    store = MemoryStore()
    writer = segments(store)
    writer.write(b"a\n")
    writer.write(b"b\n")
    assert stored(store) == {"0000000001": b"a\n", "0000000002": b"b\n"}


def test_after_a_restart_numbers_go_on_and_the_last_instant_is_known():
    store = MemoryStore()
    segments(store).write(LINE)
    again = segments(store)
    assert again.open() == 1_800_000_000.0
    again.write(b"b\n")
    assert list(stored(store)) == ["0000000001", "0000000002"]


@pytest.mark.parametrize("fault", Fault)
def test_a_segment_whose_request_or_reply_was_lost_is_stored_once(fault: Fault):
    store = MemoryStore()
    faulty = FaultyStore(store)
    writer = segments(faulty)
    faulty.fail_next("put", fault=fault)
    with pytest.raises(StoreUnavailable):
        writer.write(b"a\n")
    writer.write(b"a\n")
    writer.write(b"b\n")
    assert stored(store) == {"0000000001": b"a\n", "0000000002": b"b\n"}


def test_a_number_that_another_agent_used_is_left_to_it():
    store = MemoryStore()
    writer = segments(store)
    writer.open()
    segments(store).write(b"theirs\n")
    writer.write(b"ours\n")
    assert stored(store) == {"0000000001": b"theirs\n", "0000000002": b"ours\n"}


def test_the_raw_log_is_appended_to_what_is_there_already():
    store = MemoryStore()
    store.put("logs/job", b"states\n", generation=0)
    writer = segments(store, raw_log="logs/job")
    writer.append_raw(b"one\n")
    meta = store.head("logs/job")
    store.append("logs/job", b"daemon\n", generation=meta.generation)
    with pytest.raises(PreconditionFailed):
        writer.append_raw(b"two\n")
    writer.append_raw(b"two\n")
    assert store.get("logs/job").data == b"states\none\ndaemon\ntwo\n"


@pytest.mark.parametrize("fault", Fault)
def test_raw_output_whose_request_or_reply_was_lost_is_there_once(fault: Fault):
    store = MemoryStore()
    store.put("logs/job", b"states\n", generation=0)
    faulty = FaultyStore(store)
    writer = segments(faulty, raw_log="logs/job")
    for number in range(4):
        if number != 1:
            faulty.fail_next("append", fault=fault)
            with pytest.raises(StoreUnavailable):
                writer.append_raw(b"same\n")
        writer.append_raw(b"same\n")
    assert store.get("logs/job").data == b"states\n" + b"same\n" * 4


def test_raw_output_in_doubt_behind_which_somebody_wrote_is_added_again():
    store = MemoryStore()
    faulty = FaultyStore(store)
    writer = segments(faulty, raw_log="logs/job")
    writer.append_raw(b"one\n")
    faulty.fail_next("append", fault=Fault.BEFORE)
    with pytest.raises(StoreUnavailable):
        writer.append_raw(b"two\n")
    store.append("logs/job", b"six\n", generation=store.head("logs/job").generation)
    writer.append_raw(b"two\n")
    assert store.get("logs/job").data == b"one\nsix\ntwo\n"


def test_the_uploader_repeats_until_everything_is_stored():
    store = MemoryStore()
    faulty = FaultyStore(store, seed=3, before=0.4, after=0.2)
    buffer = LogBuffer(monotonic=lambda: 0.0)
    done = threading.Event()
    backoff = Backoff(Random(1), first_seconds=0.001, last_seconds=0.001)
    uploader = Uploader(segments(faulty), buffer, poll_seconds=1.0, backoff=backoff, on_done=done.set)
    uploader.start()
    for number in range(20):
        # Each block is a segment of its own.
        buffer.put([LogBlock(text=b"%03d" % number + b"x" * 200_000 + b"\n", at=0.0, size=1)])
    buffer.close()
    assert done.wait(20.0)
    assert uploader.done
    assert [text[:3] for text in stored(store).values()] == [b"%03d" % number for number in range(20)]
    assert faulty.failed


def test_an_abandoned_uploader_ends_although_the_store_stays_away():
    store = FaultyStore(MemoryStore(), before=1.0)
    buffer = LogBuffer(monotonic=lambda: 0.0)
    backoff = Backoff(Random(1), first_seconds=30.0, last_seconds=30.0)
    uploader = Uploader(segments(store), buffer, poll_seconds=1.0, backoff=backoff, on_done=lambda: None)
    buffer.put([LogBlock(text=b"x" * 256 * 1024, at=0.0, size=1)])
    uploader.start()
    uploader.abandon()
    uploader.join(5.0)
    assert not uploader.is_alive
    assert not uploader.done
