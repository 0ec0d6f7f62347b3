"""Changes to valid inputs that keep most of their structure, so that they get past the first check of a parser.

Everything is drawn from the `random.Random` that a caller gives: Hypothesis shrinks it, a simulation seeds it, and the
coverage-guided fuzzer seeds it anew for every input.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import re
import tarfile
import zlib
from collections.abc import Callable
from enum import Enum
from random import Random
from typing import Any

from tests.fuzz.oddities import HEADER_LINES, NUMBERS, PIECES, REQUEST_TARGETS, TEXTS

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
            return data[:at] + rng.choice(PIECES) + data[at:]
        case 3:
            return data[:at] + rng.choice(PIECES) + data[end:]
        case 4:
            return data[:end] + data[at:]
        case 5 if at < len(data):
            return data[:at] + bytes((data[at] ^ (1 << rng.randrange(8)),)) + data[at + 1 :]
        case _:
            return data[:at] + rng.randbytes(rng.choice((1, 4, 16))) + data[at:]


# -- JSON -----------------------------------------------------------------------------------------------------------


# What stands between these is written without quotes, valid JSON or not.
_RAW = re.compile(r'"<raw ([^"]*)>"')
_RAW_TEXTS = ("NaN", "1e999", "-Infinity", "9" * 5000, "1E-400", "01", "1.", "-0", "1e-7")


def _value(rng: Random) -> Any:
    match rng.randrange(8):
        case 0:
            return rng.choice(NUMBERS)
        case 1:
            return f"<raw {rng.choice(_RAW_TEXTS)}>"
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
        text = _RAW.sub(r"\1", json.dumps(document, ensure_ascii=rng.random() < 0.5))
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
            lines.insert(at, rng.choice(PIECES))
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
            lines.insert(1 + rng.randrange(len(lines)), rng.choice(HEADER_LINES))
        case 1 if len(lines) > 1:
            del lines[1 + rng.randrange(len(lines) - 1)]
        case 2:
            first = lines[0].split(b" ")
            first[min(1, len(first) - 1)] = rng.choice(REQUEST_TARGETS)
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
    tarfile.REGTYPE,
    tarfile.DIRTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.CHRTYPE,
    tarfile.BLKTYPE,
    tarfile.FIFOTYPE,
    tarfile.CONTTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.GNUTYPE_SPARSE,
)
_PATHS = (
    "a",
    "b",
    "a/b",
    "a/b/c",
    "../x",
    "/etc/x",
    "a/../../x",
    ".",
    "..",
    "",
    "a//b",
    "a/./b",
    "x" * 300,
    "a/" * 200 + "z",
    "\u2028",
    "é",
    "link",
    "link/x",
    "a\\b",
    "~",
    "a\nb",
)


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
