"""The end of every upload: what the service stored is compared with what was sent, and shown to the client.

Layer: proxy.
"""

from __future__ import annotations

import binascii
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from bastion.net.http1 import Headers, Response
from bastion.proxy.calls import Call
from bastion.proxy.resources import plain_resource
from bastion.proxy.sealed.envelope import Envelope
from bastion.proxy.sealed.sealed_stream import Edge
from bastion.proxy.sealed.segments import sealed_size
from bastion.proxy.service.targets import object_target
from bastion.proxy.service.upstream import UpstreamUnavailable
from bastion.proxy.uploads.service_sessions import Declined, Json, accepted, identity_headers
from bastion.storage_wire.declared_sums import crc32c_text
from bastion.storage_wire.json_fields import projected, projection
from bastion.storage_wire.refusals import Refusal

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sealed:
    """An object that was sealed and sent.

    Attributes:
        envelope: That was stored, without checksums.
        edge: After the last segment.
        plain_size: In bytes.
    """

    envelope: Envelope
    key: bytes = field(repr=False)
    edge: Edge
    plain_size: int


def confirm(call: Call, resource: Mapping[str, Any], edge: Edge, plain_size: int) -> None:
    """Holds what the service stored against what was sent; what differs is deleted.

    Args:
        edge: After the last segment.

    Raises:
        Refusal: 502, the service stored something else.
    """
    stored = (str(resource.get("size")), resource.get("crc32c"))
    if stored == (str(sealed_size(plain_size)), crc32c_text(edge.sealed_crc32c)):
        return
    bucket, name, generation = call.route.bucket, str(resource.get("name")), str(resource.get("generation"))
    _log.error("the service stored other bytes of %s/%r than were sent; they are deleted", bucket, name)
    deleted = False
    if generation.isdecimal() and resource.get("name"):
        target = object_target(bucket, name, call.request.query, {"generation": generation})
        try:
            answer = call.ask(method="DELETE", target=target, headers=identity_headers(call))
            deleted = answer.status in (200, 204, 404)
            answer.close()
        except UpstreamUnavailable:
            pass
    raise Refusal(
        502,
        "backendError",
        "The storage service stored other bytes than were sent. "
        + ("They were deleted; upload the object again." if deleted else "They could not be deleted; upload it again."),
    )


def described_by(call: Call, envelope: Envelope, key: bytes, crc32c: int, size: int) -> Envelope:
    """The envelope with what is known of a plaintext at its end."""
    summed = call.parts.envelopes.with_sums(envelope, key, crc32c)
    return summed if summed.size else call.parts.envelopes.with_size(summed, key, size)


def finished(call: Call, resource: Json, sealed: Sealed, *, md5: bytes | None) -> Json:
    """The end of an upload through a session: compares, and adds the plaintext's checksum and size to the metadata.

    That needs the right to change objects, which a client that may only create them lacks. The object is whole
    and readable without it, so the upload succeeds all the same; later answers then lack the checksum.

    Args:
        resource: As the service answered.
        md5: That the client declared.

    Returns:
        The resource as the client sees it.

    Raises:
        Refusal: 502, the service stored something else.
    """
    confirm(call, resource, sealed.edge, sealed.plain_size)
    known = sealed.envelope.to_metadata()
    summed = described_by(call, sealed.envelope, sealed.key, sealed.edge.plain_crc32c, sealed.plain_size)
    entries = {name: value for name, value in summed.to_metadata().items() if known.get(name) != value}
    changed = _changed(call, resource, entries)
    if changed is None:
        changed = {**resource, "metadata": {**(resource.get("metadata") or {}), **entries}}
    return shown(call, changed, md5)


def _changed(call: Call, resource: Json, entries: Mapping[str, str]) -> Json | None:
    """The resource with further metadata; None: that could not be."""
    generation = str(resource.get("generation"))
    pins = {
        "generation": generation,
        "ifGenerationMatch": generation,
        "ifMetagenerationMatch": str(resource.get("metageneration")),
    }
    target = object_target(call.route.bucket, str(resource.get("name")), call.request.query, pins)
    headers = identity_headers(call)
    headers.set("Content-Type", "application/json; charset=UTF-8")
    body = json.dumps({"metadata": entries}).encode()
    try:
        return accepted(call.ask(method="PATCH", target=target, headers=headers, body=body))
    except Declined as error:
        error.answer.close()
        said = f"the service answered {error.answer.status}"
    except UpstreamUnavailable as error:
        said = str(error)
    _log.warning("%s is stored without its checksum: %s", call.route.bucket, said)
    return None


def current(call: Call, resource: Json) -> Json:
    """An object that an upload has ended in, as it is by now: a session goes on saying what it was at its end, which
    lacks the checksum that was added after that.

    Args:
        resource: As the session says.
    """
    pin = {"generation": str(resource.get("generation"))}
    target = object_target(call.route.bucket, str(resource.get("name")), call.request.query, pin)
    try:
        return accepted(call.ask(method="GET", target=target, headers=identity_headers(call)))
    except Declined as error:
        # Who may create objects need not be allowed to look at them.
        error.answer.close()
    except UpstreamUnavailable as error:
        _log.warning("%s is shown as it was when its upload ended: %s", call.route.bucket, error)
    return resource


def shown(call: Call, resource: Json, md5: bytes | None) -> Json:
    """The resource as the client sees it, with an md5 if the client declared it: then it was compared."""
    document = plain_resource(call.parts, resource)
    if md5 is not None:
        document["md5Hash"] = binascii.b2a_base64(md5, newline=False).decode()
    return document


def answered(resource: Json, fields: str) -> Response:
    """The answer of the JSON API to an upload.

    Args:
        fields: As the client asked for them; empty: all.
    """
    headers = Headers(
        (
            ("Content-Type", "application/json; charset=UTF-8"),
            ("Cache-Control", "no-cache, no-store, max-age=0, must-revalidate"),
        )
    )
    if resource.get("etag"):
        headers.add("ETag", str(resource["etag"]))
    document = projected(resource, projection(fields))
    return Response(status=200, headers=headers, body=json.dumps(document, separators=(",", ":")).encode())
