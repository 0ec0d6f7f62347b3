"""An API server with the controllers and a kubelet that runs no processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bastion.emulators.kubernetes.client import Address
from bastion.emulators.kubernetes.controllers.disruptions import DisruptionSettings
from tests.support.kubernetes_machine import Machine, StartMachine, starting


@pytest.fixture
def start(address: Address) -> Iterator[StartMachine]:
    """Starts a machine with pools such as `v5litepod-16=2`."""
    options = {"repair_seconds": 0.1, "disruptions": DisruptionSettings(orphaned_seconds=0.1)}
    with starting(Machine, address, **options) as start:
        yield start
