"""Uploads through the JSON API of the storage endpoint: at once, behind a JSON part, and in resumable sessions."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from bastion.net.http1 import Body, BodyTruncated, Response
from tests.support.gcs_endpoint import HOST, UPLOAD, Endpoint, crc32c, document, md5

QUANTUM = 256 * 1024


class Pieces(Body):
    """A body that arrives in the given pieces, of unknown length unless told; and may break off."""

    def __init__(self, pieces: list[bytes], length: int | None = None, *, breaks: bool = False) -> None:
        super().__init__(length)
        self._pieces = list(pieces)
        self._breaks = breaks

    @property
    def finished(self) -> bool:
        return not self._pieces

    def receive(self, max_bytes: int) -> bytes:
        if not self._pieces:
            if self._breaks:
                raise BodyTruncated
            return b""
        piece, self._pieces[0] = self._pieces[0][:max_bytes], self._pieces[0][max_bytes:]
        if not self._pieces[0]:
            self._pieces.pop(0)
        return piece


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    yield Endpoint(tmp_path)


def multipart(resource: dict[str, Any], data: bytes, newline: str = "\r\n", boundary: str = "==x==") -> bytes:
    head = (
        f"--{boundary}{newline}Content-Type: application/json{newline * 2}{json.dumps(resource)}{newline}"
        f"--{boundary}{newline}content-type: text/x{newline * 2}"
    )
    return head.encode() + data + f"{newline}--{boundary}--".encode()


@pytest.mark.parametrize("newline", ["\r\n", "\n"])
@pytest.mark.parametrize("size", [0, 1, 11, QUANTUM - 1, QUANTUM + 77])
@pytest.mark.parametrize("piece", [1 << 20, 4099])
def test_a_multipart_body_is_read_whatever_its_pieces_and_line_ends(
    endpoint: Endpoint, newline: str, size: int, piece: int
) -> None:
    data = (b"\r\n--==x=" * (size // 8 + 1))[:size]
    body = multipart({"name": "a", "metadata": {"k": "1"}}, data, newline)
    pieces = [body[start : start + piece] for start in range(0, len(body), piece)]

    shown = document(
        endpoint.ask(
            "POST", f"{UPLOAD}?uploadType=multipart", Pieces(pieces), Content_Type='multipart/related; boundary="==x=="'
        )
    )

    assert (shown["size"], shown["contentType"], shown["metadata"]) == (str(size), "text/x", {"k": "1"})
    assert endpoint.content() == data


@pytest.mark.parametrize("written", ["==x==", '"==x=="', "'==x=='"])
def test_a_boundary_may_stand_bare_or_in_quotes_of_either_kind(endpoint: Endpoint, written: str) -> None:
    shown = endpoint.ask(
        "POST",
        f"{UPLOAD}?uploadType=multipart",
        multipart({"name": "a"}, b"data"),
        Content_Type=f"multipart/related; boundary={written}",
    )

    assert document(shown)["name"] == "a"
    assert endpoint.content() == b"data"


def test_the_requests_of_gcloud_storage_are_understood(endpoint: Endpoint) -> None:
    """As its source writes them: apitools' bodies and quotes, booleans of Python, fields of nested metadata."""
    boundary = "===============7330845974216740156=="
    head = (
        f"--{boundary}\nContent-Type: application/json\nMIME-Version: 1.0\n\n"
        '{"bucket": "lake", "contentType": "text/plain", "metadata": {"goog-reserved-file-mtime": "7"}, "name": "d/a"}'
        f"\n--{boundary}\nContent-Type: text/plain\nMIME-Version: 1.0\nContent-Transfer-Encoding: binary\n\n"
    )
    body = f"{head}From me\n\n--{boundary}--".encode()

    assert "hierarchicalNamespace" in document(endpoint.ask("GET", "/storage/v1/b/lake/storageLayout?alt=json"))
    assert endpoint.ask("GET", "/storage/v1/b/lake/o/d%2Fa?alt=json&fields=bucket%2Cname%2Csize").status == 404
    document(
        endpoint.ask(
            "POST",
            "/resumable/upload/storage/v1/b/lake/o?alt=json&fields=generation%2CmediaLink&uploadType=multipart",
            body,
            Content_Type=f"multipart/related; boundary='{boundary}'",
        )
    )

    assert endpoint.content("/storage/v1/b/lake/o/d%2Fa?alt=media&projection=noAcl") == b"From me\n"
    fields = "prefixes,items/name,items/size,items/metadata/goog-reserved-file-mtime,nextPageToken"
    listing = f"alt=json&projection=noAcl&maxResults=1000&fields={quote(fields)}"
    top = document(endpoint.ask("GET", f"/storage/v1/b/lake/o?{listing}&delimiter=%2F&includeFoldersAsPrefixes=True"))
    assert top == {"prefixes": ["d/"]}
    below = document(endpoint.ask("GET", f"/storage/v1/b/lake/o?{listing}&prefix=d%2F"))
    assert below == {"items": [{"name": "d/a", "size": "8", "metadata": {"goog-reserved-file-mtime": "7"}}]}
    copied = document(
        endpoint.ask(
            "POST",
            "/storage/v1/b/lake/o/d%2Fa/rewriteTo/b/lake/o/b?alt=json&maxBytesRewrittenPerCall=1073741824",
            {"bucket": "lake", "name": "b"},
        )
    )
    assert copied["done"] is True


