"""What others put among a run's segments is left out, and hides nothing that the run's hosts wrote."""

from __future__ import annotations

import pytest

from bastion.client import LogPiece, RunLogs
from bastion.core import limits
from bastion.core.bucket import keys, segment_proofs
from bastion.core.bucket.keys import Run
from bastion.core.instants import to_rfc3339
from bastion.core.run_keys import RunKey
from bastion.testing.counting_store import CountingStore
from bastion.testing.manual_clock import ManualClock
from bastion.testing.memory_store import MemoryStore

RUN = Run("aaaaaaaaaa", 1)
KEY = RunKey(b"1" * 32)
THEIRS = RunKey(b"2" * 32)


def put(store: MemoryStore, seq: int, text: str, *, worker: int = 0, key: RunKey | None = KEY, run: Run = RUN) -> None:
    name = keys.log_segment("job", str(run), worker, seq)
    line = f"{to_rfc3339(1000.0 + seq)} stdout F {text}\n".encode()
    store.put(name, line if key is None else segment_proofs.with_proof(name, line, key), generation=0)


def forge(store: MemoryStore, *numbers: int) -> None:
    for number in numbers:
        put(store, number, "forged", key=THEIRS if number % 2 else None)


def reader(store: MemoryStore, **options: object) -> RunLogs:
    return RunLogs(store, "job", RUN, public_key=KEY.public, **{"hosts": 1, **options})  # type: ignore[arg-type]


def drained(logs: RunLogs) -> list[str]:
    return texts([piece for pieces in logs.drain() for piece in pieces])


def texts(pieces: list[LogPiece]) -> list[str]:
    return [piece.text.decode() for piece in pieces]


def test_what_proves_nothing_is_left_out_and_counted(store: MemoryStore) -> None:
    put(store, 1, "a")
    forge(store, 2, 3)
    put(store, 4, "b")
    logs = reader(store)
    assert drained(logs) == ["a", "b"]
    assert (logs.unproved, logs.unproved_below) == (2, keys.log_segments("job", str(RUN), 0))


def test_without_a_public_key_everything_is_read_and_no_proof_shown(store: MemoryStore) -> None:
    put(store, 1, "a")
    put(store, 2, "b", key=None)
    logs = RunLogs(store, "job", RUN, hosts=1)
    assert drained(logs) == ["a", "b"]
    assert logs.unproved == 0


@pytest.mark.parametrize("elsewhere", [{"seq": 2}, {"worker": 1}, {"run": Run("aaaaaaaaaa", 2)}])
def test_a_segment_that_was_copied_elsewhere_proves_nothing(store: MemoryStore, elsewhere: dict) -> None:
    put(store, 1, "a")
    place = {"worker": 0, "seq": 1, "run": RUN, **elsewhere}
    copy = store.get(keys.log_segment("job", str(RUN), 0, 1)).data
    store.put(keys.log_segment("job", str(place["run"]), place["worker"], place["seq"]), copy, generation=0)
    logs = RunLogs(store, "job", place["run"], public_key=KEY.public)
    assert drained(logs) == (["a"] if place["run"] == RUN else [])
    assert logs.unproved == 1


@pytest.mark.parametrize("numbers", [[4, 5, 6], [3, 1_000_000_000], [999_999_999], [4, 6, 8, 1000]])
def test_who_follows_sees_what_comes_after_taken_numbers(store: MemoryStore, numbers: list[int]) -> None:
    put(store, 1, "a")
    put(store, 2, "b")
    forge(store, *numbers)
    logs = reader(store)
    seen = texts(logs.poll())
    for number in (3, 7):
        if number not in numbers:
            put(store, number, f"late {number}")
        for _ in range(40):
            seen += texts(logs.poll())
    expected = [f"late {number}" for number in (3, 7) if number not in numbers]
    assert [text for text in seen if "no longer" not in text] == ["a", "b", *expected]
    assert logs.unproved == len(numbers)


@pytest.mark.parametrize("tail", [0, 1, 2, 100])
@pytest.mark.parametrize("numbers", [[4, 5], [1_000_000_000], list(range(500, 600))])
def test_the_last_lines_are_found_below_what_others_wrote(store: MemoryStore, numbers: list[int], tail: int) -> None:
    for number in (1, 2, 3):
        put(store, number, f"{number}")
    forge(store, *numbers)
    logs = reader(store, tail=tail)
    assert logs.locate() == min(tail, 3)
    seen = texts(logs.poll())
    assert seen[len(seen) - tail :] == ["1", "2", "3"][max(0, 3 - tail) :] if tail else seen == []
    free = 4 if 4 not in numbers else 6
    put(store, free, "late")
    for _ in range(40):
        seen += texts(logs.poll())
    assert seen[-1] == "late"


def test_old_objects_of_others_hide_nothing_from_who_reads_since() -> None:
    clock = ManualClock()
    store = MemoryStore(now=clock.now)
    put(store, 1, "old")
    forge(store, 900_000_000)
    clock.advance(7200)
    logs = reader(store, since=clock.now() - 3600)
    logs.poll()
    put(store, 2, "new")
    seen: list[str] = []
    for _ in range(40):
        seen += texts(logs.poll())
    assert "new" in seen


def test_an_object_of_others_that_is_too_large_to_read_does_not_stop_the_reading(store: MemoryStore) -> None:
    store.put(keys.log_segment("job", str(RUN), 0, 1), bytes(limits.LOG_SEGMENT_READ_MAX_BYTES + 1), generation=0)
    put(store, 2, "a")
    logs = reader(store)
    assert drained(logs) == ["a"]
    assert logs.unproved == 1


def test_proofs_cost_no_request(store: MemoryStore) -> None:
    for number in range(1, 20):
        put(store, number, f"{number}")
    calls = []
    for public_key in ("", KEY.public):
        counting = CountingStore(store)
        assert len(drained(RunLogs(counting, "job", RUN, hosts=1, public_key=public_key))) == 19
        calls.append(dict(counting.calls))
    assert calls[0] == calls[1]


def test_ten_thousand_objects_of_others_are_read_once(store: MemoryStore) -> None:
    put(store, 1, "a")
    forge(store, *range(2, 10_002))
    put(store, 10_002, "b")
    counting = CountingStore(store)
    logs = reader(counting)
    assert drained(logs) == ["a", "b"]
    assert counting.calls["get"] == 10_002
    assert logs.unproved == 10_000
