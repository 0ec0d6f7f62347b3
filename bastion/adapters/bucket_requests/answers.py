"""What a request to a bucket came to, other than an answer; the store interprets it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

_TEXT_MAX = 300


class Transient(Exception):
    """One try failed; another one may succeed. `doubtful`: the request may have taken effect without an answer."""

    def __init__(self, reason: str, *, doubtful: bool) -> None:
        super().__init__(reason)
        self.doubtful = doubtful


class ConditionNotMet(Exception):
    """412: the object has another generation."""


class NoSuchObject(Exception):
    """404 for the object, not the bucket."""


class PastTheEnd(Exception):
    """416: the object ends before the first requested byte."""


@contextlib.contextmanager
def understood(service: str) -> Iterator[None]:
    """Turn what an answer of another form leads to into Transient: a proxy may have answered instead of the service."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        why = f"{type(error).__name__}: {short(str(error))}"
        raise Transient(f"the answer is not {service}'s ({why})", doubtful=True) from error


def short(text: str) -> str:
    """A service's text as one line for messages."""
    one_line = " ".join(text.split())
    return one_line if len(one_line) <= _TEXT_MAX else one_line[: _TEXT_MAX - 1] + "…"
