"""What the tests of the proxy's uploads share: bodies of requests, and a look behind the seal without the proxy."""

from __future__ import annotations

import json
import random
from typing import Any

from bastion.adapters.keyring import KeyringKms
from bastion.proxy.envelope import Envelope
from bastion.proxy.envelopes import Envelopes
from bastion.proxy.sealing import Sealing
from bastion.proxy.segments import HEADER_BYTES, SEGMENT_BYTES
from tests.unit.proxy_stage import Stage

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
