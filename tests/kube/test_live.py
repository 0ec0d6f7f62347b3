"""The corpus sent to a real API server and to the emulated one: `make kube`, then `pytest -m kube`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kube.real_server import RealServer, missing
from tests.kube.record import to_real
from tests.kube.runner import Runner
from tests.kube.scenarios import Scenario, scenarios
from tests.kube.test_recorded import differences

pytestmark = pytest.mark.kube


@pytest.fixture(scope="module")
def real(request: pytest.FixtureRequest) -> Iterator[Runner]:
    """Sends scenarios to a real API server."""
    if "kube" not in request.config.getoption("markexpr"):
        pytest.skip("the real API server is asked for by: pytest -m kube")
    absent = missing()
    if absent:
        pytest.skip(absent)
    with RealServer() as server:
        yield Runner(server, server.restart)


@pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario.name)
def test_both_servers_answer_alike(real: Runner, emulator: Runner, scenario: Scenario) -> None:
    answered = real.run(to_real(scenario))
    changed = differences(scenario.recorded(), answered)
    assert not changed, f"the recording is out of date (make kube-record):\n{changed}"
    emulated = emulator.run(scenario)
    found = differences(answered, {name: emulated[name] for name in answered})
    assert not found, f"the emulator answers otherwise:\n{found}"