def test_the_headers_of_a_part_have_an_end(endpoint: Endpoint) -> None:
    body = b"--x\n" + b"a:b\n" * 10_000 + b"\n{}\n--x\n\n\n--x--"
    response = endpoint.ask(
        "POST", f"{UPLOAD}?uploadType=multipart&name=a", body, Content_Type="multipart/related; boundary=x"
    )
    assert response.status == 400


def test_a_multipart_body_may_come_byte_by_byte(endpoint: Endpoint) -> None:
    body = multipart({"name": "a"}, b"\r\n--==x\r\n")

    endpoint.ask(
        "POST",
        f"{UPLOAD}?uploadType=multipart",
        Pieces([body[at : at + 1] for at in range(len(body))]),
        Content_Type="multipart/related; boundary===x==",
    )

    assert endpoint.content() == b"\r\n--==x\r\n"


def test_the_resource_s_content_type_wins_over_the_part_s(endpoint: Endpoint) -> None:
    shown = document(
        endpoint.ask(
            "POST",
            f"{UPLOAD}?uploadType=multipart&name=b",
            multipart({"name": "a", "contentType": "text/y"}, b"x"),
            Content_Type="multipart/related; boundary===x==",
        )
    )

    assert (shown["contentType"], shown["name"]) == ("text/y", "b")


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (multipart({"name": "a"}, b"x")[:-9], "multipart/related; boundary===x=="),
        (multipart({"name": "a"}, b"x")[:30], "multipart/related; boundary===x=="),
        (multipart({"name": "a"}, b"x"), "multipart/related; boundary=other"),
        (multipart({"name": "a"}, b"x"), "multipart/related"),
        (b"--==x==\r\n\r\n{\r\n--==x==\r\n\r\nx\r\n--==x==--", "multipart/related; boundary===x=="),
        (multipart({"name": "a", "crc32c": "AAAAAA=="}, b"x"), "multipart/related; boundary===x=="),
        (multipart({"name": "a", "md5Hash": md5(b"y")}, b"x"), "multipart/related; boundary===x=="),
        (multipart({"name": "a", "md5Hash": "short"}, b"x"), "multipart/related; boundary===x=="),
        (multipart({}, b"x"), "multipart/related; boundary===x=="),
        (b"", "multipart/related; boundary===x=="),
        (b"y" * (3 << 20), "multipart/related; boundary===x=="),
    ],
)
def test_a_multipart_upload_that_is_not_whole_or_not_as_declared_stores_nothing(
    endpoint: Endpoint, body: bytes, content_type: str
) -> None:
    response = endpoint.ask("POST", f"{UPLOAD}?uploadType=multipart", body, Content_Type=content_type)

    assert response.status == 400
    assert not endpoint.exists()


def test_a_body_that_breaks_off_stores_nothing(endpoint: Endpoint) -> None:
    with pytest.raises(BodyTruncated):
        endpoint.ask("POST", f"{UPLOAD}?uploadType=media&name=a", Pieces([b"half"], 8, breaks=True))

    assert not endpoint.exists()


