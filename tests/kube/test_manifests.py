"""The JobSets of the golden files are accepted strictly by API servers; the real one also checks rules in CEL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bastion.emulators.kubernetes.apiserver.server import ApiServer
from bastion.emulators.kubernetes.client import ApiClient, ApiError
from tests.golden import kubernetes
from tests.kube.real_server import RealServer, missing

_FOLDER = Path(next(iter(kubernetes.__path__)))
# Those of every type are parts of JobSets.
FILES = [file for file in sorted(_FOLDER.glob("*.json")) if not file.stem.startswith("every-type")]
STRICT = {"fieldValidation": "Strict"}
_PODS = "/api/v1/namespaces/training/pods"
_JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/training/jobsets"


@pytest.fixture(scope="module", params=["emulated", pytest.param("real", marks=pytest.mark.kube)])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiClient]:
    if request.param == "emulated":
        with ApiServer(tmp_path_factory.mktemp("kubernetes")) as emulated:
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


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_jobset_of_a_golden_file_is_accepted_and_kept_as_it_is(server: ApiClient, file: Path) -> None:
    asked = json.loads(file.read_text("utf-8"))
    asked["metadata"]["name"] = f"b-{file.stem[:12].strip('-')}-1"
    kept = server.request("POST", _JOBSETS, asked, query=STRICT)
    assert _missing(asked["spec"], kept["spec"], "spec") == []
    assert _missing(asked["metadata"], kept["metadata"], "metadata") == []
    server.delete(f"{_JOBSETS}/{asked['metadata']['name']}")


@pytest.mark.parametrize("file", [file for file in FILES if file.stem.startswith("gpu-")], ids=lambda file: file.stem)
def test_pods_with_gpus_are_accepted_too(server: ApiClient, file: Path) -> None:
    """A JobSet's definition does not check the rules of pods, such as equal requests and limits."""
    job_set = json.loads(file.read_text("utf-8"))
    template = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    metadata = {**template["metadata"], "name": "pod-1"}
    # The account does not exist there.
    spec = {name: value for name, value in template["spec"].items() if name != "serviceAccountName"}
    asked = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    server.request("POST", _PODS, asked, query=STRICT)
    server.delete(f"{_PODS}/pod-1", grace_seconds=0)


def test_a_field_that_jobset_does_not_have_is_refused(server: ApiClient) -> None:
    asked = json.loads(FILES[0].read_text("utf-8"))
    asked["spec"]["replicatedJobs"][0]["template"]["spec"]["backofLimit"] = 0
    with pytest.raises(ApiError) as refused:
        server.request("POST", _JOBSETS, asked, query=STRICT)
    assert refused.value.code in (400, 422)
    assert "backofLimit" in refused.value.message


def _missing(asked: Any, kept: Any, path: str) -> list[str]:
    """Where what was asked for is not what was kept; a server may add defaults."""
    if isinstance(asked, dict) and isinstance(kept, dict):
        return [each for key, value in asked.items() for each in _missing(value, kept.get(key), f"{path}.{key}")]
    if isinstance(asked, list) and isinstance(kept, list) and len(asked) == len(kept):
        pairs = zip(asked, kept, strict=True)
        return [each for number, pair in enumerate(pairs) for each in _missing(*pair, f"{path}[{number}]")]
    return [] if asked == kept else [f"{path}: {asked!r} became {kept!r}"]
