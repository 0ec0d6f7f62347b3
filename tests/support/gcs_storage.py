"""Cloud Storage for tests: the endpoint's own handler in this process, with faults, and a note of each request."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client
from requests.adapters import HTTPAdapter

from bastion.adapters.bucket_requests.retry import Patience
from bastion.adapters.gcs import library
from bastion.adapters.gcs.client import prepared
from bastion.adapters.gcs.store import GcsStore
from bastion.emulators.gcs.api import handler
from bastion.emulators.gcs.buckets import Buckets
from bastion.emulators.gcs.fault_rules import FaultRule
from bastion.emulators.gcs.faults import Faults
from bastion.emulators.gcs.uploads import Uploads
from bastion.net.http1 import HttpServer, Request, Response
from bastion.ports import Clock

# Every seventh request or so fails, in each way that a request can.
ALL_FAULTS = (
    FaultRule(fault="lost-reply", percent=4),
    FaultRule(fault="503", percent=3),
    FaultRule(fault="429", percent=2),
    FaultRule(fault="500", percent=1),
    FaultRule(fault="408", percent=1),
    FaultRule(fault="reset", percent=2),
    FaultRule(fault="reset-body", percent=1),
    FaultRule(fault="stall", percent=0.5, seconds=0.5),
    FaultRule(fault="stall", percent=0.5, seconds=0.5, then="drop"),
    FaultRule(fault="slow", percent=1, rate=8 * 1024 * 1024),
)
# The store's patience with the pauses and timeouts of a test; its budget does not end, because the faults do not.
HASTY = Patience(
    connect_seconds=5,
    read_seconds=0.25,
    first_pause_seconds=0.005,
    longest_pause_seconds=0.05,
    spare_retries=1e9,
)
_NUMBER = "X-Request-Number"
_SETTLED_WITHIN = 30.0


class Storage:
    """An endpoint on its own folder.

    Attributes:
        asked: What was asked since `forget`, in order: `media`, `metadata`, `page`, `upload`, `compose`, `delete`.
        targets: The same, as paths with their queries.
        faults: What goes wrong.
        before: Called with each request before it is answered.
    """

    def __init__(self, folder: Path, *, rules: Sequence[FaultRule] = (), seed: int = 0, bare: bool = False) -> None:
        """
        Args:
            bare: Leaves out of its answers what the documentation does not promise, as Google's test bench does.
        """
        self.folder = folder
        self._bare = bare
        self._buckets = Buckets(folder)
        self.faults = Faults(rules, seed=seed)
        self._handler = self.faults.wrap(handler(self._buckets, Uploads(self._buckets)))
        self._server = HttpServer(self._answer)
        self._numbers = itertools.count(1)
        self._given_up: set[str] = set()
        self._handled: set[str] = set()
        self.before: Callable[[Request], None] | None = None
        self.asked: list[str] = []
        self.targets: list[str] = []

    def open(self) -> None:
        self._server.open()
        self.client = self.new_client()

    def close(self) -> None:
        self.client.close()
        self.faults.close()
        self._server.close(grace_seconds=1)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.port}"

    def new_client(self) -> Client:
        client = prepared(
            Client(project=None, credentials=AnonymousCredentials(), client_options={"api_endpoint": self.url})
        )
        library.session_of(client).mount("http://", _Numbered(self._given_up))
        return client

    def new_bucket(self) -> str:
        name = f"bucket-{next(self._numbers)}"
        self._buckets.create(name)
        return name

    def store(
        self, bucket: str, *, clock: Clock | None = None, patience: Patience | None = None, interval: float = 0.0
    ) -> GcsStore:
        return GcsStore(
            bucket,
            client=self.client,
            clock=clock,
            rng=random.Random(bucket),
            write_interval_seconds=interval,
            patience=patience,
        )

    def settle(self) -> None:
        """Wait until the server has handled each request whose client stopped waiting for its answer.

        Such a request may still create an object, also after another try of it and a deletion.
        """
        ends = time.monotonic() + _SETTLED_WITHIN
        while not self._given_up <= self._handled:
            assert time.monotonic() < ends, "a request was never handled"
            time.sleep(0.005)

    def forget(self) -> None:
        self.asked.clear()
        self.targets.clear()

    def _answer(self, request: Request) -> Response:
        self.asked.append(_kind(request))
        self.targets.append(request.target)
        if self.before is not None:
            self.before(request)
        try:
            response = self._handler(request)
        finally:
            self._handled.add(request.headers.get(_NUMBER))
        return _bared(response) if self._bare else response


class _Numbered(HTTPAdapter):
    """Connections that number their requests and add those without an answer in time to a set."""

    _numbers = itertools.count(1)

    def __init__(self, given_up: set[str]) -> None:
        super().__init__(pool_connections=8, pool_maxsize=64)
        self._given_up = given_up

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        request.headers[_NUMBER] = number = str(next(self._numbers))
        try:
            return super().send(request, *args, **kwargs)
        except requests.ReadTimeout:
            self._given_up.add(number)
            raise


def _bared(response: Response) -> Response:
    """The response without Last-Modified, and without sizes of 0."""
    response.headers.remove("Last-Modified")
    if isinstance(response.body, bytes) and response.headers.get("Content-Type").startswith("application/json"):
        response.body = json.dumps(json.loads(response.body, object_hook=_without_zero)).encode()
    return response


def _without_zero(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if (name, value) != ("size", "0")}


def _kind(request: Request) -> str:
    match request.method:
        case "GET" if "alt=media" in request.query:
            return "media"
        case "GET":
            return "page" if request.path.endswith("/o") else "metadata"
        case "POST":
            return "compose" if request.path.endswith("/compose") else "upload"
        case "PUT":
            return "chunk"
        case method:
            return method.lower()
