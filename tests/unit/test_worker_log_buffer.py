"""The bounded buffer between the command and the bucket."""

import threading

from bastion.core import limits
from bastion.testing.manual_clock import ManualClock
from bastion.worker.log_buffer import LogBuffer
from bastion.worker.log_lines import LogBlock


def block(name: str, size: int = 100, at: float = 0.0) -> LogBlock:
    text = name.encode().ljust(size - 1, b".") + b"\n"
    return LogBlock(text=text, at=at, size=size)


def names(text: bytes) -> list[str]:
    return [line.rstrip(b".").decode() for line in text.splitlines()]


def test_what_is_put_is_taken_in_order_and_confirmed():
    buffer = LogBuffer(monotonic=ManualClock().monotonic)
    buffer.put([block("a"), block("b")])
    buffer.put([block("c")])
    buffer.close()
    assert names(buffer.take().text) == ["a", "b", "c"]
    assert not buffer.drained
    buffer.confirm()
    assert buffer.drained


def test_one_segment_holds_no_more_than_the_limit():
    buffer = LogBuffer(monotonic=ManualClock().monotonic)
    size = limits.LOG_SEGMENT_MAX_BYTES // 2
    buffer.put([block("a", size), block("b", size), block("c", size)])
    assert len(buffer.take().text) == 2 * size
    assert len(buffer.take().text) == size


def test_a_segment_is_due_when_it_is_full_or_its_oldest_line_has_waited():
    clock = ManualClock()
    buffer = LogBuffer(monotonic=clock.monotonic)
    buffer.put([block("a", limits.LOG_SEGMENT_MAX_BYTES)])
    assert buffer.wait_ready(3600.0)
    buffer.take()
    buffer.put([block("b")])
    clock.advance(5.0)
    assert buffer.wait_ready(5.0)


def test_a_closed_and_empty_buffer_is_never_ready():
    buffer = LogBuffer(monotonic=ManualClock().monotonic)
    buffer.close()
    assert not buffer.wait_ready(3600.0)


def test_when_the_store_is_away_for_long_the_oldest_lines_go_and_the_log_says_how_many_bytes():
    clock = ManualClock()
    buffer = LogBuffer(monotonic=clock.monotonic, capacity_bytes=300, patience_seconds=10.0)
    buffer.put([block("a"), block("b"), block("c")])
    clock.advance(10.0)
    buffer.put([block("d", at=7.0), block("e", at=8.0)])
    taken = buffer.take().text.splitlines()
    assert taken[0].startswith(b"1970-01-01T00:00:00.000000Z gap F 200 bytes of output are missing here: ")
    assert [line.rstrip(b".") for line in taken[1:]] == [b"c", b"d", b"e"]


def test_what_is_being_uploaded_is_not_dropped():
    clock = ManualClock()
    buffer = LogBuffer(monotonic=clock.monotonic, capacity_bytes=300, patience_seconds=10.0)
    buffer.put([block("a"), block("b")])
    in_flight = buffer.take()
    clock.advance(10.0)
    buffer.put([block("c"), block("d")])
    assert names(in_flight.text) == ["a", "b"]
    assert b"gap F 100 bytes" in buffer.take().text


def test_a_fast_command_waits_for_a_store_that_works():
    clock = ManualClock()
    buffer = LogBuffer(monotonic=clock.monotonic, capacity_bytes=300, patience_seconds=10.0)
    buffer.put([block("a"), block("b"), block("c")])
    writer = threading.Thread(target=buffer.put, args=([block("d")],), daemon=True)
    writer.start()
    writer.join(0.15)
    assert writer.is_alive()
    assert names(buffer.take().text) == ["a", "b", "c"]
    buffer.confirm()
    writer.join(5.0)
    assert names(buffer.take().text) == ["d"]


def test_a_burst_after_a_silent_hour_is_not_taken_for_an_outage():
    clock = ManualClock()
    buffer = LogBuffer(monotonic=clock.monotonic, capacity_bytes=300, patience_seconds=10.0)
    clock.advance(3600.0)
    writer = threading.Thread(target=buffer.put, args=([block(name) for name in "abcd"],), daemon=True)
    writer.start()
    writer.join(0.15)
    assert writer.is_alive()
    assert names(buffer.take().text) == ["a", "b", "c"]
    buffer.confirm()
    writer.join(5.0)
    assert names(buffer.take().text) == ["d"]


def test_the_gap_also_stands_in_the_raw_log():
    clock = ManualClock()
    buffer = LogBuffer(monotonic=clock.monotonic, capacity_bytes=250, patience_seconds=10.0)
    raw = [LogBlock(text=b"t" * 99 + b"\n", at=0.0, size=9, raw=name.encode() + b"\n") for name in "abc"]
    buffer.put(raw[:2])
    clock.advance(10.0)
    buffer.put(raw[2:])
    first, *rest = buffer.take().raw.splitlines()
    assert b"9 bytes" in first
    assert rest == [b"b", b"c"]
