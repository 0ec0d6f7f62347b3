"""API servers for the kubelet: the emulated one, and with `-m kube` also the real one, which `make kube` builds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.emulators import state_folder
from bastion.emulators.kubernetes.address import ADDRESS_FILE
from bastion.emulators.kubernetes.apiserver import ApiServer
from bastion.emulators.kubernetes.client import Address, ApiClient, ApiError
from tests.kube.real_server import RealServer
from tests.support.waiting import until


@pytest.fixture(params=["emulated", pytest.param("real", marks=pytest.mark.kube)])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Address]:
    """An API server that `tmp_path` says is there."""
    if request.param == "emulated":
        server = ApiServer(tmp_path)
        yield server.open()
        server.close(grace_seconds=0.5)
    else:
        real: RealServer = request.getfixturevalue("real_server")
        facts = {"server": real.server, "token": real.token, "ca_file": real.ca_file}
        state_folder.publish(tmp_path / ADDRESS_FILE, facts, state_folder.this_process())
        yield real
        _clear(ApiClient.connect(real))


def _clear(client: ApiClient) -> None:
    """Remove the pods and nodes of a test."""
    for root in ("/api/v1/pods", "/api/v1/nodes"):
        for item in client.list(root)["items"]:
            namespace = item["metadata"].get("namespace")
            kind = root.rpartition("/")[2]
            folder = f"/api/v1/namespaces/{namespace}/{kind}" if namespace else root
            path = f"{folder}/{item['metadata']['name']}"
            try:
                if item["metadata"].get("finalizers"):
                    client.patch(path, {"metadata": {"finalizers": None}})
                client.delete(path, grace_seconds=0)
            except ApiError as error:
                assert error.code == 404
    until(lambda: not client.list("/api/v1/pods")["items"])
    client.close()
