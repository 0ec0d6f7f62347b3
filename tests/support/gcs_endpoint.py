"""The storage endpoint's handler for tests: asked as a connection would ask it, without a socket."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import google_crc32c

from bastion.emulators.gcs.api import handler
from bastion.emulators.gcs.buckets import Buckets
from bastion.emulators.gcs.iam.access import Access
from bastion.emulators.gcs.iam.identities import Identities
from bastion.emulators.gcs.uploads import Uploads
from bastion.net.http1 import Body, BytesBody, FileSlice, Headers, Request, Response

HOST = "storage.test:4443"
UPLOAD = "/upload/storage/v1/b/lake/o"


class Endpoint:
    """An endpoint with the bucket `lake`.

    Args:
        identities: Who has which token; None: everybody may do everything.

    Attributes:
        buckets: What it serves.
    """

    def __init__(self, folder: Path, *, identities: Identities | None = None) -> None:
        self._folder = folder
        self._access = None if identities is None else Access(identities)
        self.reopen()

    def reopen(self) -> None:
        """Another process takes over."""
        self.buckets = Buckets(self._folder, access=self._access)
        if "lake" not in self.buckets.names():
            self.buckets.create("lake")
        self._answer = handler(self.buckets, Uploads(self.buckets))

    def ask(self, method: str, target: str, body: object = b"", host: str = HOST, **headers: str) -> Response:
        """One request; a body that is neither bytes nor a `Body` is sent as JSON."""
        path, _, query = target.partition("?")
        if not isinstance(body, Body):
            body = BytesBody(body if isinstance(body, bytes) else json.dumps(body).encode())
        return self._answer(
            Request(
                method=method,
                target=target,
                path=path,
                query=query,
                headers=Headers((name.replace("_", "-"), value) for name, value in headers.items()),
                body=body,
                authority=host,
            )
        )

    def put(self, name: str, data: bytes = b"", query: str = "", **headers: str) -> dict[str, Any]:
        """Writes an object, and returns it as it is shown."""
        target = f"{UPLOAD}?uploadType=media&name={quote(name, safe='')}{query}"
        return document(self.ask("POST", target, data, **headers))

    def get(self, name: str, query: str = "") -> dict[str, Any]:
        """An object as it is shown."""
        return document(self.ask("GET", f"/storage/v1/b/lake/o/{quote(name, safe='')}{query}"))

    def begin(self, query: str = "&name=a", resource: dict[str, Any] | None = None, **headers: str) -> str:
        """Begins a resumable upload and returns its session's address without scheme and host."""
        response = self.ask(
            "POST", f"{UPLOAD}?uploadType=resumable{query}", b"" if resource is None else resource, **headers
        )
        assert response.status == 200
        location = response.headers.get("Location")
        assert location.startswith(f"http://{HOST}{UPLOAD}?uploadType=resumable&upload_id=")
        return location.removeprefix(f"http://{HOST}")

    def content(self, target: str = "/storage/v1/b/lake/o/a?alt=media") -> bytes:
        """What a successful GET brings."""
        response = self.ask("GET", target)
        assert response.status == 200
        return body_of(response)

    def exists(self, name: str = "a") -> bool:
        return self.ask("GET", f"/storage/v1/b/lake/o/{name}").status == 200


def body_of(response: Response) -> bytes:
    """All bytes of an answer."""
    body = response.body
    if isinstance(body, FileSlice):
        try:
            return os.pread(body.descriptor, body.length, body.start)
        finally:
            body.close()
    return body if isinstance(body, bytes) else b"".join(body)


def document(response: Response, status: int = 200) -> dict[str, Any]:
    """The JSON object of an answer that has that status."""
    assert (response.status, status) == (status, status), body_of(response)
    found = json.loads(body_of(response))
    assert isinstance(found, dict)
    return found


def reason(response: Response) -> tuple[int, str]:
    """Status and reason of a refusal, which must be whole."""
    found = json.loads(body_of(response))["error"]
    assert found["code"] == response.status
    assert found["message"] == found["errors"][0]["message"] != ""
    assert found["errors"][0]["domain"] == "global"
    return response.status, found["errors"][0]["reason"]


def listed(endpoint: Endpoint, query: str) -> tuple[list[str], list[str]]:
    """Names and prefixes of a listing."""
    found = document(endpoint.ask("GET", f"/storage/v1/b/lake/o?{query}"))
    assert found["kind"] == "storage#objects"
    return [item["name"] for item in found.get("items", ())], found.get("prefixes", [])


def crc32c(data: bytes) -> str:
    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()


def md5(data: bytes) -> str:
    return base64.b64encode(hashlib.md5(data).digest()).decode()
