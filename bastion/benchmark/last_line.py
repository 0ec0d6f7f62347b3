"""The last line that a failed command wrote: what it says itself about its end."""

from __future__ import annotations

import contextlib

from bastion.client.jobs.client import Client
from bastion.client.jobs.results import Result
from bastion.core.bucket.keys import Run
from bastion.core.errors import StoreError
from bastion.core.model.run_public_keys import NOBODY
from bastion.core.plain_text import plain_line

_MAX_CHARS = 200
# The last ones may be empty.
_LINES_READ = 10


def last_line(client: Client, result: Result) -> str:
    """Return the last line of the worker that failed first; empty if there is none, or no command failed."""
    last = result.attempts[-1] if result.attempts else None
    if last is None or last.cause != "failed" or result.failed_worker is None:
        return ""
    run = Run(result.uid, last.number)
    found: dict[str, str] = {}
    with contextlib.suppress(StoreError):
        public_key = result.public_keys.of(run)
        logs = client.logs(
            result.name,
            run,
            worker=result.failed_worker,
            tail=_LINES_READ,
            public_key=NOBODY if public_key is None else public_key,
        )
        for pieces in logs.drain():
            for piece in pieces:
                text = plain_line(piece.text.decode(errors="replace"))
                if piece.stream != "gap" and text:
                    found[piece.stream] = text
    # Programs say on stderr why they fail, whatever they write to stdout meanwhile.
    return found.get("stderr", found.get("stdout", ""))[:_MAX_CHARS]