@pytest.mark.parametrize(
    "headers",
    [
        {"x_goog_hash": f"crc32c={crc32c(b'other')}"},
        {"x_goog_hash": f"crc32c={crc32c(b'data')},md5={md5(b'other')}"},
        {"Content_MD5": md5(b"other")},
        {"Content_MD5": "no base64"},
    ],
)
def test_checksums_in_headers_bind_an_upload(endpoint: Endpoint, headers: dict[str, str]) -> None:
    target = f"{UPLOAD}?uploadType=media&name=a"

    assert endpoint.ask("POST", target, b"data", **headers).status == 400
    assert not endpoint.exists()
    true = {"x_goog_hash": f"crc32c={crc32c(b'data')}, md5={md5(b'data')}", "Content_MD5": md5(b"data")}
    assert endpoint.ask("POST", target, b"data", **true).status == 200


def test_an_upload_holds_its_preconditions(endpoint: Endpoint) -> None:
    target = f"{UPLOAD}?uploadType=media&name=a"

    first = document(endpoint.ask("POST", f"{target}&ifGenerationMatch=0", b"1"))
    again = endpoint.ask("POST", f"{target}&ifGenerationMatch=0", b"2")
    other = endpoint.ask("POST", f"{target}&ifGenerationMatch={first['generation']}&ifMetagenerationMatch=2", b"2")
    second = document(endpoint.ask("POST", f"{target}&ifGenerationMatch={first['generation']}", b"2"))

    assert (again.status, other.status) == (412, 412)
    assert int(second["generation"]) > int(first["generation"])
    assert endpoint.content() == b"2"


def test_a_resource_without_media_is_an_empty_object(endpoint: Endpoint) -> None:
    shown = document(endpoint.ask("POST", "/storage/v1/b/lake/o", b'{"name": "a", "contentType": "text/x"}'))

    assert (shown["size"], shown["contentType"]) == ("0", "text/x")


def test_a_session_takes_the_whole_object_at_once(endpoint: Endpoint) -> None:
    address = endpoint.begin(X_Upload_Content_Type="text/x", X_Upload_Content_Length="4")

    shown = document(endpoint.ask("PUT", address, b"data"))

    assert (shown["name"], shown["size"], shown["contentType"]) == ("a", "4", "text/x")
    assert endpoint.content() == b"data"


class Meanwhile(Pieces):
    """A body during whose last piece something else happens."""

    def __init__(self, data: bytes, happening: Callable[[], object]) -> None:
        super().__init__([data], len(data))
        self._happening = happening

    def receive(self, max_bytes: int) -> bytes:
        piece = super().receive(max_bytes)
        if piece and not self._pieces:
            self._happening()
        return piece


def test_of_two_last_requests_at_once_both_get_the_object(endpoint: Endpoint) -> None:
    address = endpoint.begin()
    answers: list[Response] = []
    body = Meanwhile(b"data", lambda: answers.append(endpoint.ask("PUT", address, b"data")))

    answers.append(endpoint.ask("PUT", address, body))

    first, second = map(document, answers)
    assert first == second
    assert endpoint.content() == b"data"


def test_a_session_that_is_cancelled_under_a_request_is_404(endpoint: Endpoint) -> None:
    address = endpoint.begin()
    body = Meanwhile(b"data", lambda: endpoint.ask("DELETE", address))

    assert endpoint.ask("PUT", address, body).status == 404
    assert not endpoint.exists()


def test_a_session_s_resource_sets_the_object(endpoint: Endpoint) -> None:
    address = endpoint.begin("", {"name": "a", "metadata": {"k": "1"}, "contentType": "text/y"})

    shown = document(endpoint.ask("PUT", address, b"data"))

    assert (shown["metadata"], shown["contentType"]) == ({"k": "1"}, "text/y")


def chunk(endpoint: Endpoint, address: str, data: bytes, start: int, total: int | str, method: str = "PUT") -> Response:
    return endpoint.ask(
        method, address, data, Content_Range=f"bytes {start}-{start + len(data) - 1}/{total}", Content_Type="x/y"
    )


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("total_known", [True, False])
def test_a_session_takes_chunks_and_says_how_far_it_is(endpoint: Endpoint, method: str, total_known: bool) -> None:
    data = os.urandom(QUANTUM * 3 + 5)
    total: int | str = len(data) if total_known else "*"
    address = endpoint.begin()

    first = chunk(endpoint, address, data[: QUANTUM * 2], 0, total, method)
    second = chunk(endpoint, address, data[QUANTUM * 2 : QUANTUM * 3], QUANTUM * 2, total, method)
    assert not endpoint.exists()
    last = chunk(endpoint, address, data[QUANTUM * 3 :], QUANTUM * 3, len(data), method)

    assert [first.status, second.status] == [308, 308]
    assert first.headers.get("Range") == f"bytes=0-{QUANTUM * 2 - 1}"
    assert second.headers.get("Range") == f"bytes=0-{QUANTUM * 3 - 1}"
    assert document(last)["crc32c"] == crc32c(data)
    assert endpoint.content() == data


