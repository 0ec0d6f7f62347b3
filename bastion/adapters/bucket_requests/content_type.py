"""The content type of what a store writes."""

from __future__ import annotations

_SNIFFED_BYTES = 1024


def content_type(data: bytes) -> str:
    """Return the type for browsers, from the first bytes: they show text and download everything else."""
    beginning = data[:_SNIFFED_BYTES]
    if b"\0" in beginning:
        return "application/octet-stream"
    try:
        beginning.decode()
    except UnicodeDecodeError as error:
        # The sample may end within a character.
        if len(data) <= _SNIFFED_BYTES or error.start < _SNIFFED_BYTES - 3:
            return "application/octet-stream"
    return "text/plain; charset=utf-8"
