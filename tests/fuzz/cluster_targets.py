"""What the API server of a Kubernetes cluster answers, through the adapter that reads it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import urllib3

from bastion.adapters.kubernetes import documents, kueue, seen
from bastion.adapters.kubernetes.api_errors import explain, explain_event
from bastion.adapters.kubernetes.documents import Word
from bastion.adapters.kubernetes.operations import operation
from bastion.adapters.kubernetes.state import Parts, gang_status
from bastion.adapters.kubernetes.transport import LineStream, Transport
from bastion.adapters.kubernetes.watched_objects import UnknownEvent, WatchedObjects
from bastion.core.errors import (
    ProvisionerError,
    ProvisionerUnavailable,
)
from bastion.testing.manual_clock import ManualClock
from tests.fuzz.http_messages import answer_head, answered
from tests.fuzz.mangling import Form
from tests.fuzz.target import Target
from tests.support.gang_documents import CASES, NAME

_DOING = operation("west", "list", "/api/v1/namespaces/training/pods")
_WRITING = operation("west", "create", "/api/v1/namespaces/training/pods", name="x")


def _gang(data: bytes) -> None:
    document = json.loads(data)
    if not isinstance(document, dict):
        raise ValueError("an API server lists objects")
    read = [
        [shrink(item) for item in documents.mappings(document.get(kind))]
        for kind, shrink in (
            ("jobsets", seen.jobset),
            ("jobs", seen.job),
            ("pods", seen.pod),
            ("workloads", kueue.shrink),
        )
    ]
    jobsets, jobs, pods, found = read
    if not (jobsets or jobs or pods):
        return
    parts = Parts(
        jobset=jobsets[0] if jobsets else None,
        jobs=jobs,
        pods=pods,
        now=1.8e9,
        waited=lambda pod: 400.0,
        not_created=Word("FailedCreate", "denied") if len(data) % 3 == 0 else None,
        workload=found[0] if found else None,
        without_kueue=len(data) % 5 == 0,
    )
    gang_status(NAME, "k8s:west", parts)
    for item in documents.mappings(document.get("jobsets")):
        seen.manager(item)


def _watch(data: bytes) -> None:
    objects = WatchedObjects(seen.pod)
    for event in LineStream(answered(data), _DOING):
        if event.get("type") == "ERROR":
            raise explain_event(event.get("object") or {}, _DOING)
        objects.apply(event)


class _Pool:
    def __init__(self) -> None:
        self.data = b""

    def request(self, *_: object, **__: object) -> urllib3.HTTPResponse:
        return answered(self.data)


class _Session:
    server = "https://cluster"

    def __init__(self) -> None:
        self.pool = _Pool()

    def headers(self, *, seconds: float) -> dict[str, str]:
        return {}

    def close(self) -> None:
        pass


def _api_answer(data: bytes) -> None:
    from bastion.adapters.kubernetes.api import KubernetesApi

    session = _Session()
    session.pool.data = data
    api = KubernetesApi.__new__(KubernetesApi)
    api.cluster, api._remedy = "west", "it is tried again"
    api._transport = Transport(lambda: session, clock=ManualClock())  # type: ignore[arg-type, return-value]
    for method, path in (("GET", "/api/v1/pods/x"), ("POST", "/api/v1/pods"), ("DELETE", "/api/v1/pods/x")):
        try:
            api._transport.send(method, path, _DOING if method == "GET" else _WRITING)
        except ProvisionerError:  # noqa: PERF203 - each is tried
            continue
    head, body = answer_head(data)
    for doing in (_DOING, _WRITING):
        assert isinstance(
            explain(head.status, body, doing, retry_after=head.headers.get("Retry-After")), ProvisionerError
        )
    session.pool.data = data if b'"continue"' not in data else b"{}"
    api.list_each("/api/v1/namespaces/t/pods", lambda item: WatchedObjects(seen.pod).entry(item), limit=5)


def _gangs() -> Sequence[bytes]:
    made = []
    for _, make in CASES.values():
        case = make()
        document = {
            "jobsets": [case.jobset] if case.jobset else [],
            "jobs": case.jobs,
            "pods": case.pods,
            "workloads": [case.workload] if case.workload else [],
        }
        made.append(json.dumps(document).encode())
    return made


def _pods() -> list[dict[str, Any]]:
    pods = CASES["running"][1]().pods
    for number, pod in enumerate(pods):
        pod["metadata"]["resourceVersion"] = str(number + 1)
    return pods


def _events() -> Sequence[bytes]:
    kinds = ("ADDED", "MODIFIED", "DELETED", "BOOKMARK")
    lines = [json.dumps({"type": kind, "object": pod}) for kind, pod in zip(kinds, _pods(), strict=False)]
    gone = {"kind": "Status", "status": "Failure", "reason": "Expired", "code": 410, "message": "too old"}
    lines.append(json.dumps({"type": "ERROR", "object": gone}))
    return ["\n".join([*lines[:4], ""]).encode(), (lines[4] + "\n").encode()]


def _api_answers() -> Sequence[bytes]:
    status = {
        "kind": "Status",
        "code": 403,
        "reason": "Forbidden",
        "details": {"kind": "pods", "name": "x", "causes": [], "retryAfterSeconds": 1},
        "message": 'pods is forbidden: User "u" cannot list resource "pods" in API group ""',
    }
    head = b"HTTP/1.1 %d X\r\nContent-Type: application/json\r\n%s\r\n"
    return [
        head % (200, b"")
        + json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "7"}, "items": _pods()}).encode(),
        head % (403, b"") + json.dumps(status).encode(),
        head % (404, b"") + json.dumps(status | {"code": 404, "reason": "NotFound"}).encode(),
        head % (429, b"Retry-After: 3\r\n") + json.dumps(status | {"code": 429}).encode(),
        head % (409, b"") + json.dumps(status | {"code": 409, "reason": "AlreadyExists"}).encode(),
        head % (502, b"") + b"<html>bad gateway</html>",
    ]


_API_SERVER = (ProvisionerUnavailable, ProvisionerError)
TARGETS = (
    Target(name="cluster-objects", parse=_gang, errors=(ValueError, RecursionError), seeds=_gangs),
    Target(name="cluster-watch", parse=_watch, errors=(*_API_SERVER, UnknownEvent), seeds=_events, form=Form.LINES),
    Target(name="cluster-answer", parse=_api_answer, errors=_API_SERVER, seeds=_api_answers, form=Form.HTTP),
)
