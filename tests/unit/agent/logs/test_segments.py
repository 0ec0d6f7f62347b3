"""Segments of the log in the bucket."""

import pytest

from bastion.agent.logs.segments import SEGMENT_MAX_BYTES, RawLog, SegmentStore, segment_bytes
from bastion.core.bucket import keys
from bastion.core.errors import PreconditionFailed, StoreUnavailable
from bastion.testing.faulty_store import Fault, FaultyStore
from bastion.testing.memory_store import MemoryStore

RUN = "abcdefghij-1"
LINE = b"2027-01-15T08:00:00.000000Z stdout F x\n"


def segments(store) -> SegmentStore:
    return SegmentStore(store, job="job", run=RUN, host=3)


def stored(store) -> dict[str, bytes]:
    folder = keys.log_segments("job", RUN, 3)
    return {meta.key.removeprefix(folder): store.get(meta.key).data for meta in store.list(folder)}


def test_segments_are_numbered_from_one_with_ten_digits(store: MemoryStore):
    writer = segments(store)
    writer.write(b"a\n")
    writer.write(b"b\n")
    assert stored(store) == {"0000000001": b"a\n", "0000000002": b"b\n"}


def test_after_a_restart_numbers_go_on_and_the_last_instant_is_known(store: MemoryStore):
    segments(store).write(LINE)
    again = segments(store)
    assert again.open() == 1_800_000_000.0
    again.write(b"b\n")
    assert list(stored(store)) == ["0000000001", "0000000002"]


def test_after_a_restart_what_was_stored_last_is_not_stored_again(store: MemoryStore):
    segments(store).write(LINE)
    again = segments(store)
    again.write(LINE)
    again.write(b"b\n")
    assert stored(store) == {"0000000001": LINE, "0000000002": b"b\n"}


@pytest.mark.parametrize("hosts", [1, 4, 16, 64, 512])
def test_a_segment_of_each_host_fits_the_memory_of_who_follows_them_all(hosts: int):
    assert segment_bytes(hosts) <= SEGMENT_MAX_BYTES
    # Of many hosts two segments each are held, whatever their size, since before they grew.
    assert min(hosts, 64) * segment_bytes(hosts) <= 16 * 1024 * 1024


@pytest.mark.parametrize("fault", Fault)
def test_a_segment_whose_request_or_reply_was_lost_is_stored_once(store: MemoryStore, fault: Fault):
    faulty = FaultyStore(store)
    writer = segments(faulty)
    faulty.fail_next("put", fault=fault)
    with pytest.raises(StoreUnavailable):
        writer.write(b"a\n")
    writer.write(b"a\n")
    writer.write(b"b\n")
    assert stored(store) == {"0000000001": b"a\n", "0000000002": b"b\n"}


def test_a_number_that_another_agent_used_is_left_to_it(store: MemoryStore):
    writer = segments(store)
    writer.open()
    segments(store).write(b"theirs\n")
    writer.write(b"ours\n")
    assert stored(store) == {"0000000001": b"theirs\n", "0000000002": b"ours\n"}


@pytest.mark.parametrize("name", ["\u00b2", "1", "9999999999", "10000000000", "9" * 900])
def test_what_is_no_number_of_ours_does_not_move_the_log_to_where_no_reader_looks(store: MemoryStore, name: str):
    store.put(f"{keys.log_segments('job', RUN, 3)}{name}", b"theirs\n", generation=0)
    segments(store).write(b"a\n")
    again = segments(store)
    again.open()
    again.write(b"b\n")
    assert stored(store) == {"0000000001": b"a\n", "0000000002": b"b\n", name: b"theirs\n"}


def test_the_raw_log_is_appended_to_what_is_there_already(store: MemoryStore):
    store.put("logs/job", b"states\n", generation=0)
    writer = RawLog(store, "logs/job")
    writer.append(b"one\n")
    meta = store.head("logs/job")
    store.append("logs/job", b"daemon\n", generation=meta.generation)
    with pytest.raises(PreconditionFailed):
        writer.append(b"two\n")
    writer.append(b"two\n")
    assert store.get("logs/job").data == b"states\none\ndaemon\ntwo\n"


@pytest.mark.parametrize("fault", Fault)
def test_raw_output_whose_request_or_reply_was_lost_is_there_once(store: MemoryStore, fault: Fault):
    store.put("logs/job", b"states\n", generation=0)
    faulty = FaultyStore(store)
    writer = RawLog(faulty, "logs/job")
    for number in range(4):
        if number != 1:
            faulty.fail_next("append", fault=fault)
            with pytest.raises(StoreUnavailable):
                writer.append(b"same\n")
        writer.append(b"same\n")
    assert store.get("logs/job").data == b"states\n" + b"same\n" * 4


def test_raw_output_in_doubt_behind_which_somebody_wrote_is_added_again(store: MemoryStore):
    faulty = FaultyStore(store)
    writer = RawLog(faulty, "logs/job")
    writer.append(b"one\n")
    faulty.fail_next("append", fault=Fault.BEFORE)
    with pytest.raises(StoreUnavailable):
        writer.append(b"two\n")
    store.append("logs/job", b"six\n", generation=store.head("logs/job").generation)
    writer.append(b"two\n")
    assert store.get("logs/job").data == b"one\nsix\ntwo\n"
