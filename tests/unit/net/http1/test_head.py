"""Heads of requests as real clients write them, and those that must be refused."""

from __future__ import annotations

import pytest

from bastion.net.http1 import BadRequest, Headers
from bastion.net.http1.head import body_length, chunk_length, end_of_head, parse_answer, parse_head, split_target


def test_a_head_is_read_with_names_as_written_and_values_byte_for_byte() -> None:
    head = parse_head(b"PUT /b/o?x=1 HTTP/1.1\r\nHost: h\r\nX-Goog-Meta-Name:  caf\xc3\xa9 \xff \r\nEmpty:\r\n\r\n")
    assert (head.method, head.target, head.version) == ("PUT", "/b/o?x=1", "HTTP/1.1")
    assert head.headers.items() == [("Host", "h"), ("X-Goog-Meta-Name", "cafÃ© ÿ"), ("Empty", "")]
    assert head.headers.get("x-goog-meta-name").encode("latin-1") == b"caf\xc3\xa9 \xff"


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\nHost: h\nA: b\n\n",
        b"GET / HTTP/1.1\r\nHost: h\nA: b\r\n\n",
        b"GET / HTTP/1.1\nHost: h\nA:b\n\r\n",
        b"GET / HTTP/1.1 \r\nHost:h\r\nA:\tb\t\r\n\r\n",
    ],
)
def test_bare_line_feeds_and_stray_blanks_are_understood(data: bytes) -> None:
    assert end_of_head(data + b"body\r\n\r\n", 0) == len(data)
    assert parse_head(data).headers.items() == [("Host", "h"), ("A", "b")]


@pytest.mark.parametrize("word", ["voil\u00e0", "\u00c5", "\u2026\u0085"])
def test_text_whose_last_byte_looks_like_a_blank_in_latin_1_stays_whole(word: str) -> None:
    line = f"x-goog-meta-a:{word}\t".encode()
    headers = parse_head(b"PUT / HTTP/1.1\r\n" + line + b" \r\nB: 1\r\n " + word.encode() + b"\r\n\r\n").headers
    assert headers.get("x-goog-meta-a").encode("latin-1").decode() == word
    assert headers.get("b").encode("latin-1").decode() == f"1 {word}"


def test_a_folded_line_belongs_to_the_one_before() -> None:
    assert parse_head(b"GET / HTTP/1.1\r\nA: b\r\n  c\r\n\td\r\n\r\n").headers.items() == [("A", "b c d")]


def test_a_target_with_blanks_is_taken_as_it_is() -> None:
    assert parse_head(b"GET /a b c HTTP/1.1\r\n\r\n").target == "/a b c"


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\n\n", 400),
        (b" / HTTP/1.1\r\n\r\n", 400),
        (b"GET  HTTP/1.1\r\n\r\n", 400),
        (b"G\xc4T / HTTP/1.1\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\nno colon\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n: nameless\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length : 5\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n folded: first\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\xa0Content-Length: 5\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nContent-Length\x00: 5\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\rContent-Length: 5\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\x00c\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nA: b\r\n c\rd: e\r\n\r\n", 400),
        (b"GET /a\rb HTTP/1.1\r\n\r\n", 400),
        (b"GET /a\tb HTTP/1.1\r\n\r\n", 400),
        (b"GET /a\x00 HTTP/1.1\r\n\r\n", 400),
    ],
)
def test_what_is_no_head_is_refused(data: bytes, status: int) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_head(data)
    assert caught.value.status == status


def test_the_odd_requests_of_tensorflow_are_understood() -> None:
    start = parse_head(
        b"POST /upload/storage/v1/b/team/o?uploadType=resumable&name=x HTTP/1.1\r\nHost: www.googleapis.com\r\n"
        b"Accept: */*\r\nTransfer-Encoding: identity\r\nContent-Length: 0\r\n\r\n"
    )
    assert body_length(start.headers) == 0
    piece = parse_head(
        b"PUT /upload/storage/v1/b/team/o?upload_id=AB_c HTTP/1.1\r\nHost: www.googleapis.com\r\n"
        b"Transfer-Encoding: chunked\r\nContent-Length: 12\r\nContent-Range: bytes 0-11/12\r\n\r\n"
    )
    assert body_length(piece.headers) is None


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n", (200, "OK", [("A", "b")])),
        (b"HTTP/1.1 308 Resume Incomplete\n\n", (308, "Resume Incomplete", [])),
        (b"HTTP/1.0 404\r\n\r\n", (404, "", [])),
        (b"HTTP/1.1 503 \r\n\r\n", (503, "", [])),
    ],
)
def test_the_head_of_an_answer(data: bytes, expected: tuple[int, str, list[tuple[str, str]]]) -> None:
    head = parse_answer(data)
    assert (head.status, head.reason, head.headers.items()) == expected


