"""Plain requests to a Kubernetes API server, and objects that it accepts."""

from __future__ import annotations

import contextlib
import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import urlencode, urlsplit

Object = dict[str, Any]

MERGE = "application/merge-patch+json"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
JOB_SETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"

_SECONDS = 20


class Target(Protocol):
    """Where an API server listens."""

    @property
    def server(self) -> str: ...
    @property
    def token(self) -> str: ...
    @property
    def ca_file(self) -> str: ...


class Requests:
    """Sends requests, each on a connection of its own."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._context = ssl.create_default_context(cafile=target.ca_file)

    def connect(self) -> http.client.HTTPSConnection:
        address = urlsplit(self._target.server)
        return http.client.HTTPSConnection(
            address.hostname or "", address.port, timeout=_SECONDS, context=self._context
        )

    def send(
        self, method: str, path: str, body: object = None, *, media: str = "application/json", **query: str
    ) -> tuple[int, Object, Mapping[str, str]]:
        """Code, decoded body and headers (lower case)."""
        with contextlib.closing(self.connect()) as connection:
            self._request(connection, method, path, body, media, query)
            answer = connection.getresponse()
            headers = {name.lower(): value for name, value in answer.getheaders()}
            return answer.status, json.loads(answer.read()), headers

    def ok(
        self, method: str, path: str, body: object = None, *, media: str = "application/json", **query: str
    ) -> Object:
        """The decoded body of a request that succeeds."""
        code, found, _ = self.send(method, path, body, media=media, **query)
        assert code < 300, found
        return found

    @contextlib.contextmanager
    def watch(self, path: str, **query: str) -> Iterator[Iterator[Object]]:
        """The events of a watch, once the server has answered; it ends with the block."""
        with contextlib.closing(self.connect()) as connection:
            self._request(connection, "GET", path, None, "", {"watch": "true", **query})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            yield (json.loads(line) for line in answer)

    def _request(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        body: object,
        media: str,
        query: Mapping[str, str],
    ) -> None:
        target = f"{path}?{urlencode(query)}" if query else path
        headers = {"Authorization": f"Bearer {self._target.token}", **({"Content-Type": media} if media else {})}
        connection.request(method, target, None if body is None else json.dumps(body), headers)


def config_map(name: str, **data: str) -> Object:
    return {"metadata": {"name": name}, "data": data}


def pod(name: str, **metadata: object) -> Object:
    return {
        "metadata": {"name": name, **metadata},
        "spec": {"restartPolicy": "Never", "containers": [{"name": "host", "image": "example.test/image:1"}]},
    }


def job_set(name: str) -> Object:
    template = {"completions": 1, "parallelism": 1, "template": {"spec": pod(name)["spec"]}}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [{"name": "slice", "template": {"spec": template}}]},
    }
