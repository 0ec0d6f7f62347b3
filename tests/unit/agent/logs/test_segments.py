"""Segments of the log in the bucket."""

import pytest

from bastion.adapters.forwarding_store import ForwardingStore
from bastion.agent.logs.segments import SEGMENT_MAX_BYTES, RawLog, SegmentStore, segment_bytes
from bastion.core.bucket import keys, segment_proofs
from bastion.core.errors import AccessDenied, PreconditionFailed, StoreUnavailable
from bastion.core.run_keys import RunKey
from bastion.testing.counting_store import CountingStore
from bastion.testing.faulty_store import Fault, FaultyStore
from bastion.testing.memory_store import MemoryStore

RUN = "abcdefghij-1"
KEY = RunKey(bytes(32))
LINE = b"2027-01-15T08:00:00.000000Z stdout F x\n"


def segments(store) -> SegmentStore:
    return SegmentStore(store, job="job", run=RUN, host=3, run_key=KEY)


def stored(store) -> dict[str, bytes]:
    folder = keys.log_segments("job", RUN, 3)
    data = {meta.key: store.get(meta.key).data for meta in store.list(folder)}
    return {key.removeprefix(folder): segment_proofs.without_proof(segment) for key, segment in data.items()}


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


# -- others in the same folder -------------------------------------------------------------------------------------


def squat(store, *numbers: int, data: bytes = LINE) -> None:
    for number in numbers:
        store.put(keys.log_segment("job", RUN, 3, number), data, generation=0)


def own(store) -> dict[int, bytes]:
    folder = keys.log_segments("job", RUN, 3)
    found = {
        meta.key: segment_proofs.proved(meta.key, store.get(meta.key).data, KEY.public) for meta in store.list(folder)
    }
    return {int(key.removeprefix(folder)): text for key, text in found.items() if text is not None}


def test_a_log_goes_on_after_taken_numbers_and_says_so(store: MemoryStore):
    writer = segments(store)
    writer.write(LINE)
    squat(store, 2, 3)
    writer.write(LINE)
    note = b"bastion: left out at 0000000002 to 0000000003: objects that prove no host of this attempt, "
    assert own(store) == {
        1: LINE,
        4: b"2027-01-15T08:00:00.000000Z stderr F " + note + b"where its log goes on\n" + LINE,
    }
    writer.write(LINE)
    assert own(store)[5] == LINE


def test_ten_thousand_taken_numbers_cost_a_listing(store: MemoryStore):
    squat(store, *range(1, 10_001))
    counting = CountingStore(store)
    writer = segments(counting)
    writer.open()
    counting.reset()
    writer.write(LINE)
    assert list(own(store)) == [10_001]
    assert sum(counting.calls.values()) < 20


def test_a_restarted_agent_goes_on_after_its_own_last_segment_not_after_what_others_wrote(store: MemoryStore):
    segments(store).write(LINE)
    squat(store, 700, 900_000_000)
    again = segments(store)
    assert again.open() == 1_800_000_000.0
    again.write(LINE)  # what was stored last
    again.write(b"b\n")
    assert own(store) == {1: LINE, 2: b"b\n"}


def test_a_restarted_agent_among_many_objects_of_others_goes_on_after_all_of_them(store: MemoryStore):
    segments(store).write(LINE)
    squat(store, *range(500, 600))
    segments(store).write(b"b\n")
    assert list(own(store)) == [1, 600]


def test_a_segment_whose_reply_was_lost_after_taken_numbers_is_stored_once(store: MemoryStore):
    faulty = FaultyStore(store)
    writer = segments(faulty)
    squat(store, 1)
    faulty.fail_next("put", key=keys.log_segment("job", RUN, 3, 2), fault=Fault.AFTER)
    with pytest.raises(StoreUnavailable):
        writer.write(LINE)
    writer.write(LINE)
    again = segments(store)  # the agent died before it noted that
    again.write(LINE)
    assert list(own(store)) == [2]


class CreateOnly(ForwardingStore):
    """Tells who would overwrite that he may not, as a service may that sees the missing permission first."""

    may_create = True

    def put(self, key, data, *, generation):
        if not self.may_create or self.head(key) is not None:
            raise AccessDenied("storage.objects.delete is missing")
        return super().put(key, data, generation=generation)


def test_a_store_that_denies_to_overwrite_instead_of_a_failed_condition_says_as_much(store: MemoryStore):
    squat(store, 1)
    guarded = CreateOnly(store)
    writer = segments(guarded)
    writer.write(LINE)
    assert list(own(store)) == [2]
    guarded.may_create = False
    with pytest.raises(AccessDenied):
        writer.write(b"b\n")


# -- proofs --------------------------------------------------------------------------------------------------------


def test_a_proof_holds_for_its_run_its_host_its_number_and_its_bytes_alone():
    key = keys.log_segment("job", RUN, 3, 7)
    segment = segment_proofs.with_proof(key, LINE, KEY)
    assert len(segment) == len(LINE) + segment_proofs.PROOF_BYTES
    assert segment_proofs.proved(key, segment, KEY.public) == LINE
    elsewhere = [
        keys.log_segment("job", RUN, 3, 8),
        keys.log_segment("job", RUN, 4, 7),
        keys.log_segment("job", "abcdefghij-2", 3, 7),
        keys.log_segment("other", RUN, 3, 7),
        keys.log_segment("job", RUN, 3, 7, source="proxy"),
    ]
    for other in elsewhere:
        assert segment_proofs.proved(other, segment, KEY.public) is None
    assert segment_proofs.proved(key, segment, RunKey(b"1" * 32).public) is None
    for place in range(0, len(segment), 11):
        changed = bytearray(segment)
        changed[place] ^= 1
        if not 0 <= place - len(LINE) < 28:  # the time of the proof itself, which nobody reads
            assert segment_proofs.proved(key, bytes(changed), KEY.public) is None
    for odd in (b"", b"\n", LINE, segment[:-1], segment + b"\n", segment[len(LINE) :], segment + LINE, b"\xff" * 400):
        assert segment_proofs.proved(key, odd, KEY.public) is None


def test_segments_read_one_after_another_are_lines_in_order():
    segment = segment_proofs.with_proof("k", LINE, KEY)
    at, kind, ends, _ = segment.splitlines()[-1].split(b" ")
    assert (at, kind, ends) == (LINE.split(b" ")[0], b"proof", b"F")
    assert segment_proofs.without_proof(segment) == LINE
    assert segment_proofs.without_proof(LINE) == LINE
