"""What `bastion quota export` writes is accepted strictly by API servers; the real one also checks rules in CEL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from bastion.client.quota.kueue_drift import differences, read
from bastion.emulators.kubernetes.apiserver.server import ApiServer
from bastion.emulators.kubernetes.client import ApiClient, ApiError
from bastion.emulators.kubernetes.controllers.api_objects import KINDS
from tests.kube.real_server import RealServer, missing
from tests.support.kueue_exports import FILES, LABEL, exported

_STRICT = {"fieldValidation": "Strict"}


@pytest.fixture(scope="module", params=["emulated", pytest.param("real", marks=pytest.mark.kube)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiClient]:
    if request.param == "emulated":
        with ApiServer(tmp_path_factory.mktemp("kubernetes"), kueue=True) as emulated:
            yield from _prepared(ApiClient.connect(emulated.address))
        return
    if "kube" not in request.config.getoption("markexpr"):
        pytest.skip("the real API server is asked for by: pytest -m kube")
    absent = missing()
    if absent:
        pytest.skip(absent)
    with RealServer() as real:
        yield from _prepared(ApiClient.connect(real))


def _prepared(client: ApiClient) -> Iterator[ApiClient]:
    try:
        client.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "training"}})
        yield client
    finally:
        client.close()


def _path(kind: str) -> str:
    return KINDS["kueue.x-k8s.io/v1beta2", kind].path("training")


@pytest.mark.parametrize("name", FILES)
def test_an_export_is_accepted_and_kept_as_it_is(server: ApiClient, name: str) -> None:
    objects = exported(name).objects
    try:
        for each in objects:
            server.request("POST", _path(each["kind"]), each, query=_STRICT)
        assert list(differences(objects, _present(server), label=LABEL)) == []
    finally:
        for each in objects:
            path = f"{_path(each['kind'])}/{each['metadata']['name']}"
            # Kueue would take its finalizers away.
            server.patch(path, {"metadata": {"finalizers": None}})
            server.delete(path)


def _present(server: ApiClient) -> Sequence[Any]:
    return read(lambda path: server.list(path)["items"], "training")


def test_a_field_that_kueue_does_not_have_is_refused(server: ApiClient) -> None:
    queue = next(each for each in exported("small").objects if each["kind"] == "ClusterQueue")
    with pytest.raises(ApiError) as refused:
        server.request(
            "POST", _path("ClusterQueue"), {**queue, "spec": {**queue["spec"], "cohort": "x"}}, query=_STRICT
        )
    assert refused.value.code in (400, 422)
    assert "cohort" in refused.value.message
