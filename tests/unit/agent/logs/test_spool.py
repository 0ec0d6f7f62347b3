"""Output on the host's disk, on its way to the bucket."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bastion.agent.logs import spool as log_spool
from bastion.agent.logs.lines import LogRecord, gap_record
from bastion.agent.logs.spool import LogSpool, Waiting
from bastion.testing.manual_clock import ManualClock

HEADER = 13


def record(name: str, size: int = 100, at: float = 7.0) -> LogRecord:
    return LogRecord(stream="stdout", at=at, data=name.encode().ljust(size - 1, b".") + b"\n")


def spool(folder: Path, *, chunk: int = 100, capacity: int = 10**6, clock: ManualClock | None = None) -> LogSpool:
    """One that is open; as chunks hold 100 bytes, each of `record`s is one."""
    made = LogSpool(
        folder,
        chunk_bytes=chunk,
        cost_of=lambda each: len(each.data),
        monotonic=(clock or ManualClock()).monotonic,
        capacity_bytes=capacity,
    )
    made.open()
    return made


def name(each: LogRecord) -> str:
    text = each.data.decode().rstrip(".\n")
    return text.split(" bytes")[0] if each.stream == "gap" else text


def chunk(of: LogSpool) -> list[str]:
    taken = [name(each) for each in of.take()]
    of.confirm()
    return taken


def rest(of: LogSpool) -> list[list[str]]:
    chunks = []
    while of.waiting():
        chunks.append(chunk(of))
    return chunks


def test_what_is_put_is_taken_in_order_and_leaves_nothing_behind(tmp_path: Path):
    made = spool(tmp_path, chunk=250)
    made.put([record("a"), record("b")])
    made.put([record("c")])
    assert rest(made) == [["a", "b"], ["c"]]
    assert made.held_bytes == 0
    assert list(tmp_path.iterdir()) == []


def test_streams_instants_and_bytes_come_back_as_they_were(tmp_path: Path):
    records = [
        LogRecord(stream="stdout", at=1.25, data=b"\xff\x00\r\n"),
        LogRecord(stream="stderr", at=2.5, data=b"no end"),
        gap_record(None, "why", at=3.0),
    ]
    made = spool(tmp_path, chunk=1000)
    made.put(records)
    assert made.take() == records


def test_a_chunk_that_is_not_confirmed_is_taken_again_as_it_was_whatever_comes_meanwhile(tmp_path: Path):
    made = spool(tmp_path, chunk=1000)
    made.put([record("a")])
    first = made.take()
    made.put([record("b")])
    assert made.take() == first
    made.confirm()
    assert chunk(made) == ["b"]


def test_it_says_since_when_something_waits_and_whether_a_segment_is_full(clock: ManualClock, tmp_path: Path):
    made = spool(tmp_path, clock=clock)
    assert made.waiting() is None
    made.put([record("a", 60)])
    began = clock.monotonic()
    clock.advance(5.0)
    assert made.waiting() == Waiting(ready_at=began, full=False)
    made.put([record("b", 60)])
    assert made.waiting() == Waiting(ready_at=began, full=True)


def test_news_are_told_when_a_chunk_begins_and_when_it_is_full_and_not_between(tmp_path: Path):
    made = spool(tmp_path, chunk=250)

    def told(act: Callable[[], None]) -> bool:
        made.changed.clear()
        act()
        return made.changed.is_set()

    assert told(lambda: made.put([record("a")]))
    assert not told(lambda: made.put([record("b")]))
    assert told(lambda: made.put([record("c")]))
    assert told(made.close)


def test_when_it_is_full_the_oldest_go_and_a_gap_says_how_many_bytes(tmp_path: Path):
    made = spool(tmp_path, capacity=3 * (100 + HEADER))
    made.put([record(each) for each in "abcde"])
    assert rest(made) == [["200", "c"], ["d"], ["e"]]
    assert list(tmp_path.iterdir()) == []


def test_a_gap_has_the_instant_of_the_first_that_went(tmp_path: Path):
    made = spool(tmp_path, capacity=100 + HEADER)
    made.put([record("a", at=1.0), record("b", at=2.0), record("c", at=3.0)])
    assert [each.at for each in made.take()] == [1.0, 3.0]


def test_what_is_being_uploaded_does_not_go(tmp_path: Path):
    made = spool(tmp_path, capacity=3 * (100 + HEADER))
    made.put([record("a"), record("b"), record("c")])
    made.take()
    made.put([record("d"), record("e")])
    assert rest(made) == [["a"], ["200", "d"], ["e"]]


def test_what_has_no_room_beside_what_is_being_uploaded_is_counted(tmp_path: Path):
    made = spool(tmp_path, capacity=100 + HEADER)
    made.put([record("a")])
    made.take()
    made.put([record("b"), record("c")])
    assert rest(made) == [["a"], ["200"]]


def test_gaps_are_not_counted_as_output(tmp_path: Path):
    made = spool(tmp_path, capacity=2 * (100 + HEADER))
    made.put([gap_record(None, "why", at=1.0), record("a"), record("b"), record("c")])
    assert rest(made) == [["100", "b"], ["c"]]


def test_a_record_that_no_chunk_holds_is_stored_in_pieces(tmp_path: Path):
    made = spool(tmp_path)
    made.put([LogRecord(stream="stdout", at=1.0, data=b"x" * 80 + b"\n" + b"y" * 80 + b"\n")])
    assert [each.data for each in (*made.take(), *(made.confirm() or made.take()))] == [
        b"x" * 80 + b"\n",
        b"y" * 80 + b"\n",
    ]


def test_no_more_is_held_than_a_tenth_of_the_free_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    real = os.statvfs(tmp_path)
    fields = list(real)
    fields[1:5] = [1, 100_000, 5_000, 5_000]  # block size, all, free, free for us
    monkeypatch.setattr(log_spool.os, "statvfs", lambda _path: os.statvfs_result(fields))
    made = spool(tmp_path)
    made.put([record(str(number)) for number in range(20)])
    # The free bytes are said to stay 5,000 here, so that the share grows a little with what is held.
    assert 400 <= made.held_bytes <= 600


def test_a_disk_that_refuses_costs_lines_and_not_the_command(tmp_path: Path):
    made = spool(tmp_path / "spool")
    made.put([record("a")])
    made.take()
    made.confirm()
    shutil.rmtree(tmp_path / "spool")
    made.put([record("b"), record("c")])
    (tmp_path / "spool").mkdir()
    made.put([record("d")])
    assert rest(made) == [["200", "d"]]


def test_a_file_that_has_vanished_is_a_gap(tmp_path: Path):
    made = spool(tmp_path)
    made.put([record("a"), record("b")])
    sorted(tmp_path.iterdir())[0].unlink()
    assert rest(made) == [["100"], ["b"]]


def test_after_a_restart_all_is_there_also_what_was_being_uploaded(tmp_path: Path):
    first = spool(tmp_path)
    first.put([record("a"), record("b", at=8.0), record("c", 50, at=9.0)])
    first.take()
    again = spool(tmp_path)
    again.put([record("d")])
    assert rest(again) == [["a"], ["b"], ["c"], ["d"]]


def test_after_a_restart_the_last_instant_is_known(tmp_path: Path):
    spool(tmp_path).put([record("a", at=8.0), record("b", at=9.0)])
    again = LogSpool(tmp_path, chunk_bytes=100, cost_of=lambda _: 1, monotonic=lambda: 0.0)
    assert again.open() == 9.0


def test_after_a_restart_a_gap_is_still_counted_and_grows(tmp_path: Path):
    spool(tmp_path, capacity=2 * (100 + HEADER)).put([record(each) for each in "abcd"])
    again = spool(tmp_path, capacity=2 * (100 + HEADER))
    again.put([record("e")])
    assert rest(again) == [["300", "d"], ["e"]]
    assert list(tmp_path.iterdir()) == []


def test_a_gap_behind_the_last_chunk_survives_a_restart(tmp_path: Path):
    first = spool(tmp_path, capacity=100 + HEADER)
    first.put([record("a")])
    first.take()
    first.put([record("b")])
    assert rest(spool(tmp_path)) == [["a"], ["100"]]


def test_a_piece_of_a_record_at_the_end_of_a_file_is_left_out(tmp_path: Path):
    spool(tmp_path, chunk=1000).put([record("a"), record("b")])
    (file,) = tmp_path.iterdir()
    for cut in (1, 100, 112):
        whole = file.read_bytes()
        file.write_bytes(whole[: 2 * (100 + HEADER) - cut])
        assert [name(each) for each in spool(tmp_path).take()] == ["a"]
        file.write_bytes(whole)


def test_a_crash_while_dropping_counts_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first = spool(tmp_path, capacity=2 * (100 + HEADER))
    first.put([record(each) for each in "abc"])
    # Dies before the file goes whose loss is counted already.
    monkeypatch.setattr(LogSpool, "_remove", lambda _self, _name: None)
    first.put([record("d")])
    monkeypatch.undo()
    assert rest(spool(tmp_path)) == [["200", "c"], ["d"]]


def test_foreign_files_are_left_alone(tmp_path: Path):
    for foreign in ("x.chunk", "1-2.gap", "a-b-c-d.gap", "lost+found"):
        (tmp_path / foreign).touch()
    made = spool(tmp_path)
    made.put([record("a")])
    assert rest(made) == [["a"]]
    assert len(list(tmp_path.iterdir())) == 4
