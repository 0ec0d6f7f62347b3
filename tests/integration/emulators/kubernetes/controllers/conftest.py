"""An emulated API server with the controllers and a kubelet that runs no processes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.emulators.kubernetes.apiserver import ApiServer
from bastion.emulators.kubernetes.client import ApiClient
from bastion.emulators.kubernetes.controllers.controllers import Controllers
from bastion.emulators.kubernetes.controllers.disruptions import DisruptionSettings
from bastion.emulators.kubernetes.controllers.nodes import Pool
from tests.support.fake_kubelet import FakeKubelet
from tests.support.kubernetes_machine import Machine, StartMachine


@pytest.fixture
def start(tmp_path: Path) -> Iterator[StartMachine]:
    """Starts a machine with pools such as `v5litepod-16=2`."""
    with contextlib.ExitStack() as stack:

        def start(*pools: str, repair_seconds: float = 0.1) -> Machine:
            server = stack.enter_context(ApiServer(tmp_path / "state"))
            client = ApiClient.connect(server.address)
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
            return Machine(server, client, controllers, kubelet)

        yield start
