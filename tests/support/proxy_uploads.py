"""What the tests of the proxy's uploads share: bodies of requests, and a look behind the seal without the proxy."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from bastion.adapters.kms.keyring import KeyringKms
from bastion.net.http1 import Response
from bastion.proxy.sealed.envelope import Envelope
from bastion.proxy.sealed.envelopes import Envelopes
from bastion.proxy.sealed.sealing import Sealing
from bastion.proxy.sealed.segments import HEADER_BYTES, SEGMENT_BYTES, plain_capacity
from bastion.proxy.service.upstream import Asked, UpstreamUnavailable
from tests.support.proxy_stage import Stage, body_of

# Bytes of plaintext of the first segment, and of any other that is whole.
FIRST = plain_capacity(0)
WHOLE = plain_capacity(1)
KIB = 1024
MIB = 1024 * KIB
INSERT = "/upload/storage/v1/b/vault/o"


def noise(size: int, seed: int = 0) -> bytes:
    """Bytes in which nothing repeats; the same for the same seed."""
    return random.Random(seed).randbytes(size)


def multipart(
    resource: dict[str, Any], data: bytes, *, content_type: str = "application/x-test"
) -> tuple[list[tuple[str, str]], bytes]:
    """Headers and body of a multipart upload."""
    head = f"--=cut=\r\nContent-Type: application/json\r\n\r\n{json.dumps(resource)}\r\n--=cut=\r\n"
    body = f"{head}Content-Type: {content_type}\r\n\r\n".encode() + data + b"\r\n--=cut=--"
    return [("Content-Type", 'multipart/related; boundary="=cut="')], body


def unsealed(stage: Stage, resource: dict[str, Any], sealed: bytes) -> bytes:
    """The plaintext of an object as it lies in the bucket, read with the keyring and nothing else of ours."""
    envelope = Envelope.from_metadata(resource["metadata"])
    assert envelope is not None
    kms = KeyringKms(stage.keyring_file)
    key = Envelopes(kms, clock=stage.clock).open(envelope, resource["bucket"], resource["name"])
    sealing = Sealing(key, sealed[:HEADER_BYTES])
    assert envelope.header == sealed[:HEADER_BYTES]
    plain = []
    for index in range(-(-len(sealed) // SEGMENT_BYTES)):
        segment = sealed[index * SEGMENT_BYTES : (index + 1) * SEGMENT_BYTES]
        last = (index + 1) * SEGMENT_BYTES >= len(sealed)
        plain.append(sealing.open(index, segment[HEADER_BYTES:] if index == 0 else segment, last=last))
    return b"".join(plain)


class Uploader:
    """A client with a resumable upload of an object named `thing`.

    Attributes:
        target: Where its chunks go.
        received: How much of the plaintext the last answer acknowledged, in bytes.
    """

    def __init__(
        self,
        stage: Stage,
        data: bytes,
        *,
        total: int | None = -1,
        method: str = "PUT",
        name: str = "thing",
        query: str = "",
        headers: list[tuple[str, str]] | None = None,
    ) -> None:
        """
        Args:
            total: What the client says of its size at the beginning; None: nothing; by default the truth.
        """
        self.stage = stage
        self.data = data
        self.received = 0
        self._method = method
        self._total = len(data) if total == -1 else total
        length = [] if self._total is None else [("X-Upload-Content-Length", str(self._total))]
        target = f"{INSERT}?uploadType=resumable&name={name}{query}"
        answer = stage.ask("POST", target, {}, headers=[*length, *(headers or [])])
        assert answer.status == 200, body_of(answer)
        self.target = answer.headers.get("Location").removeprefix("https://storage.googleapis.com")

    def content_range(self, start: int, end: int, *, last: bool = False) -> str:
        total = len(self.data) if last else self._total
        shown = "*" if total is None else str(total)
        return f"bytes {start}-{end - 1}/{shown}" if start < end else f"bytes */{shown}"

    def send(
        self, start: int, end: int, *, last: bool = False, headers: list[tuple[str, str]] | None = None
    ) -> Response:
        """A chunk.

        Args:
            last: Whether the client says now how long all of it is.
        """
        fields = [("Content-Range", self.content_range(start, end, last=last)), *(headers or [])]
        return self._noted(self.stage.ask(self._method, self.target, self.data[start:end], headers=fields))

    def status(self) -> Response:
        return self._noted(self.stage.ask(self._method, self.target, headers=[("Content-Range", "bytes */*")]))

    def asked(self) -> int:
        """From where on the bytes must be sent."""
        self.status()
        return self.received

    def run(self, chunk: int) -> Response:
        """All chunks; the last answer."""
        size = len(self.data)
        while True:
            answer = self.send(self.received, min(size, self.received + chunk))
            if answer.status != 308:
                return answer

    def _noted(self, answer: Response) -> Response:
        if answer.status == 308:
            last = answer.headers.get("Range").rpartition("-")[2]
            self.received = int(last) + 1 if last else 0
        return answer


def sealed_under_one_index(stage: Stage) -> bool:
    """Whether no two different ciphertexts were ever sent for one place of one upload."""
    sent: dict[tuple[str, int], bytes] = {}
    for asked, body in stage.upstream.asked:
        content_range = asked.headers.get("Content-Range")
        if asked.method != "PUT" or not body or "-" not in content_range:
            continue
        offset = int(content_range.split()[1].partition("-")[0])
        for at in range(0, len(body), SEGMENT_BYTES):
            place = asked.target, offset + at
            piece = body[at : at + SEGMENT_BYTES]
            if sent.setdefault(place, piece) != piece:
                return False
    return True


def nothing_stored(stage: Stage) -> bool:
    return stage.ask_endpoint("GET", "/storage/v1/b/vault/o/thing").status == 404


def stored(stage: Stage) -> bytes:
    return unsealed(stage, *stage.stored("thing"))


def notes(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "uploads"
    return sorted(folder.iterdir()) if folder.exists() else []


def failing(stage: Stage, method: str, times: int = 1) -> None:
    """Lets the next requests of that method reach the service, and loses its answers."""
    left = [times]

    def after(asked: Asked, answer: Any) -> None:
        if asked.method == method and asked.body != b"" and left[0]:
            left[0] -= 1
            raise UpstreamUnavailable("the connection broke")

    stage.upstream.after = after


def cutting(stage: Stage, size: int) -> None:
    """Breaks the next request that brings bytes after so many of them."""
    left = [1]

    def cut(asked: Asked) -> int | None:
        if asked.method == "PUT" and asked.body != b"" and left[0]:
            left[0] -= 1
            return size
        return None

    stage.upstream.cut = cut