def test_a_session_of_unknown_size_ends_when_the_size_is_told(endpoint: Endpoint) -> None:
    address = endpoint.begin()
    chunk(endpoint, address, b"x" * QUANTUM, 0, "*")

    early = endpoint.ask("POST", address, Content_Range=f"bytes */{QUANTUM + 1}")
    last = endpoint.ask("POST", address, Content_Range=f"bytes */{QUANTUM}")

    assert (early.status, early.headers.get("Range")) == (308, f"bytes=0-{QUANTUM - 1}")
    assert document(last)["size"] == str(QUANTUM)


def test_an_empty_object_can_come_in_a_session(endpoint: Endpoint) -> None:
    assert document(endpoint.ask("PUT", endpoint.begin(), Content_Range="bytes */0"))["size"] == "0"
    assert document(endpoint.ask("PUT", endpoint.begin("&name=b"), b""))["size"] == "0"


def test_a_question_is_answered_with_what_is_here(endpoint: Endpoint) -> None:
    address = endpoint.begin()

    nothing = endpoint.ask("PUT", address, Content_Range="bytes */*")
    chunk(endpoint, address, b"x" * QUANTUM, 0, "*")
    some = endpoint.ask("PUT", address, Content_Range="bytes */*")

    assert (nothing.status, "Range" in nothing.headers) == (308, False)
    assert (some.status, some.headers.get("Range")) == (308, f"bytes=0-{QUANTUM - 1}")


def test_a_finished_session_answers_with_its_object_again(endpoint: Endpoint) -> None:
    address = endpoint.begin()
    shown = document(endpoint.ask("PUT", address, b"data"))

    assert document(endpoint.ask("PUT", address, Content_Range="bytes */*")) == shown
    assert document(endpoint.ask("PUT", address, b"data")) == shown
    endpoint.reopen()
    assert document(endpoint.ask("PUT", address, Content_Range="bytes */4")) == shown


def test_what_is_here_already_is_passed_over(endpoint: Endpoint) -> None:
    data = os.urandom(QUANTUM * 2 + 5)
    address = endpoint.begin()
    chunk(endpoint, address, data[:QUANTUM], 0, "*")

    document(chunk(endpoint, address, data, 0, len(data)))

    assert endpoint.content() == data


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (f"bytes {QUANTUM * 2}-{QUANTUM * 3 - 1}/*", QUANTUM),
        (f"bytes {QUANTUM}-{QUANTUM + 9}/{QUANTUM + 10}", 9),
        (f"bytes {QUANTUM}-{QUANTUM + 9}/{QUANTUM + 5}", 10),
        (f"bytes {QUANTUM + 9}-{QUANTUM}/*", 10),
        ("bytes all", 10),
        ("", QUANTUM - 1),
    ],
)
def test_a_chunk_that_leaves_a_gap_or_contradicts_itself_is_400_and_loses_nothing(
    endpoint: Endpoint, header: str, size: int
) -> None:
    address = endpoint.begin()
    chunk(endpoint, address, b"x" * QUANTUM, 0, "*")
    before = endpoint.ask("PUT", address, Content_Range="bytes */*").headers.get("Range")

    response = endpoint.ask("PUT", address, b"y" * size, Content_Range=header)

    assert response.status == 400
    after = endpoint.ask("PUT", address, Content_Range="bytes */*")
    assert (after.status, after.headers.get("Range")) == (308, before)
    assert not endpoint.exists()


@pytest.mark.parametrize("size", [QUANTUM - 1, QUANTUM + 1, QUANTUM * 3 - 1])
def test_only_whole_quanta_of_a_chunk_are_kept(endpoint: Endpoint, size: int) -> None:
    data = os.urandom(size)
    address = endpoint.begin()

    response = chunk(endpoint, address, data, 0, "*")

    kept = size // QUANTUM * QUANTUM
    assert (response.status, response.headers.get("Range")) == (308, f"bytes=0-{kept - 1}" if kept else "")
    document(chunk(endpoint, address, data[kept:], kept, size))
    assert endpoint.content() == data


