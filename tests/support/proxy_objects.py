"""Objects that lie in the stage's buckets without having been uploaded through the proxy: sealed here, or plain."""

from __future__ import annotations

import array
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from bastion.proxy.sealed.envelope import Envelope
from bastion.proxy.sealed.sealing import Sealing
from tests.support.proxy_stage import KEY, Stage, document
from tests.support.sealed_objects import seal

SEGMENT = 262144
# Bytes of plaintext in the first segment, and in each of the others.
FIRST, INNER = SEGMENT - 56, SEGMENT - 16


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A stage; in the end every answer of the service must have been closed."""
    made = Stage(tmp_path)
    yield made
    assert [asked.target for (asked, _), answer in zip(made.upstream.asked, made.upstream.answers, strict=False)
            if not answer.closed] == []  # fmt: skip


def content(length: int) -> bytes:
    """Bytes of which no two segments are alike."""
    words = array.array("I", range(-(-length // 4)))
    words.byteswap()
    return words.tobytes()[:length]


def put_raw(stage: Stage, resource: Mapping[str, Any], data: bytes, *, bucket: str = "vault") -> dict[str, Any]:
    """Stores bytes and attributes past the proxy; returns the resource as the provider sees it."""
    body = b"".join(
        (
            b"--edge\r\nContent-Type: application/json\r\n\r\n",
            json.dumps(resource).encode(),
            b"\r\n--edge\r\nContent-Type: application/x-test\r\n\r\n",
            data,
            b"\r\n--edge--\r\n",
        )
    )
    return document(
        stage.ask_endpoint(
            "POST",
            f"/upload/storage/v1/b/{bucket}/o?uploadType=multipart",
            body,
            headers=[("Content-Type", "multipart/related; boundary=edge")],
        )
    )


def envelope_for(
    stage: Stage, name: str, data: bytes, *, bucket: str = "vault", sums: bool = True
) -> tuple[Envelope, bytes]:
    """An envelope for an object, and the sealed bytes."""
    envelope, key = stage.parts.envelopes.new(KEY, bucket, name)
    if sums:
        envelope = stage.parts.envelopes.with_sums(envelope, key, google_crc32c.value(data))
    return envelope, seal(Sealing(key, envelope.header), data)


def store(
    stage: Stage,
    name: str,
    data: bytes,
    *,
    bucket: str = "vault",
    sums: bool = True,
    encoding: str = "",
    metadata: Mapping[str, str] | None = None,
    **attributes: str,
) -> dict[str, Any]:
    """Stores an encrypted object; returns the resource as the provider sees it."""
    envelope, sealed = envelope_for(stage, name, data, bucket=bucket, sums=sums)
    entries = envelope.to_metadata()
    if encoding:
        entries["gcsproxy-content-encoding"] = encoding
    resource = {"name": name, "metadata": {**(metadata or {}), **entries}, **attributes}
    return put_raw(stage, resource, sealed, bucket=bucket)
