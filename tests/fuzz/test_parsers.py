"""Every parser of what comes from outside against mangled inputs, and those that once showed a fault."""

from __future__ import annotations

import logging
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.found_inputs import replayed
from tests.fuzz.mangling import mangled
from tests.fuzz.target import Target
from tests.fuzz.targets import BY_NAME, TARGETS
from tests.fuzz.wire_seeds import ENDPOINTS, STAGES

# Each of these takes milliseconds: they start programs, or ask an adapter for every operation that it has.
_SLOW = {
    "command-line": 30,
    "service-answer": 20,
    "gcs-answer": 20,
    "s3-answer": 20,
    "agent-archive": 20,
    "code-archive": 30,
    "pinned-part": 20,
}
_EXAMPLES = 60
_SOAK_FACTOR = 50
_MEMORY_MAX_BYTES = 256 * 1024 * 1024


@pytest.fixture(autouse=True, scope="module")
def _quietly() -> Iterator[None]:
    """Without the log, which tells of every refusal, and without what the stages stored."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    STAGES.close()
    ENDPOINTS.close()


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_what_our_own_writers_make_is_accepted(target: Target) -> None:
    seeds = target.seeds()
    assert seeds
    accepted = [target.check(seed) for seed in seeds]
    assert any(accepted)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
@pytest.mark.filterwarnings("ignore")
def test_any_input_is_read_or_refused_with_the_documented_error(target: Target) -> None:
    examples = _SLOW.get(target.name, _EXAMPLES)
    soak = settings().max_examples > settings.get_profile("repeatable").max_examples
    seeds = target.seeds()

    @settings(max_examples=examples * (_SOAK_FACTOR if soak else 1), deadline=None)
    @given(st.sampled_from(range(len(seeds))), st.randoms(use_true_random=False))
    def check(number: int, random: Random) -> None:
        target.check(mangled(random, seeds[number], target.form))

    check()


@pytest.mark.parametrize(("name", "path"), list(replayed()), ids=lambda part: str(getattr(part, "name", part)))
@pytest.mark.filterwarnings("ignore")
def test_what_once_showed_a_fault_shows_none(name: str, path: Path) -> None:
    BY_NAME[name].check(path.read_bytes())


@pytest.mark.parametrize("name", ["json", "spec", "status", "pinned-part", "code-archive", "gzip-content"])
def test_no_input_takes_much_memory(name: str) -> None:
    """Nothing that is small takes more than a parser's own limit, such as bombs of gzip."""
    target, random = BY_NAME[name], Random(1)
    seeds = target.seeds()
    tracemalloc.start()
    try:
        for _ in range(30):
            target.check(mangled(random, random.choice(seeds), target.form))
        assert tracemalloc.get_traced_memory()[1] < _MEMORY_MAX_BYTES
    finally:
        tracemalloc.stop()
