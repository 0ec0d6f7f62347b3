"""The proxy's handler in front of the storage endpoint's, in one process and without a socket."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from bastion.adapters.kms import keyring
from bastion.emulators.gcs.api import handler as endpoint_handler
from bastion.emulators.gcs.buckets import Buckets
from bastion.emulators.gcs.uploads import Uploads
from bastion.net.http1 import Body, BodyTruncated, BytesBody, FileSlice, Headers, Request, Response
from bastion.proxy.calls import Parts
from bastion.proxy.handler import handler
from bastion.proxy.objects import KnownObjects
from bastion.proxy.sealed.envelopes import Envelopes
from bastion.proxy.service.upstream import Asked, UpstreamUnavailable
from bastion.proxy.settings import KeyMapping
from bastion.proxy.uploads.resumables import Resumables
from bastion.testing.manual_clock import ManualClock

HOST = "storage.googleapis.com"
KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"


class PieceBody(Body):
    """A request's body from an iterable, as the connection would bring it."""

    def __init__(self, pieces: Iterable[bytes], length: int | None) -> None:
        super().__init__(length)
        self._pieces = iter(pieces)
        self._rest = b""
        self._left = length
        self._ended = length == 0

    @property
    def finished(self) -> bool:
        return self._ended

    def receive(self, max_bytes: int) -> bytes:
        while not self._rest and not self._ended:
            piece = next(self._pieces, None)
            self._rest = piece or b""
            if piece is None:
                self._ended = True
                if self._left:
                    raise BodyTruncated
        piece, self._rest = self._rest[:max_bytes], self._rest[max_bytes:]
        if self._left is not None:
            self._left -= len(piece)
            self._ended = self._left == 0
        return piece


