"""What a client is told of an upload that waits for more of it.

Layer: storage_api. Pure.
"""

from __future__ import annotations

from bastion.net.http1 import Headers, Response


def incomplete(received: int) -> Response:
    """308: the session waits for more.

    Args:
        received: How many bytes, from the first one on, the client need not send again.
    """
    headers = Headers()
    if received:
        headers.add("Range", f"bytes=0-{received - 1}")
    return Response(status=308, headers=headers, reason="Resume Incomplete")
