"""API servers for the parts of the emulated cluster: the emulated one, and with `-m kube` also the real one, which
`make kube` builds.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.emulators.kubernetes.apiserver import ApiServer
from bastion.emulators.kubernetes.client import Address
from tests.kube.real_server import RealServer, missing
from tests.support.kubernetes_machine import clear


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without `-m kube`, leave out what needs the real server: tests/kube says that it is."""
    if "kube" not in config.getoption("markexpr"):
        here = Path(__file__).parent
        items[:] = [item for item in items if here not in item.path.parents or not item.get_closest_marker("kube")]


@pytest.fixture(scope="session")
def real_server() -> Iterator[RealServer]:
    if absent := missing():
        pytest.skip(absent)
    with RealServer() as server:
        yield server


@pytest.fixture
def has_kueue() -> bool:
    """Whether the emulated server has Kueue's types and webhooks. The real one has the types without the webhooks."""
    return False


@pytest.fixture(params=["emulated", pytest.param("real", marks=pytest.mark.kube)])
def address(request: pytest.FixtureRequest, tmp_path: Path, has_kueue: bool) -> Iterator[Address]:
    if request.param == "real":
        server: RealServer = request.getfixturevalue("real_server")
        yield server
        clear(server)
    else:
        with ApiServer(tmp_path / "state", kueue=has_kueue) as emulated:
            yield emulated.address
