"""Settings of the whole suite.

Property tests try the same examples in every run, so that a red run means a change; `make soak` tries new ones, and
`make mutants` only a few.
"""

from __future__ import annotations

import os
import signal

import pytest
from hypothesis import Phase, settings

settings.register_profile("repeatable", derandomize=True, deadline=None)
# A mistake is either found by few examples, or by another test; nobody reads the smallest one.
settings.register_profile(
    "mutants", derandomize=True, deadline=None, database=None, max_examples=25, phases=(Phase.explicit, Phase.generate)
)
settings.register_profile("soak", max_examples=2000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

# A shell starts background jobs with SIGINT ignored, and children inherit that: a test's Ctrl-C would do nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are named by their argument: what is compressed or signed may differ between two workers' collections."""
    return argname if isinstance(val, bytes) else None
