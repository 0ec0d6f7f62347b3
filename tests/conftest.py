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


# The longest files, which several workers should not begin last; then folders whose tests wait for processes.
_FIRST = (
    "e2e/test_training",
    "e2e/test_gs_root",
    "long/test_seeded_run",
    "e2e/test_memory_attacks",
    "sim/test_fault_classes",
    "e2e/test_first_light",
    "e2e/test_emulator_vms",
    "unit/client/test_request_counts",
    "e2e/test_readme",
    "e2e/test_random_kills",
    "e2e/test_full_disk",
    "e2e/test_daemon_death",
    "e2e/",
    "integration/deploy/",
    "sim/",
    "contract/",
    "adversarial/",
    "integration/",
)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort files by when they should begin, if several workers share them."""
    items.sort(key=lambda item: _rank(item.nodeid.removeprefix("tests/")))


def _rank(path: str) -> int:
    return next((rank for rank, start in enumerate(_FIRST) if path.startswith(start)), len(_FIRST))


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Bytes are named by their argument: what is compressed or signed may differ between two workers' collections."""
    return argname if isinstance(val, bytes) else None
