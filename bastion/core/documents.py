"""Reading JSON that others may have written: bounded in size and depth, no duplicate keys, no NaN.

One reader for every document of the bucket, so that a hostile one costs a `DocumentError` and nothing more.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

from bastion.core import limits


class DocumentError(ValueError):
    """The bytes are not a JSON document that we read; the message says why."""


def _no_constant(text: str) -> NoReturn:
    raise DocumentError(f"{text} is not allowed in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):  # it could be read, and never be written again
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


def _check_depth(text: str, max_depth: int) -> None:
    """Counts brackets outside of strings: cheaper than parsing, and safe before parsing."""
    depth = 0
    in_string = False
    escaped = False
    for char in text:
        if in_string:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_string = False
        elif char == '"':
            in_string = True
        elif char in "[{":
            depth += 1
            if depth > max_depth:
                raise DocumentError(f"the JSON nests deeper than {max_depth} levels")
        elif char in "]}":
            depth -= 1


def loads(data: bytes, *, max_bytes: int = limits.DOCUMENT_MAX_BYTES, max_depth: int = limits.JSON_MAX_DEPTH) -> Any:
    """Parses one JSON document.

    Raises:
        DocumentError: too large, not UTF-8, not JSON, too deep, a key twice, or a number that is not finite.
    """
    if len(data) > max_bytes:
        raise DocumentError(f"the document has {len(data)} bytes; {max_bytes} are the most")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError(f"the document is not UTF-8 (byte {error.start})") from error
    if text.count("[") + text.count("{") > max_depth:
        _check_depth(text, max_depth)
    try:
        document = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant, parse_float=_finite)
        if "\\u" in text:
            dumps(document)  # a lone surrogate can be written in JSON, but in no file, key or environment
        return document
    except DocumentError:
        raise
    except (ValueError, RecursionError) as error:  # ValueError also for integers of over 4300 digits
        raise DocumentError(f"the document is not JSON: {error}") from error


def dumps(document: Any) -> bytes:
    """The one way we write JSON: sorted keys and no spaces, so that equal documents are equal bytes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=False).encode(
        "utf-8"
    )
