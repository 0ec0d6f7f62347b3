"""Changes to valid inputs that keep most of their structure, so that they get past the first check of a parser.

Everything is drawn from the `random.Random` that a caller gives: Hypothesis shrinks it, a simulation seeds it, and the
coverage-guided fuzzer seeds it anew for every input.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import tarfile
import zlib
from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Any

LONG_CHARS = 64 * 1024
_DEPTH = 3000
# Of what a compressed input unpacks to.
_UNPACKED_MAX_BYTES = 4 * 1024 * 1024


class Form(Enum):
    """What an input is, and so how it is changed."""

    BYTES = "bytes"
    JSON = "json"
    LINES = "lines"  # text whose lines matter: TOML, CSV, logs, command lines
    HTTP = "http"  # a head, and a body that is JSON, a multipart body or bytes
    TAR = "tar"
    GZIP_JSON = "gzip json"


TEXTS = (
    "", " ", "0", "-1", "1e999", "NaN", "null", "true", "\0", "a\0b", "\n", "a\r\nb", "\u2028", "\u202e\u2066", "\ufeff",
    "²", "٣", "é" * 40, "e\u0301", "😀", "\x1b[31m", "../../etc/passwd", "..", ".", "/", "//", "/etc/passwd", "a/../b",
    "a//b", "C:\\x", "~root", "$(id)", "`id`", "';--", "{{x}}", "%00", "%2e%2e%2f", "%zz", "%f0%9f", "gs://", "gs://a",
    "s3://b/c", "file:///etc/passwd", "http://[", "2026-01-02T03:04:05Z", "9999-12-31T23:59:59.9Z", "0001-01-01T00:00:00Z",
    "9999-99-99", "9" * 400, "9" * 5000, "1" + "0" * 30, "0x" + "f" * 2000, "1.5h", "tpu-v4-32", "v4", "sha256-00", "x" * 300,
    "x" * LONG_CHARS, "(a+)+$", "[", "\\", '"', "aaaaaaaaaa-1", "aaaaaaaaaa-99999999999999999999", "CANCELLING", "running",
)  # fmt: skip
NUMBERS: tuple[object, ...] = (
    0, 1, -1, 2, 5, 63, 64, 255, 256, 65536, 2**31, 2**32, 2**53 + 1, 2**60, 2**63, 2**64, -(2**63), 10**18, 10**30, 10**400,
    0.0, -0.0, 0.5, 1e-320, 1e300, 253402300800, 253402300799.9999, -62135596801.0, 4e11, True, False,
)  # fmt: skip
_PIECES = (
    b"\0", b"\xff", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\n", b"\r\n\r\n", b"  ", b"\t", b'"', b"{", b"}", b"[", b"]",
    b"[" * _DEPTH, b'{"a":' * _DEPTH, b"=", b"a.b.c = 1", b"#", b"'''", b"9" * 5000, b"-", b":", b";", b",", b"\\u0000", b"\\ud800",
    b"1e999", b"NaN", b"-Infinity", b"x" * 1000, b"\x1f\x8b", b"PK\x03\x04", b"0x", b"1979-05-27", b"%00", b"&", b"<!DOCTYPE a>",
)  # fmt: skip
_HEADER_LINES = (
    b"Content-Length: 5", b"Content-Length: 99999999999999999999", b"Content-Length: " + b"9" * 5000, b"Content-Length: \xb2",
    b"Content-Length: -1", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked", b"Content-Range: bytes 0-4/5",
    b"Content-Range: bytes 0-4/*", b"Content-Range: bytes */*", b"Content-Range: bytes " + b"9" * 19 + b"-*/*", b"Range: bytes=-1",
    b"Range: bytes=9999999999999999999999-", b"Content-Type: multipart/related; boundary=", b"Content-Encoding: gzip",
    b"Content-Type: multipart/related; boundary=b", b"Content-Type: multipart/mixed; boundary='b'", b"X-HTTP-Method-Override: \xff",
    b"x-goog-hash: crc32c=AAAA,md5=\xff", b"Content-MD5: \xff", b"x-goog-generation: \xb2", b"x-goog-generation: " + b"9" * 5000,
    b"If-Match: \"a\", *", b"Expect: 100-continue", b"x-goog-meta-gcsproxy-version: 1", b"x-goog-copy-source: /vault/%ff",
    b"x-goog-encryption-algorithm: AES256", b"Accept-Encoding: gzip;q=0", b"Last-Modified: Thu, 32 Foo 99999 00:00:00 GMT",
    b"Retry-After: " + b"9" * 400, b"Host: vault.storage.googleapis.com", b"Host: [::1", b"Connection: \xff",
)  # fmt: skip
_TARGETS = (
    b"/storage/v1/b/%ff/o/%00", b"/storage/v1/b/vault/o/..%2f..", b"/upload/storage/v1/b/vault/o?uploadType=resumable&name=%ed%a0%80",
    b"/storage/v1/b/lake/o?pageToken=AAAA&maxResults=" + b"9" * 19, b"/storage/v1/b/lake/o?matchGlob={a,{b,**}[!-", b"/batch/storage/v1",
    b"/storage/v1/b/lake/o?fields=items(name,(((", b"/vault/a?uploads", b"/lake?prefix=%f0", b"/lake/a?uploadId=x&partNumber=99999",
    b"http://[::1", b"*", b"//", b"/storage/v1/b/lake/o/a/rewriteTo/b/vault/o/b?rewriteToken=gcsproxy-!!!!",
)  # fmt: skip


def mangled(rng: Random, data: bytes, form: Form) -> bytes:
    """A change of `data`, which should be of that form but may be anything."""
    change = _CHANGES[form]
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = change(rng, data)
    if rng.random() < 0.2:
        data = _bytes(rng, data)
    return data


def _bytes(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.choice((1, 2, 8, 64, 4096)))
    match rng.randrange(7):
        case 0:
            return data[:at]
        case 1:
            return data[:at] + data[end:]
        case 2:
            return data[:at] + rng.choice(_PIECES) + data[at:]
        case 3:
            return data[:at] + rng.choice(_PIECES) + data[end:]
        case 4:
            return data[:end] + data[at:]
        case 5 if at < len(data):
            return data[:at] + bytes((data[at] ^ (1 << rng.randrange(8)),)) + data[at + 1 :]
        case _:
            return data[:at] + rng.randbytes(rng.choice((1, 4, 16))) + data[at:]


# -- JSON -----------------------------------------------------------------------------------------------------------


class _Raw(int):
    """A number that is written as this text, valid JSON or not."""

    text = "0"

    def __repr__(self) -> str:
        return self.text


def _raw(text: str) -> _Raw:
    made = _Raw(0)
    made.text = text
    return made


def _value(rng: Random) -> Any:
    match rng.randrange(8):
        case 0:
            return rng.choice(NUMBERS)
        case 1:
            return _raw(rng.choice(("NaN", "1e999", "-Infinity", "9" * 5000, "1E-400", "01", "1.")))
        case 2 | 3:
            return rng.choice(TEXTS)
        case 4:
            return None
        case 5:
            return rng.choice(([], {}, [[]], {"": {}}, [None], ["a"] * 300, {str(k): k for k in range(300)}))
        case 6:
            return rng.choice((["\ud800"], "\udc80", {"\ud800": 1}, {"__proto__": []}, {"format": 3}, [1, "a", {}]))
        case _:
            deep: Any = 1
            for _ in range(rng.choice((5, 31, 32, 33, 200))):
                deep = [deep] if rng.random() < 0.5 else {"a": deep}
            return deep


Place = tuple[Any, Any]


def _places(document: Any) -> list[Place]:
    """Every container with every key or index in it."""
    found: list[Place] = []
    waiting = [document]
    while waiting and len(found) < 5000:
        here = waiting.pop()
        if isinstance(here, dict):
            items: list[tuple[Any, Any]] = list(here.items())
        elif isinstance(here, list):
            items = list(enumerate(here))
        else:
            continue
        found += [(here, key) for key, _ in items]
        waiting += [value for _, value in items]
    return found


def _json(rng: Random, data: bytes) -> bytes:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return _bytes(rng, data)
    places = _places(document)
    if not places or rng.random() < 0.03:
        document = _value(rng)
    else:
        _change_place(rng, document, places)
    with contextlib.suppress(ValueError, RecursionError):
        text = json.dumps(document, ensure_ascii=rng.random() < 0.5)
        if rng.random() < 0.08:  # a key twice
            text = (
                text.replace("{", '{"name":1,"name":2,', 1)
                if rng.random() < 0.5
                else text.replace("{", '{"":0,"":0,', 1)
            )
        return text.encode("utf-8", "surrogatepass")
    return data


def _change_place(rng: Random, document: Any, places: list[Place]) -> None:
    here, key = rng.choice(places)
    value = here[key]
    match rng.randrange(7):
        case 0:
            del here[key]
        case 1 if isinstance(here, dict):
            here[rng.choice(TEXTS) if rng.random() < 0.5 else rng.choice([str(name) for _, name in places])] = value
        case 1 if len(here) < 5000:
            here *= rng.choice((2, 3, 50))
        case 2:
            there, other = rng.choice(places)
            with contextlib.suppress(LookupError):
                here[key], there[other] = json.loads(json.dumps(there[other])), json.loads(json.dumps(value))
        case 3 if isinstance(value, str):
            at = rng.randrange(len(value) + 1)
            here[key] = value[:at] + rng.choice(TEXTS) + value[at + rng.randrange(3) :]
        case 3 if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e30:
            here[key] = rng.choice((value + 1, value - 1, -value, value * 2**40, str(value), [value], value + 0.5))
        case 4:
            here[key] = [value] if rng.random() < 0.5 else {"": value}
        case _:
            here[key] = _value(rng)


# -- text, HTTP -----------------------------------------------------------------------------------------------------


def _lines(rng: Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(len(lines))
    line = lines[at]
    match rng.randrange(8):
        case 0:
            del lines[at]
        case 1:
            lines.insert(rng.randrange(len(lines) + 1), line)
        case 2:
            other = rng.randrange(len(lines))
            lines[at], lines[other] = lines[other], line
        case 3 if b"=" in line:
            name = line.partition(b"=")[0]
            text = rng.choice((_toml_text(rng), str(rng.choice(NUMBERS)).encode(), b"[]", b"{}", b"nan", b"1979-05-27"))
            lines[at] = name + b"= " + text
        case 4:
            fields = line.split(rng.choice((b",", b" ", b":", b"=")))
            fields[rng.randrange(len(fields))] = _text(rng)
            lines[at] = rng.choice((b",", b" ", b":", b"=")).join(fields)
        case 5:
            lines.insert(at, rng.choice(_PIECES))
        case _:
            lines[at] = _bytes(rng, line)
    return b"\n".join(lines)


def _text(rng: Random) -> bytes:
    return rng.choice(TEXTS).encode("utf-8", "surrogatepass")


def _toml_text(rng: Random) -> bytes:
    return json.dumps(rng.choice(TEXTS), ensure_ascii=False).encode("utf-8", "surrogatepass")


def _http(rng: Random, data: bytes) -> bytes:
    head, end, body = data.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    match rng.randrange(8):
        case 0:
            lines.insert(1 + rng.randrange(len(lines)), rng.choice(_HEADER_LINES))
        case 1 if len(lines) > 1:
            del lines[1 + rng.randrange(len(lines) - 1)]
        case 2:
            first = lines[0].split(b" ")
            first[min(1, len(first) - 1)] = rng.choice(_TARGETS)
            lines[0] = b" ".join(first)
        case 3:
            first = lines[0].split(b" ")
            first[0] = rng.choice((b"GET", b"PUT", b"POST", b"DELETE", b"HEAD", b"PATCH", b"OPTIONS", b"\xff"))
            lines[0] = b" ".join(first)
        case 4:
            at = rng.randrange(len(lines))
            lines[at] = _bytes(rng, lines[at])
        case _:
            begin = body.find(b"{")
            stop = body.rfind(b"}") + 1
            if begin >= 0 and stop > begin and rng.random() < 0.7:
                body = body[:begin] + _json(rng, body[begin:stop]) + body[stop:]
            else:
                body = _bytes(rng, body) if rng.random() < 0.5 else _lines(rng, body)
    return b"\r\n".join(lines) + (end or b"\r\n\r\n") + body


# -- archives -------------------------------------------------------------------------------------------------------

_TYPES = (
    tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE,
    tarfile.CONTTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_SPARSE,
)  # fmt: skip
_PATHS = (
    "a", "b", "a/b", "a/b/c", "../x", "/etc/x", "a/../../x", ".", "..", "", "a//b", "a/./b", "x" * 300, "a/" * 200 + "z", "\u2028", "é",
    "link", "link/x", "a\\b", "~", "a\nb",
)  # fmt: skip


def _tar(rng: Random, data: bytes) -> bytes:
    packed = data[:2] == b"\x1f\x8b"
    plain = unpacked(data) if packed else data
    match rng.randrange(4):
        case 0:
            plain = _new_tar(rng)
        case 1 if len(plain) >= 512:
            at = 512 * rng.randrange(len(plain) // 512)  # most likely a header
            block = bytearray(plain[at : at + 512])
            for _ in range(rng.choice((1, 2, 4))):
                place = rng.choice((0, 100, 124, 135, 156, 157, 345, rng.randrange(512)))
                block[place] = rng.choice((0, 32, 48, 55, 128, 255, 46, 47, 50, 120, 76, 83))
            if rng.random() < 0.8 and len(block) == 512:
                total = 256 + sum(block[:148]) + sum(block[156:])
                block[148:156] = f"{total:06o}\0 ".encode()
            plain = plain[:at] + bytes(block) + plain[at + 512 :]
        case 2:
            plain = plain + rng.choice((b"", b"\0" * 1024)) + plain
        case _:
            plain = _bytes(rng, plain)
    if packed or rng.random() < 0.1:
        if rng.random() < 0.03:
            plain = b"\0" * _UNPACKED_MAX_BYTES + plain
        whole = gzip.compress(plain, 1, mtime=0)
        return _bytes(rng, whole) if rng.random() < 0.1 else whole
    return plain


def _new_tar(rng: Random) -> bytes:
    """An archive of entries that alone or together may lead out of the folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=rng.choice((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT))) as tar:
        for _ in range(rng.randrange(1, 8)):
            info = tarfile.TarInfo(rng.choice(_PATHS))
            info.type = rng.choice(_TYPES)
            info.linkname = rng.choice(_PATHS)
            info.mode = rng.choice((0o644, 0o755, 0o4777, 0))
            content = rng.choice(
                (b"", b"text\n", b"x" * 3000, b"30 path=../../out\n", b"19 size=99999999\n", b"9" * 40)
            )
            info.size = len(content) if rng.random() < 0.9 else rng.choice((10**6, 8**11, 0))
            if rng.random() < 0.2:
                info.pax_headers = {
                    rng.choice(("path", "linkpath", "size", "GNU.sparse.map", "comment")): rng.choice(_PATHS)
                }
            with contextlib.suppress(ValueError, UnicodeError):
                tar.addfile(info)  # the header alone, so that it may lie about the size
                buffer.write(content.ljust(-len(content) % 512 + len(content), b"\0"))
    return buffer.getvalue()


def unpacked(data: bytes) -> bytes:
    """What gzip data has, up to a limit; whatever can be read of it."""
    inflater = zlib.decompressobj(31)
    with contextlib.suppress(zlib.error):
        return inflater.decompress(data, _UNPACKED_MAX_BYTES)
    return b""


def _gzip_json(rng: Random, data: bytes) -> bytes:
    if rng.random() < 0.05:
        return gzip.compress(b"[" + b" " * _UNPACKED_MAX_BYTES + b"]", 9, mtime=0)
    return gzip.compress(_json(rng, unpacked(data)), 1, mtime=0)


_CHANGES: dict[Form, Callable[[Random, bytes], bytes]] = {
    Form.BYTES: _bytes,
    Form.JSON: _json,
    Form.LINES: _lines,
    Form.HTTP: _http,
    Form.TAR: _tar,
    Form.GZIP_JSON: _gzip_json,
}