@pytest.mark.parametrize("sent", [5, QUANTUM, QUANTUM + 5, QUANTUM * 3 + 4])
def test_what_came_before_a_broken_connection_is_kept_up_to_a_quantum(endpoint: Endpoint, sent: int) -> None:
    data = os.urandom(QUANTUM * 3 + 5)
    address = endpoint.begin()

    with pytest.raises(BodyTruncated):
        endpoint.ask("PUT", address, Pieces([data[:sent]], len(data), breaks=True))

    endpoint.reopen()
    status = endpoint.ask("PUT", address, Content_Range="bytes */*")
    kept = sent // QUANTUM * QUANTUM
    assert (status.status, status.headers.get("Range")) == (308, f"bytes=0-{kept - 1}" if kept else "")
    document(chunk(endpoint, address, data[kept:], kept, len(data)))
    assert endpoint.content() == data


def test_a_session_takes_bodies_of_unknown_length(endpoint: Endpoint) -> None:
    data = os.urandom(QUANTUM + 5)
    address = endpoint.begin()

    document(endpoint.ask("PUT", address, Pieces([data[:7], data[7:]])))

    assert endpoint.content() == data


def test_fewer_bytes_than_a_chunk_of_unknown_length_says_do_not_end_a_session(endpoint: Endpoint) -> None:
    address = endpoint.begin()

    response = endpoint.ask("PUT", address, Pieces([b"x" * 5]), Content_Range="bytes 0-9/10")

    assert response.status == 308
    assert not endpoint.exists()


def test_a_cancelled_session_is_over(endpoint: Endpoint) -> None:
    address = endpoint.begin()
    chunk(endpoint, address, b"x" * QUANTUM, 0, "*")

    assert endpoint.ask("DELETE", address).status == 499
    assert endpoint.ask("PUT", address, Content_Range="bytes */*").status in (404, 410, 499)
    assert not endpoint.exists()


def test_an_unknown_session_is_404(endpoint: Endpoint) -> None:
    assert endpoint.ask("PUT", f"{UPLOAD}?uploadType=resumable&upload_id=none", b"x").status == 404
    assert endpoint.ask("PUT", f"{UPLOAD}?uploadType=resumable&upload_id=..%2F..%2Fa", b"x").status == 404


def test_a_session_s_preconditions_are_held_at_its_end(endpoint: Endpoint) -> None:
    address = endpoint.begin("&name=a&ifGenerationMatch=0")
    endpoint.ask("POST", f"{UPLOAD}?uploadType=media&name=a", b"first")

    response = endpoint.ask("PUT", address, b"second")

    assert response.status == 412
    assert endpoint.content() == b"first"


@pytest.mark.parametrize("headers", [{"x_goog_hash": f"crc32c={crc32c(b'other')}"}, {"Content_MD5": md5(b"other")}])
def test_checksums_on_the_last_request_of_a_session_bind_it(endpoint: Endpoint, headers: dict[str, str]) -> None:
    data = os.urandom(QUANTUM + 5)
    address = endpoint.begin()
    chunk(endpoint, address, data[:QUANTUM], 0, "*")

    response = endpoint.ask(
        "PUT", address, data[QUANTUM:], Content_Range=f"bytes {QUANTUM}-{QUANTUM + 4}/{len(data)}", **headers
    )

    assert response.status == 400
    assert not endpoint.exists()


def test_checksums_at_the_beginning_of_a_session_bind_it(endpoint: Endpoint) -> None:
    wrong = endpoint.begin("", {"name": "a", "crc32c": crc32c(b"other")})
    right = endpoint.begin("", {"name": "b", "crc32c": crc32c(b"data"), "md5Hash": md5(b"data")})

    assert endpoint.ask("PUT", wrong, b"data").status == 400
    assert endpoint.ask("PUT", right, b"data").status == 200
    assert (endpoint.exists("a"), endpoint.exists("b")) == (False, True)


def test_the_other_path_of_uploads_leads_to_the_same_place(endpoint: Endpoint) -> None:
    response = endpoint.ask("POST", "/resumable/upload/storage/v1/b/lake/o?uploadType=resumable&name=a")

    address = response.headers.get("Location").removeprefix(f"http://{HOST}")
    assert endpoint.ask("PUT", address, b"data").status == 200
    assert endpoint.content() == b"data"
