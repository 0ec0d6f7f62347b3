"""The end of every upload: compare what the service stored with what was sent, and show it to the client."""

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

    `envelope` is as stored, without checksums; `edge` is after the last segment.
    """

    envelope: Envelope
    key: bytes = field(repr=False)
    edge: Edge
    plain_size: int


def confirm(call: Call, resource: Mapping[str, Any], edge: Edge, plain_size: int) -> None:
    """Compare what the service stored with what was sent, up to the `edge` after the last segment.

    Raises Refusal (502) if it differs, after deleting it.
    """
    stored = (str(resource.get("size")), resource.get("crc32c"))
    if stored == (str(sealed_size(plain_size)), crc32c_text(edge.sealed_crc32c)):
        return
    bucket, name, generation = call.route.bucket, str(resource.get("name")), str(resource.get("generation"))
    _log.error("the service stored different bytes of %s/%r than were sent; deleting them", bucket, name)
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
        "The storage service stored different bytes than were sent. "
        + ("They were deleted; upload the object again." if deleted else "They could not be deleted; upload it again."),
    )


def described_by(call: Call, envelope: Envelope, key: bytes, crc32c: int, size: int) -> Envelope:
    summed = call.parts.envelopes.with_sums(envelope, key, crc32c)
    return summed if summed.size else call.parts.envelopes.with_size(summed, key, size)


def finished(call: Call, resource: Json, sealed: Sealed, *, md5: bytes | None) -> Json:
    """Finish a session upload: compare, add the plaintext's checksum and size to the metadata, and return what to show.

    Without permission to change objects the upload still succeeds, because the object is complete and readable; later
    answers lack the checksum.

    Args:
        resource: The service's answer.
        md5: As the client declared.

    Raises Refusal (502) if the service stored something else.
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
    """Add metadata; return the resource, or None if that failed."""
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
    """The present state of an object that an upload created.

    A session keeps showing the state at the upload's end, without the checksum that was added later.
    """
    pin = {"generation": str(resource.get("generation"))}
    target = object_target(call.route.bucket, str(resource.get("name")), call.request.query, pin)
    try:
        return accepted(call.ask(method="GET", target=target, headers=identity_headers(call)))
    except Declined as error:
        # The client may have permission to create objects but not to read them.
        error.answer.close()
    except UpstreamUnavailable as error:
        _log.warning("%s is shown as it was when its upload ended: %s", call.route.bucket, error)
    return resource


def shown(call: Call, resource: Json, md5: bytes | None) -> Json:
    """The resource as the client sees it, with the md5 that the proxy compared."""
    document = plain_resource(call.parts, resource)
    if md5 is not None:
        document["md5Hash"] = binascii.b2a_base64(md5, newline=False).decode()
    return document


def answered(resource: Json, fields: str) -> Response:
    """The JSON API's answer to an upload, with the selected fields (empty: all)."""
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