@pytest.mark.parametrize(
    "data", [b"", b"HTTP/1.1\r\n\r\n", b"HTTP/1.1 20 OK\r\n\r\n", b"HTTP/1.1 2000 OK", b"ICY 200 OK"]
)
def test_what_is_no_head_of_an_answer_is_refused(data: bytes) -> None:
    with pytest.raises(BadRequest):
        parse_answer(data)


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("/b/o%20x?a=b?c", ("/b/o%20x", "a=b?c", "h:1")),
        ("//b", ("//b", "", "h:1")),
        ("http://other:2/b/o?q", ("/b/o", "q", "other:2")),
        ("https://other", ("/", "", "other")),
        ("HTTPS://other?q", ("/", "q", "other")),
        ("*", ("*", "", "h:1")),
        ("other:443", ("other:443", "", "h:1")),
    ],
)
def test_every_form_of_target_yields_path_query_and_authority(target: str, expected: tuple[str, str, str]) -> None:
    assert split_target(target, "h:1") == expected


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ([], 0),
        ([("Content-Length", "7")], 7),
        ([("Content-Length", "7"), ("content-length", " 7")], 7),
        ([("Content-Length", "7, 7")], 7),
        ([("Transfer-Encoding", "chunked")], None),
        ([("Transfer-Encoding", "Chunked"), ("Content-Length", "3")], None),
        ([("Transfer-Encoding", "identity, chunked")], None),
        ([("Transfer-Encoding", "identity"), ("Content-Length", "0")], 0),
        ([("Transfer-Encoding", "identity"), ("Content-Length", "9")], 9),
        ([("Transfer-Encoding", "")], 0),
    ],
)
def test_how_long_a_body_is(fields: list[tuple[str, str]], length: int | None) -> None:
    assert body_length(Headers(fields)) == length


@pytest.mark.parametrize(
    "fields",
    [
        [("Content-Length", "7"), ("Content-Length", "8")],
        [("Content-Length", "7, 8")],
        [("Content-Length", "-1")],
        [("Content-Length", "+1")],
        [("Content-Length", "1_0")],
        [("Content-Length", "0x10")],
        [("Content-Length", "²")],
        [("Content-Length", "")],
        [("Content-Length", "9" * 19)],
        [("Transfer-Encoding", "gzip, chunked")],
        [("Transfer-Encoding", "chunked, chunked")],
    ],
)
def test_a_length_that_two_readers_could_take_differently_is_refused(fields: list[tuple[str, str]]) -> None:
    with pytest.raises(BadRequest):
        body_length(Headers(fields))


@pytest.mark.parametrize(("line", "length"), [(b"1a\r\n", 26), (b"0\n", 0), (b"  F ;name=value\r\n", 15)])
def test_a_chunks_size(line: bytes, length: int) -> None:
    assert chunk_length(line) == length


@pytest.mark.parametrize(
    "line", [b"\r\n", b"-1\r\n", b"0x1\r\n", b"1 2\r\n", b"1_0\r\n", b"f" * 17 + b"\r\n", b";\r\n"]
)
def test_a_chunks_size_that_is_none_is_refused(line: bytes) -> None:
    with pytest.raises(BadRequest):
        chunk_length(line)


def test_headers_compare_names_without_case_and_keep_their_order() -> None:
    headers = Headers([("A", "1"), ("b", "2"), ("a", "3")])
    assert (headers.get("a"), headers.get_all("A"), headers.get("c", "none"), "B" in headers) == (
        "1",
        ["1", "3"],
        "none",
        True,
    )
    headers.set("A", "4")
    headers.add("B", "5")
    headers.remove("missing")
    assert headers.items() == [("b", "2"), ("A", "4"), ("B", "5")]


@pytest.mark.parametrize(
    "lines",
    [
        b"Host: a\r\nHost: b",
        b"Host: a\r\nhost: a",
        b"Host: a\r\nRange: bytes=0-1\r\nrange: bytes=2-3",
        b"Host: a\r\nContent-Range: bytes 0-1/*\r\nContent-Range: bytes 0-1/2",
        b"Host: a\r\nContent-Type: a/b\r\nContent-Type: application/grpc",
        b"Host: a\r\nX-HTTP-Method-Override: GET\r\nX-HTTP-Method-Override: PUT",
    ],
)
def test_a_field_that_has_one_value_comes_once(lines: bytes) -> None:
    with pytest.raises(BadRequest, match="several") as caught:
        parse_head(b"GET / HTTP/1.1\r\n" + lines + b"\r\n\r\n")
    assert caught.value.status == 400


def test_a_field_may_repeat_its_value_unless_it_is_the_host() -> None:
    lines = b"Host: a\r\nContent-Type: a/b\r\ncontent-type: a/b\r\nVia: x\r\nVia: y\r\n\r\n"
    assert parse_head(b"GET / HTTP/1.1\r\n" + lines).headers.get("content-type") == "a/b"
