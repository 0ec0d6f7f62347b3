"""The answer to an incomplete upload. Pure."""

from __future__ import annotations

from bastion.net.http1 import Headers, Response


def incomplete(received: int) -> Response:
    """308: the session expects more; `received` bytes, from the first on, need not be sent again."""
    headers = Headers()
    if received:
        headers.add("Range", f"bytes=0-{received - 1}")
    return Response(status=308, headers=headers, reason="Resume Incomplete")
