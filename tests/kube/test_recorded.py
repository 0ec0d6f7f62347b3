"""The emulated API server answers the corpus as a real one did."""

from __future__ import annotations

import difflib
import json

import pytest

from tests.kube.runner import Runner
from tests.kube.scenarios import RECORDED, Scenario, scenarios

# Requests that the real server of `make kube` cannot answer; their answers are written from Kubernetes' source.
EXCLUDED = 43


def differences(expected: dict[str, object], answered: dict[str, object]) -> str:
    """One text per step that differs; empty if none does."""
    found = []
    for name in expected.keys() | answered.keys():
        right, given = (json.dumps(of.get(name), indent=1, sort_keys=True) for of in (expected, answered))
        if right != given:
            diff = difflib.unified_diff(
                right.splitlines(), given.splitlines(), "expected", "answered", lineterm="", n=2
            )
            found.append("\n".join([f"--- {name}", *list(diff)[2:]]))
    return "\n\n".join(sorted(found))


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario.name)
def test_the_emulator_answers_as_recorded(emulator: Runner, scenario: Scenario) -> None:
    found = differences(scenario.expected(), emulator.run(scenario))
    assert not found, f"the emulator answers otherwise:\n{found}"


def test_every_request_has_one_right_answer() -> None:
    for scenario in scenarios():
        sent = {step.name for step in scenario.steps if not step.restart and not step.excluded}
        assert scenario.recorded().keys() == sent, f"{scenario.name}: run make kube-record"
    assert {path.stem for path in RECORDED.glob("*.json")} == {scenario.name for scenario in scenarios()}


def test_the_corpus_is_large_and_little_of_it_is_excluded() -> None:
    requests = sum(scenario.requests for scenario in scenarios())
    assert requests >= 150
    assert sum(scenario.excluded for scenario in scenarios()) == EXCLUDED


def test_an_excluded_request_says_why_and_where_its_answer_is_written() -> None:
    for scenario in scenarios():
        for step in scenario.steps:
            if step.excluded:
                assert "emulator" in step.excluded or ".go" in step.excluded, f"{scenario.name}: {step.name}"
