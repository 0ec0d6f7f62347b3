"""The command's bytes as log lines."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from bastion.agent.logs.lines import LineCutter, LogRecord, halves, raw_of, text_bytes_at_most, text_of
from bastion.agent.logs.pump import is_gloo_noise
from bastion.core import limits
from bastion.core.bucket.gap_lines import last_instant
from bastion.core.instants import from_rfc3339, to_rfc3339

AT = 1_800_000_000.0
STAMP = to_rfc3339(AT)


def lines(records: list[LogRecord]) -> list[tuple[str, str, bytes]]:
    """Stream, kind and text of every line."""
    found = []
    for record in records:
        text = text_of(record)
        assert len(text) <= text_bytes_at_most(record)
        assert text.endswith(b"\n")
        for line in text[:-1].split(b"\n"):
            _, stream, kind, text = line.split(b" ", 3)
            found.append((stream.decode(), kind.decode(), text))
    return found


def feed(cutter: LineCutter, data: bytes, stream: str = "stdout", at: float = AT, monotonic: float = 0.0):
    return cutter.feed(stream, data, at=at, monotonic=monotonic)


def test_a_whole_line_is_full_and_carries_its_instant_and_stream():
    (record,) = feed(LineCutter(), b"step 1\n", "stderr")
    assert text_of(record) == f"{STAMP} stderr F step 1\n".encode()


def test_a_line_that_arrives_in_two_reads_is_one_line():
    cutter = LineCutter()
    assert feed(cutter, b"st") == []
    assert lines(feed(cutter, b"ep\nnext\n")) == [("stdout", "F", b"step"), ("stdout", "F", b"next")]


def test_the_streams_do_not_mix_within_a_line():
    cutter = LineCutter()
    feed(cutter, b"out", "stdout")
    assert lines(feed(cutter, b"err\n", "stderr")) == [("stderr", "F", b"err")]
    assert lines(feed(cutter, b"put\n", "stdout")) == [("stdout", "F", b"output")]


def test_a_line_longer_than_the_limit_comes_in_partial_pieces_that_join_to_it():
    line = bytes(97 + n % 26 for n in range(3 * limits.LOG_LINE_MAX_BYTES + 5))
    for reads in ([line + b"\n"], [line[:20_000], line[20_000:] + b"\n"]):
        cutter = LineCutter()
        pieces = lines([block for data in reads for block in feed(cutter, data)])
        assert [kind for _, kind, _ in pieces] == ["P", "P", "P", "F"]
        assert b"".join(text for _, _, text in pieces) == line
        assert max(len(text) for _, _, text in pieces) == limits.LOG_LINE_MAX_BYTES


def test_a_cut_never_splits_a_character():
    line = "€".encode() * limits.LOG_LINE_MAX_BYTES
    pieces = lines(feed(LineCutter(), b"x" + line + b"\n"))
    assert b"".join(text for _, _, text in pieces) == b"x" + line


def test_output_that_ends_without_a_newline_is_partial():
    cutter = LineCutter()
    feed(cutter, b"done\nno newline")
    assert lines(cutter.close("stdout", at=AT)) == [("stdout", "P", b"no newline")]
    assert cutter.close("stdout", at=AT) == []


def test_a_prompt_is_shown_after_a_moment_and_its_rest_later():
    cutter = LineCutter()
    feed(cutter, b"Password: ", monotonic=10.0)
    assert cutter.idle_in(10.25) == 0.15000000000000036
    assert cutter.flush_idle(at=AT, monotonic=10.25) == []
    assert lines(cutter.flush_idle(at=AT, monotonic=11.0)) == [("stdout", "P", b"Password: ")]
    assert cutter.idle_in(11.0) is None
    assert lines(feed(cutter, b"ok\n", monotonic=12.0)) == [("stdout", "F", b"ok")]


def test_an_idle_flush_keeps_back_half_a_character_and_half_a_line_end():
    cutter = LineCutter()
    feed(cutter, "50 €".encode()[:-1])
    assert lines(cutter.flush_idle(at=AT, monotonic=2.0)) == [("stdout", "P", b"50 ")]
    assert lines(feed(cutter, "€".encode()[-1:] + b"\r", monotonic=3.0)) == []
    assert lines(cutter.flush_idle(at=AT, monotonic=5.0)) == [("stdout", "P", "€".encode())]
    assert lines(feed(cutter, b"\n", monotonic=6.0)) == [("stdout", "F", b"")]


def test_bytes_that_are_not_text_are_replaced_and_the_line_stays():
    assert lines(feed(LineCutter(), b"a\xff\xfeb\n")) == [("stdout", "F", "a\ufffd\ufffdb".encode())]


def test_a_carriage_return_before_the_newline_goes_and_others_stay():
    assert lines(feed(LineCutter(), b"10%\r20%\r\nnext\r\n")) == [
        ("stdout", "F", b"10%\r20%"),
        ("stdout", "F", b"next"),
    ]


def test_instants_never_go_back():
    cutter = LineCutter()
    first = feed(cutter, b"a\n", at=AT)[0]
    second = feed(cutter, b"b\n", at=AT - 60)[0]
    assert last_instant(text_of(first)) == last_instant(text_of(second)) == AT
    continued = LineCutter(not_before=AT)
    assert feed(continued, b"c\n", at=AT - 1)[0].at == AT


def test_the_instant_of_a_stored_segment_is_that_of_its_last_line():
    later = to_rfc3339(AT + 1)
    assert last_instant(f"{STAMP} stdout F a\n{later} stdout F b\n".encode()) == from_rfc3339(later)
    assert last_instant(b"something else\n") == 0.0
    assert last_instant(b"") == 0.0


def test_a_gap_line_says_how_much_is_missing_and_stands_in_the_raw_log_as_well():
    record = LineCutter().gap(123, "the disk was full", at=AT)
    line = f"{STAMP} gap F 123 bytes of output are missing here: the disk was full\n".encode()
    assert text_of(record) == raw_of(record) == line
    assert record.output_bytes == 0


def test_a_note_of_the_agent_is_one_line():
    (line,) = lines([LineCutter().note("two\nlines", at=AT)])
    assert line == ("stderr", "F", b"bastion: two lines")


def test_a_note_is_not_glued_to_an_unfinished_line_of_the_command():
    cutter = LineCutter()
    feed(cutter, b"oops", stream="stderr")
    cut = cutter.flush_idle(at=AT, monotonic=10.0)
    cut += [cutter.note("told to stop", at=AT), *feed(cutter, b" again\n", stream="stderr")]
    assert lines(cut) == [
        ("stderr", "P", b"oops"),
        ("stderr", "F", b""),
        ("stderr", "F", b"bastion: told to stop"),
        ("stderr", "F", b" again"),
    ]
    assert lines([cutter.note("once more", at=AT)]) == [("stderr", "F", b"bastion: once more")]


def test_the_next_process_does_not_continue_the_unfinished_line_of_the_last_one():
    cutter = LineCutter()
    feed(cutter, b"try 1")
    cut = (
        cutter.close("stdout", at=AT) + feed(cutter, b"try 2\n") + cutter.close("stdout", at=AT) + feed(cutter, b"3\n")
    )
    assert lines(cut) == [
        ("stdout", "P", b"try 1"),
        ("stdout", "F", b""),
        ("stdout", "F", b"try 2"),
        ("stdout", "F", b"3"),
    ]


def test_raw_bytes_are_those_of_the_command():
    assert raw_of(feed(LineCutter(), b"a\r\n\xff\n")[0]) == b"a\r\n\xff\n"


def test_noise_of_the_emulation_is_left_out_and_nothing_else():
    noise = b"[Gloo] Rank 0 is connected to 3 peer ranks. Expected number of connected peer ranks is : 3\n"
    (record,) = feed(LineCutter(), b"x\n" + noise + b"about [Gloo] Rank 1\n")
    kept = text_of(record, is_gloo_noise)
    assert [line.split(b" ", 3)[3] for line in kept.splitlines()] == [b"x", b"about [Gloo] Rank 1"]
    assert text_of(feed(LineCutter(), noise)[0], is_gloo_noise) == b""


OUTPUT = st.lists(
    st.one_of(st.binary(max_size=40), st.sampled_from([b"\n", b"\r\n", b"x" * 20_000, "€".encode() * 9_000])),
    max_size=20,
).map(b"".join)


@given(data=OUTPUT, cuts=st.lists(st.integers(0, 60_000), max_size=6))
def test_however_reads_cut_the_output_the_log_holds_every_byte_of_it_once(data: bytes, cuts: list[int]):
    cutter = LineCutter()
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    records = [record for a, b in itertools.pairwise(edges) for record in feed(cutter, data[a:b])]
    records += cutter.close("stdout", at=AT)
    assert b"".join(map(raw_of, records)) == data
    full = [text for _, kind, text in lines(records) if kind == "F"]
    assert len(full) == data.count(b"\n")


@given(data=OUTPUT.filter(lambda data: len(data) > 1))
def test_a_record_in_halves_shows_the_same_text(data: bytes):
    def joined(records: list[LogRecord]) -> bytes:
        return b"".join(text + b"\n" * (kind == "F") for _, kind, text in lines(records))

    # A character that is broken anyway may be broken in two.
    data = data.decode("utf-8", "ignore").encode()
    whole = LogRecord(stream="stdout", at=AT, data=data + b"..")
    first, second = halves(whole)
    assert first.data + second.data == whole.data
    assert first.data
    assert second.data
    assert joined([first, second]) == joined([whole])


def test_what_several_threads_print_at_once_is_noise_as_well() -> None:
    tangled = (
        b" is connected to 15 peer ranks. Expected number of connected peer ranks is : 15[Gloo] Rank 2 is connected to "
        b"15 peer ranks. Expected number of connected peer ranks is : 15"
    )
    assert is_gloo_noise(tangled)
    assert is_gloo_noise(b"[Gloo] Rank [Gloo] Rank 31")
    assert not is_gloo_noise(b"15")
    assert not is_gloo_noise(b"loss 3 is connected to 15 peer ranks. ")
