"""The proof of a log segment: its last line. It shows that a host of the run wrote this at this key. Pure.

`<RFC 3339 UTC µs> proof F <signature>` is a line like the others, with the time of the line before it: segments that
are read one after another are still lines in order. It signs the segment's key and the bytes before the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from bastion.core.bucket.gap_lines import last_instant
from bastion.core.instants import to_rfc3339
from bastion.core.run_keys import RunKey, is_signed

PROOF: Final = "proof"
_PURPOSE: Final = "log"
# Of a proof: a time, the word, F, 64 bytes in hexadecimal, three spaces and the newline.
PROOF_BYTES: Final = 165
_LINE = re.compile(rb"[0-9TZ:.-]{27} proof F (?P<signature>[0-9a-f]{128})\n\Z")


def with_proof(key: str, text: bytes, run_key: RunKey) -> bytes:
    """Return the segment to store: the text, whose lines all end, and its proof. The same text has the same proof."""
    signature = run_key.sign(_PURPOSE, _signed(key, text))
    return text + f"{to_rfc3339(last_instant(text))} {PROOF} F {signature}\n".encode()


def proved(key: str, data: bytes, public: str) -> bytes | None:
    """Return a segment's text if the run with this public key wrote it at this key; None otherwise."""
    text, signature = _split(data)
    return text if signature and is_signed(public, _PURPOSE, _signed(key, text), signature) else None


def without_proof(data: bytes) -> bytes:
    """Return a segment's text, whoever wrote it."""
    return _split(data)[0]


def free_number(numbers: Iterable[int], after: int) -> int:
    """Return the first number after `after` that is not among the numbers, which ascend."""
    free = after + 1
    for number in numbers:
        if number > free:
            break
        free = max(free, number + 1)
    return free


def _split(data: bytes) -> tuple[bytes, str]:
    """The text and the signature, which is empty if there is none."""
    begin = max(0, len(data) - PROOF_BYTES)
    found = _LINE.match(data, begin) if data[begin - 1 : begin] in (b"\n", b"") else None
    return (data[:begin], found["signature"].decode()) if found is not None else (data, "")


def _signed(key: str, text: bytes) -> bytes:
    return key.encode() + b"\0" + text
