"""An API server with the controllers and a kubelet that runs no processes.

Each test runs on the emulated server; with `-m kube` also on the real one, which `make kube` builds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.emulators.kubernetes.apiserver import ApiServer
from bastion.emulators.kubernetes.client import Address, ApiClient
from bastion.emulators.kubernetes.controllers.controllers import Controllers
from bastion.emulators.kubernetes.controllers.disruptions import DisruptionSettings
from bastion.emulators.kubernetes.controllers.nodes import Pool
from bastion.emulators.kubernetes.controllers.objects import KINDS, path_of
from tests.kube.real_server import RealServer, missing
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubernetes_machine import Machine, StartMachine


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


@pytest.fixture(params=["emulated", pytest.param("real", marks=pytest.mark.kube)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Address]:
    if request.param == "real":
        server: RealServer = request.getfixturevalue("real_server")
        yield server
        _clear(server)
    else:
        with ApiServer(tmp_path / "state") as emulated:
            yield emulated.address


@pytest.fixture
def start(address: Address) -> Iterator[StartMachine]:
    """Starts a machine with pools such as `v5litepod-16=2`."""
    with contextlib.ExitStack() as stack:

        def start(*pools: str, repair_seconds: float = 0.1) -> Machine:
            client = ApiClient.connect(address)
            stack.callback(client.close)
            controllers = Controllers(
                client,
                [Pool.parse(pool) for pool in pools],
                repair_seconds=repair_seconds,
                disruptions=DisruptionSettings(orphaned_seconds=0.1),
            )
            controllers.open()
            stack.callback(controllers.close)
            kubelet = stack.enter_context(FakeKubelet(client))
            return Machine(client, controllers, kubelet)

        yield start


def _clear(address: Address) -> None:
    """Remove what a test left behind."""
    client = ApiClient.connect(address)
    for kind in KINDS.values():
        for item in client.list(kind.root)["items"]:
            path = path_of({"apiVersion": kind.api_version, "kind": kind.kind, **item})
            if item["metadata"].get("finalizers"):
                client.patch(path, {"metadata": {"finalizers": None}})
            client.delete(path, grace_seconds=0)
    client.close()