class InProcessAnswer:
    """A handler's response as an upstream answer; `break_after` bytes of its body it breaks off."""

    def __init__(self, response: Response, *, bodiless: bool, break_after: int | None = None) -> None:
        self.status, self.headers = response.status, response.headers
        self.reason = response.reason
        data = body_of(response)
        if bodiless:
            if "content-length" not in self.headers:
                self.headers.set("Content-Length", str(len(data)))
            data = b""
        self.length: int | None = len(data)
        self._data = memoryview(data)
        self._break_after = break_after
        self._read = 0
        self.closed = False

    @property
    def content(self) -> bytes:
        """The whole body, read or not."""
        return bytes(self._data)

    def replace(self, content: bytes) -> None:
        """Puts another body in its place; to be done before it is read."""
        self._data = memoryview(content)
        self.length = len(content)

    @property
    def position(self) -> int:
        """Bytes of the body that have been read."""
        return self._read

    def read(self, size: int = -1) -> bytes:
        end = len(self._data) if size < 0 else min(len(self._data), self._read + size)
        if self._break_after is not None and end > self._break_after:
            raise UpstreamUnavailable("the connection broke off")
        piece = bytes(self._data[self._read : end])
        self._read = end
        return piece

    def readinto(self, view: memoryview, /) -> int:
        piece = self.read(len(view))
        view[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self.closed = True


class InProcessUpstream:
    """The endpoint's handler as the storage service.

    Attributes:
        asked: Every request that was sent, with its whole body.
        answers: Every answer that was given, to see that each was closed.
        before: Called with each request before the endpoint sees it; may raise, may return a response instead.
        after: Called with the request and the endpoint's answer; may raise, may change it.
        cut: After so many bytes of a request's body the connection to the endpoint breaks; None: it does not.
    """

    def __init__(self, answer: Callable[[Request], Response]) -> None:
        self._answer = answer
        self.asked: list[tuple[Asked, bytes]] = []
        self.answers: list[InProcessAnswer] = []
        self.before: Callable[[Asked], Response | None] = lambda asked: None
        self.after: Callable[[Asked, InProcessAnswer], None] = lambda asked, answer: None
        self.cut: Callable[[Asked], int | None] = lambda asked: None
        self.break_after: int | None = None

    def ask(self, asked: Asked) -> InProcessAnswer:
        path, _, query = asked.target.partition("?")
        seen: list[bytes] = []
        broken: list[Exception] = []
        left = self.cut(asked)

        def noted(pieces: Iterable[bytes | memoryview]) -> Iterable[bytes]:
            nonlocal left
            try:
                for piece in pieces:
                    seen.append(bytes(piece))
                    yield seen[-1][:left]
                    if left is not None and (left := left - len(piece)) <= 0:
                        raise BodyTruncated
            except Exception as error:
                broken.append(error)
                raise BodyTruncated from error

        body: Body
        if not isinstance(asked.body, bytes):
            body = PieceBody(noted(asked.body), asked.length)
        elif left is None:
            seen.append(asked.body)
            body = BytesBody(asked.body)
        else:
            body = PieceBody(noted([asked.body]), len(asked.body))
        request = Request(
            method=asked.method, target=asked.target, path=path, query=query, headers=asked.headers, body=body,
            authority=asked.authority, secure=True,
        )  # fmt: skip
        try:
            instead = self.before(asked)
            response = self._answer(request) if instead is None else instead
        except BodyTruncated as error:
            if broken and left is None:
                raise broken[0] from None
            raise UpstreamUnavailable("the body was cut short") from error
        finally:
            self.asked.append((asked, b"".join(seen)))
        answer = InProcessAnswer(response, bodiless=asked.method == "HEAD", break_after=self.break_after)
        self.after(asked, answer)
        self.answers.append(answer)
        return answer


class Stage:
    """A proxy before an endpoint with the buckets `vault` (mapped), `attic` (mapped below `deep/`) and
    `lake` (not mapped).

    Attributes:
        upstream: What the proxy asks.
        parts: The proxy's.
    """

    def __init__(self, folder: Path, *, encrypt: bool = True, allow_plaintext: bool = False) -> None:
        self._folder = folder
        buckets = Buckets(folder / "buckets")
        for name in ("vault", "attic", "lake"):
            buckets.create(name)
        self._endpoint = endpoint_handler(buckets, Uploads(buckets))
        self.upstream = InProcessUpstream(self._endpoint)
        self.keyring_file = folder / "keyring.json"
        keyring.create(self.keyring_file, KEY)
        self.clock = ManualClock()
        self._flags = {"encrypt": encrypt, "allow_plaintext": allow_plaintext}
        self.restart()

    def restart(self, **flags: bool) -> None:
        """Another proxy process takes over: nothing that was in memory is known any more."""
        self._flags |= flags
        self.kms = keyring.KeyringKms(self.keyring_file)
        self.parts = Parts(
            mapping=KeyMapping.parse(f"vault:{KEY},attic/deep:{KEY}"),
            envelopes=Envelopes(self.kms, clock=self.clock),
            objects=KnownObjects(),
            resumables=Resumables(self._folder / "uploads"),
            upstream=self.upstream,
            **self._flags,
        )
        self._proxy = handler(self.parts)

    def ask(
        self, method: str, target: str, body: object = b"", *, host: str = HOST, headers: Iterable[tuple[str, str]] = ()
    ) -> Response:
        """One request through the proxy; a body that is neither bytes nor a `Body` is sent as JSON."""
        return self._proxy(_request(method, target, body, host, headers))

    def ask_endpoint(
        self, method: str, target: str, body: object = b"", *, host: str = HOST, headers: Iterable[tuple[str, str]] = ()
    ) -> Response:
        """One request past the proxy: what the bucket's provider sees."""
        return self._endpoint(_request(method, target, body, host, headers))

    def put(self, name: str, data: bytes, *, bucket: str = "vault", query: str = "") -> dict[str, Any]:
        """Stores an object through the proxy, as simple media; returns it as it is shown."""
        target = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={quote(name, safe='')}{query}"
        return document(self.ask("POST", target, data, headers=[("Content-Type", "application/x-test")]))

    def get(self, name: str, *, bucket: str = "vault", headers: Iterable[tuple[str, str]] = ()) -> Response:
        """An object's bytes through the proxy."""
        return self.ask("GET", f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}?alt=media", headers=headers)

    def content(self, name: str, *, bucket: str = "vault") -> bytes:
        response = self.get(name, bucket=bucket)
        assert response.status == 200, body_of(response)
        return body_of(response)

    def stored(self, name: str, *, bucket: str = "vault") -> tuple[dict[str, Any], bytes]:
        """An object as it lies in the bucket: resource and bytes."""
        path = f"/storage/v1/b/{bucket}/o/{quote(name, safe='')}"
        return document(self.ask_endpoint("GET", path)), body_of(self.ask_endpoint("GET", f"{path}?alt=media"))

    def forget_asked(self) -> None:
        self.upstream.asked.clear()

    @property
    def requests(self) -> list[str]:
        """`METHOD /path?query` of what was asked upstream since `forget_asked`."""
        return [f"{asked.method} {asked.target}" for asked, _ in self.upstream.asked]


def _request(method: str, target: str, body: object, host: str, headers: Iterable[tuple[str, str]]) -> Request:
    path, _, query = target.partition("?")
    if not isinstance(body, Body):
        body = BytesBody(body if isinstance(body, bytes) else json.dumps(body).encode())
    return Request(
        method=method, target=target, path=path, query=query, headers=Headers(headers), body=body, authority=host,
        secure=True,
    )  # fmt: skip


def body_of(response: Response) -> bytes:
    """All bytes of a response; what breaks in it is raised here. Closes it."""
    try:
        body = response.body
        if isinstance(body, FileSlice):
            return os.pread(body.descriptor, body.length, body.start)
        return body if isinstance(body, bytes) else b"".join(map(bytes, body))
    finally:
        response.close()


def document(response: Response, status: int = 200) -> dict[str, Any]:
    """The JSON object of a response that has that status."""
    data = body_of(response)
    assert response.status == status, (response.status, data)
    found = json.loads(data)
    assert isinstance(found, dict)
    return found


def reason(response: Response) -> tuple[int, str]:
    """Status and reason of a refusal."""
    return response.status, json.loads(body_of(response))["error"]["errors"][0]["reason"]


def crc32c_text(data: bytes) -> str:
    import google_crc32c

    return base64.b64encode(google_crc32c.value(data).to_bytes(4, "big")).decode()
