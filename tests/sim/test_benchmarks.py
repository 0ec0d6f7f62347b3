"""Benchmarks end by themselves: seeded histories in which everything may be killed, lost or cut.

`make test` has ten of them, `make soak` 200 ($BASTION_BENCHMARK_HISTORIES).
"""

from __future__ import annotations

import os

import pytest

from tests.support.benchmark_history import History

HISTORIES = int(os.environ.get("BASTION_BENCHMARK_HISTORIES", "10"))


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_every_run_is_torn_down_and_every_cell_has_its_repeats_or_a_reason(seed: int) -> None:
    history = History(seed)
    history.live()
    history.check()
