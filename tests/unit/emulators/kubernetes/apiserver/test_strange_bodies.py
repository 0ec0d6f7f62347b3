"""Objects with strange values are refused or taken, and never a fault of the server."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bastion.emulators.kubernetes.apiserver import first_objects
from bastion.emulators.kubernetes.apiserver.api import Api
from bastion.emulators.kubernetes.apiserver.faults import ApiFaults
from bastion.emulators.kubernetes.apiserver.store import Store
from bastion.net.http1 import BytesBody, Headers, Request, Response
from tests.support.kubernetes_requests import CONFIG_MAPS, JOB_SETS, JOBS, MERGE, PODS, config_map, job_set, pod

_STRANGE: tuple[Any, ...] = (
    None, 1, -1, "", "A b", [], {}, True, [None], {"a": None}, 1.5, 10**20, "x" * 300, [1], [{}], "\0", "a/b/c",
)  # fmt: skip
_ROUNDS = 150


def _pod() -> Any:
    owner = {"apiVersion": "v1", "kind": "P", "name": "n", "uid": "u"}
    made = pod("p", labels={"a": "b"}, finalizers=["a/b"], ownerReferences=[owner])
    container = made["spec"]["containers"][0]
    container["env"] = [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]
    container["resources"] = {"limits": {"google.com/tpu": 4, "cpu": "1"}}
    container["volumeMounts"] = [{"name": "v", "mountPath": "/v"}]
    made["spec"]["volumes"] = [{"name": "v", "emptyDir": {}}]
    made["spec"]["tolerations"] = [{"key": "a", "operator": "Exists"}]
    return made


def _job() -> Any:
    rules = [
        {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1]}},
        {"action": "Ignore", "onPodConditions": [{"type": "A"}]},
    ]
    spec = {"completionMode": "Indexed", "completions": 2, "podFailurePolicy": {"rules": rules}}
    return {"metadata": {"name": "j"}, "spec": {**spec, "template": {"spec": _pod()["spec"]}}}


def _set() -> Any:
    made = job_set("b-one-1")
    made["spec"]["failurePolicy"] = {"rules": [{"action": "FailJobSet", "name": "a"}]}
    made["spec"]["coordinator"] = {"replicatedJob": "slice"}
    made["spec"]["network"] = {"subdomain": "a"}
    return made


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    store = Store(tmp_path / "objects.sqlite")
    first_objects.ensure(store)
    yield Api(store, token="t", faults=ApiFaults(), ended=lambda: False, bookmark_seconds=60.0)
    store.close()


def _send(api: Api, method: str, path: str, body: object, media: str) -> Response:
    headers = Headers([("Authorization", "Bearer t"), ("Content-Type", media)])
    data = BytesBody(json.dumps(body).encode())
    return api(Request(method=method, target=path, path=path, headers=headers, body=data))


def _places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from _places(item, (*at, key))


@pytest.mark.parametrize("path", [PODS, JOBS, JOB_SETS, CONFIG_MAPS])
def test_no_value_in_an_object_is_a_fault_of_the_server(api: Api, path: str) -> None:
    original = {PODS: _pod, JOBS: _job, JOB_SETS: _set, CONFIG_MAPS: lambda: config_map("c", key="value")}[path]()
    name = original["metadata"]["name"]
    assert _send(api, "POST", path, original, "").status == 201
    chance = random.Random(15)
    seen = set()
    for _ in range(_ROUNDS):
        document = copy.deepcopy(original)
        *steps, last = chance.choice(list(_places(document)))
        place = document
        for step in steps:
            place = place[step]
        place[last] = copy.deepcopy(chance.choice(_STRANGE))
        one = f"{path}/{name}"
        for method, target, media in (("POST", path, ""), ("PUT", one, ""), ("PATCH", one, MERGE)):
            response = _send(api, method, target, document, media)
            assert response.status < 500, (method, document, response.body)
            seen.add(response.status)
    assert {400, 422} <= seen
    # A pod that exists cannot be replaced by one without what admission added.
    assert seen & {200, 201, 409}
