"""Parse the head of a request or an answer, and determine the length of its body. Pure.

Accepts what real storage clients send: bare line feeds, any bytes in values, absolute targets, `Transfer-Encoding:
identity`, chunked with a Content-Length (chunked wins). Refuses what two readers could read differently: contradicting
lengths, invalid names, bare carriage returns, unknown transfer codings, several `Host` fields, different values of a
single-valued field.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from bastion.net.http1.messages import BadRequest, Headers

# Blanks around a value. A plain `strip` would also remove bytes of UTF-8 characters, as in C3 A0.
BLANKS = " \t\r"

# Larger than any object, far from 64-bit overflow.
LENGTH_MAX_BYTES = 1 << 50

# Single-valued fields. With different values, two readers could see two different requests.
_SINGLETONS = frozenset(
    (
        *("authorization", "content-range", "content-type", "host", "if-modified-since", "if-range"),
        *("if-unmodified-since", "proxy-authorization", "range", "x-goog-copy-source", "x-goog-resumable"),
        *("x-http-method-override", "x-upload-content-length", "x-upload-content-type"),
    )
)

# Fields about one connection (RFC 9110, 7.6.1), and fields that each sender writes itself. Nobody forwards them.
HOP_BY_HOP = frozenset(
    (
        *("connection", "content-length", "expect", "host", "keep-alive", "proxy-authenticate", "proxy-authorization"),
        *("proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    )
)

_STATUS_LINE = re.compile(r"(HTTP/1\.[01]) +([1-9][0-9][0-9])(?: (.*))?")
# A token of RFC 9110: it has no blanks, which only some readers trim.
FIELD_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
# Some readers end a line at a bare carriage return, and a string at a zero byte.
_LINE_ENDS = re.compile(r"[\r\x00]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    method: str
    target: str
    version: str
    headers: Headers


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    status: int
    reason: str
    version: str
    headers: Headers


def end_of_head(data: bytes, start: int) -> int:
    """Offset of the body in `data`, whose head begins at `start`; -1 if the head is incomplete."""
    strict = data.find(b"\n\r\n", start)
    bare = data.find(b"\n\n", start, strict if strict >= 0 else len(data))
    if bare >= 0:
        return bare + 2
    return strict + 3 if strict >= 0 else -1


def parse_head(data: bytes) -> Head:
    """Parse a request head, with or without its final empty line. Raises BadRequest."""
    lines = data.decode("latin-1").rstrip("\r\n").split("\n")
    method, _, rest = lines[0].rstrip("\r").partition(" ")
    target, _, version = rest.rstrip(" ").rpartition(" ")
    target = target.strip(" ")
    if version not in ("HTTP/1.1", "HTTP/1.0"):
        status = 505 if version.startswith("HTTP/") else 400
        raise BadRequest("the request line does not end in HTTP/1.1", status=status)
    if not target or not method.isascii() or not method.replace("-", "").replace("_", "").isalnum():
        raise BadRequest("the request line is not `METHOD TARGET HTTP/1.1`")
    if _CONTROL.search(target):
        raise BadRequest("the request target contains control characters")
    headers = _fields(lines[1:])
    _check_singletons(headers)
    return Head(method=method, target=target, version=version, headers=headers)


def parse_answer(data: bytes) -> AnswerHead:
    """Parse an answer head, with or without its final empty line. Raises BadRequest."""
    lines = data.decode("latin-1").rstrip("\r\n").split("\n")
    first = _STATUS_LINE.fullmatch(lines[0].rstrip("\r"))
    if first is None:
        raise BadRequest("the status line is not `HTTP/1.1 STATUS REASON`")
    version, status, reason = first.groups()
    return AnswerHead(status=int(status), reason=reason or "", version=version, headers=_fields(lines[1:]))


def _fields(lines: list[str]) -> Headers:
    fields: list[tuple[str, str]] = []
    for line in lines:
        name, colon, value = line.partition(":")
        if line[:1] in (" ", "\t") and fields:
            # An obsolete folded line continues the one before.
            before, begun = fields.pop()
            name, value = before, f"{begun} {line.strip(BLANKS)}"
        elif not colon or not FIELD_NAME.fullmatch(name):
            raise BadRequest("a header line is not `name: value`")
        value = value.strip(BLANKS)
        if _LINE_ENDS.search(value):
            raise BadRequest("a header value contains a carriage return or a zero byte")
        fields.append((name, value))
    return Headers(fields)


def _check_singletons(headers: Headers) -> None:
    """Raise BadRequest for several hosts, or several values of a single-valued field."""
    found: dict[str, str] = {}
    for name, value in headers.items():
        lower = name.lower()
        if lower not in _SINGLETONS:
            continue
        if lower in found and (lower == "host" or found[lower] != value):
            raise BadRequest(f"the request has several {name} fields; send one")
        found[lower] = value


def split_target(target: str, host: str) -> tuple[str, str, str]:
    """Path, query and authority of a request target; `host` is the Host header.

    Raises BadRequest for a URL without a host.
    """
    if target.startswith("/"):
        path, _, query = target.partition("?")
        return path, query, host
    scheme, colon, _ = target.partition("://")
    if not colon or not scheme.isalpha():
        return target, "", host
    try:
        url = urlsplit(target)
    except ValueError as error:
        raise BadRequest("the request target is not a URL") from error
    return url.path or "/", url.query, url.netloc


def body_length(headers: Headers) -> int | None:
    """Bytes of the body; None if chunked. Raises BadRequest for contradicting or invalid lengths."""
    codings = ",".join(headers.get_all("transfer-encoding")).lower().split(",")
    named = [coding.strip(BLANKS) for coding in codings if coding.strip(BLANKS) not in ("", "identity")]
    if named == ["chunked"]:
        return None
    if named:
        raise BadRequest("unsupported transfer coding; use `chunked`", status=501)
    lengths = {text.strip(BLANKS) for value in headers.get_all("content-length") for text in value.split(",")}
    if not lengths:
        return 0
    text = lengths.pop()
    if lengths:
        raise BadRequest("the Content-Length fields differ")
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= LENGTH_MAX_BYTES):
        raise BadRequest("the Content-Length is not a valid length")
    return int(text)


def chunk_length(line: bytes) -> int:
    """The size in a chunk's size line. Raises BadRequest if it is not hexadecimal."""
    text = line.partition(b";")[0].strip(b" \t\r\n")
    if not 1 <= len(text) <= 16 or text.strip(b"0123456789abcdefABCDEF"):
        raise BadRequest("a chunk's size is not a hexadecimal number")
    length = int(text, 16)
    if length > LENGTH_MAX_BYTES:
        raise BadRequest("a chunk is too long")
    return length
