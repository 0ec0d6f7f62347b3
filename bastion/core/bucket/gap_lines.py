"""Gap lines: mark missing output in a log."""

from __future__ import annotations

from bastion.core.instants import from_rfc3339, to_rfc3339

GAP = "gap"


def missing(lost_bytes: int | None, reason: str) -> str:
    """Return the text of a gap; `lost_bytes` None means unknown."""
    amount = "an unknown number of" if lost_bytes is None else str(lost_bytes)
    return f"{amount} bytes of output are missing here: {reason}"


def gap_line(text: str, *, at: float) -> bytes:
    return f"{to_rfc3339(at)} {GAP} F {text}\n".encode()


def last_instant(text: bytes) -> float:
    """Return the instant of a segment's last line; 0 if the line is not ours."""
    line = text.rstrip(b"\n").rpartition(b"\n")[2]
    try:
        return from_rfc3339(line.split(b" ", 1)[0].decode("ascii"))
    except ValueError:
        return 0.0
