"""Safe reading of foreign JSON: bounded size, depth, number of values and integers; no duplicate keys, no NaN.

A hostile document costs only a `DocumentError`. Parsed JSON takes up to 40 times its size in memory, so values are
counted before parsing.
"""

from __future__ import annotations

import json
import math
from typing import Any, Final, NoReturn

from bastion.core import limits


class DocumentError(ValueError):
    """The bytes are not an acceptable JSON document."""


def _no_constant(text: str) -> NoReturn:
    raise DocumentError(f"{text} is not valid JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):  # it could not be written again
        raise DocumentError(f"the number {text[:40]} is too large for JSON")
    return number


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DocumentError(f"the key {key!r} appears twice in one object")
            seen.add(key)
    return document


def _bounded_int(text: str) -> int:
    if len(text) > limits.JSON_INTEGER_MAX_CHARS:
        raise DocumentError(
            f"an integer is {len(text)} characters long; the maximum is {limits.JSON_INTEGER_MAX_CHARS}"
        )
    return int(text)


def _structure(data: bytes, max_values: int) -> bytes:
    """Return the bytes outside of strings, with a quote for each string, in a few passes in C."""
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = data.count(b'"') // 2
    if strings > max_values:
        raise _too_many(strings, max_values)
    return b'"'.join(data.split(b'"')[::2])


def _too_many(values: int, max_values: int) -> DocumentError:
    return DocumentError(f"the document has about {values} keys and values; the maximum is {max_values}")


def _counts(data: bytes) -> tuple[int, int]:
    """Return the number of containers, and an upper bound for keys and values."""
    opened = data.count(b"[") + data.count(b"{")
    return opened, 1 + opened + data.count(b",") + data.count(b":")


_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _check_depth(structure: bytes, max_depth: int) -> None:
    depth = 0
    for byte in structure.translate(None, delete=_NOT_BRACKETS):
        if byte in b"[{":
            depth += 1
            if depth > max_depth:
                raise DocumentError(f"the JSON nests deeper than {max_depth} levels")
        else:
            depth -= 1


def _check(data: bytes, max_depth: int, max_values: int) -> None:
    """Check the bounds before parsing; correct for UTF-8, where no other character contains these bytes."""
    opened, values = _counts(data)
    if opened <= max_depth and values <= max_values:
        return  # nearly every document, its strings included
    structure = _structure(data, max_values)
    opened, values = _counts(structure)
    if values > max_values:
        raise _too_many(values, max_values)
    if opened > max_depth:
        _check_depth(structure, max_depth)


# To make either of them anew for each document costs as much as to read a short one.
_DECODER: Final = json.JSONDecoder(
    object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite, parse_int=_bounded_int
)
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False)


def loads(
    data: bytes,
    *,
    max_bytes: int = limits.DOCUMENT_MAX_BYTES,
    max_depth: int = limits.JSON_MAX_DEPTH,
    max_values: int = limits.DOCUMENT_MAX_VALUES,
) -> Any:
    """Parse one JSON document. `max_values` bounds keys, values and containers.

    Raises DocumentError if it exceeds a bound, or is not UTF-8 or JSON.
    """
    if len(data) > max_bytes:
        raise DocumentError(f"the document is {len(data)} bytes long; the maximum is {max_bytes}")
    _check(data, max_depth, max_values)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError(f"the document is not UTF-8 (byte {error.start})") from error
    try:
        if text.startswith("\ufeff"):
            json.loads(text)  # raises, and names the byte order mark
        document = _DECODER.decode(text)
        if "\\u" in text:
            dumps(document)  # refuses lone surrogates: valid in JSON, but in no file, key or environment
        return document
    except DocumentError:
        raise
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"the document is not valid JSON: {error}") from error


def dumps(document: Any) -> bytes:
    """Return canonical JSON: sorted keys and no spaces, so that equal documents are equal bytes."""
    return _ENCODER.encode(document).encode("utf-8")
