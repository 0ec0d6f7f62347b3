"""The head parser against whatever bytes come: it understands them or refuses them, quickly, and nothing else."""

from __future__ import annotations

import contextlib
import random
import time

from hypothesis import example, given
from hypothesis import strategies as st

from bastion.net.http1 import BadRequest, Headers
from bastion.net.http1.head import (
    LENGTH_MAX_BYTES,
    body_length,
    chunk_length,
    end_of_head,
    parse_answer,
    parse_head,
    split_target,
)

# Pieces that heads are made of, whole and spoilt, so that the search gets beyond the first line.
_PIECES = st.sampled_from(
    [
        b"GET ",
        b"CONNECT ",
        b"/b/o?x=1",
        b"http://h/p",
        b"http://[::1",
        b"h:443",
        b" HTTP/1.1",
        b" HTTP/1.0",
        b" HTTP/2",
        b"HTTP/1.1 200 OK",
        b"HTTP/1.1 ",
        b"\r\n",
        b"\n",
        b"\r",
        b"\r\n\r\n",
        b"\0",
        b" ",
        b"\t",
        b":",
        b"Host: h",
        b"Content-Length: 5",
        b"Content-Length:",
        b"Transfer-Encoding: chunked",
        b"Transfer-Encoding: identity",
        b"\xff\xc3\xa9",
        b"\x85",
        b"Expect: 100-continue",
    ]
)
_BYTES = st.lists(_PIECES | st.binary(max_size=8), max_size=20).map(b"".join)


def _read(data: bytes) -> None:
    """All that is done with a head before a handler sees the request."""
    try:
        head = parse_head(data)
        path, query, _ = split_target(head.target, head.headers.get("host"))
        length = body_length(head.headers)
    except BadRequest as error:
        assert 400 <= error.status < 600
        return
    assert head.version in ("HTTP/1.1", "HTTP/1.0")
    assert length is None or 0 <= length <= LENGTH_MAX_BYTES
    texts = [head.method, head.target, path, query, *(text for item in head.headers.items() for text in item)]
    assert not any(end in text for text in texts for end in "\r\n\0")
    assert not any(name != name.strip() or ":" in name or not name for name, _ in head.headers.items())


@given(_BYTES)
@example(b"")
@example(b"GET / HTTP/1.1\n\nx: y")
@example(b"GET / HTTP/1.1\r\n\r\r\nx: y")
@example(b"GET http://[ HTTP/1.1")
def test_any_bytes_are_a_head_or_are_refused(data: bytes) -> None:
    _read(data)


@given(_BYTES)
@example(b"HTTP/1.1 200")
def test_any_bytes_are_the_head_of_an_answer_or_are_refused(data: bytes) -> None:
    try:
        head = parse_answer(data)
    except BadRequest:
        return
    assert 100 <= head.status <= 999


@given(_BYTES, st.integers(0, 30))
def test_the_end_of_a_head_is_found_wherever_the_bytes_were_cut(data: bytes, cut: int) -> None:
    end = end_of_head(data, 0)
    assert end == -1 or data[:end].endswith((b"\n\n", b"\n\r\n"))
    early = end_of_head(data[:cut], 0)
    assert early in (-1, end)


@given(st.binary(max_size=40))
def test_any_line_is_a_chunks_size_or_is_refused(line: bytes) -> None:
    with contextlib.suppress(BadRequest):
        assert 0 <= chunk_length(line) <= LENGTH_MAX_BYTES


@given(st.lists(st.tuples(st.sampled_from(["Content-Length", "Transfer-Encoding"]), st.text(max_size=12)), max_size=4))
def test_any_fields_say_how_long_a_body_is_or_are_refused(fields: list[tuple[str, str]]) -> None:
    try:
        length = body_length(Headers(fields))
    except BadRequest:
        return
    assert length is None or 0 <= length <= LENGTH_MAX_BYTES


def test_heads_as_long_as_they_may_be_are_read_in_no_time() -> None:
    """Of the longest head a connection takes, whatever it is full of: nothing grows with the square of its length."""
    size = 64 * 1024
    fillings = [b"a", b" ", b"\t", b":", b"\r", b"\n ", b"a:\n", b"a: b\r\n c\r\n", b"\xff", b",", b"identity,", b"//"]
    starts = [b"", b"GET ", b"GET / HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nTransfer-Encoding: ", b"GET http://"]
    for start in starts:
        for filling in fillings:
            data = start + filling * ((size - len(start)) // len(filling))
            assert min(_seconds(data) for _ in range(2)) < 0.5, (start, filling)


def _seconds(data: bytes) -> float:
    """Of this thread at work; the better of two has no collection of the whole process's garbage in it."""
    began = time.thread_time()
    _read(data)
    end_of_head(data, 0)
    return time.thread_time() - began


def test_a_thousand_spoilt_heads_of_real_clients_are_read_or_refused() -> None:
    dice = random.Random(6)
    real = [
        b"POST /upload/storage/v1/b/team/o?uploadType=resumable&name=x HTTP/1.1\r\nHost: www.googleapis.com\r\n"
        b"Accept: */*\r\nTransfer-Encoding: identity\r\nContent-Length: 0\r\nAuthorization: Bearer x\r\n\r\n",
        b"PUT /upload/storage/v1/b/team/o?upload_id=AB_c HTTP/1.1\r\nHost: www.googleapis.com\r\n"
        b"Transfer-Encoding: chunked\r\nContent-Length: 12\r\nContent-Range: bytes 0-11/12\r\n\r\n",
    ]
    for head in real:
        assert body_length(parse_head(head).headers) in (0, None)
    for _ in range(1000):
        data = bytearray(dice.choice(real))
        for _ in range(dice.randint(1, 6)):
            at = dice.randrange(len(data))
            match dice.randrange(3):
                case 0:
                    data[at] = dice.randrange(256)
                case 1:
                    del data[at : at + dice.randint(1, 20)]
                case _:
                    data[at:at] = data[dice.randrange(len(data)) :][: dice.randint(1, 30)]
        _read(bytes(data))
