"""A request with what is needed to answer it, and JSON answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from bastion.emulators.gcs.buckets import Buckets
from bastion.emulators.gcs.json_resources import etag, object_json
from bastion.emulators.gcs.parameters import Parameters
from bastion.emulators.gcs.resources import ObjectResource
from bastion.emulators.gcs.uploads import Uploads
from bastion.emulators.gcs.xml_multipart import MultipartUploads
from bastion.net.http1 import Headers, Request, Response
from bastion.storage_wire.documents import json_document
from bastion.storage_wire.json_fields import names, projected, projection
from bastion.storage_wire.refusals import Refusal

_DOCUMENT_MAX_BYTES = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A request to the endpoint.

    Attributes:
        base: Scheme and authority as the client sees them; links and session addresses begin with it.
        buckets: As the caller has them.
        caller: The principal; "" for anonymous callers, and where the endpoint has no table of identities.
    """

    request: Request
    method: str
    parameters: Parameters
    base: str
    buckets: Buckets
    caller: str
    uploads: Uploads
    multipart_uploads: MultipartUploads

    def document(self) -> dict[str, Any]:
        """The request's body as a JSON object; {} for an empty body."""
        return json_document(self.small_body())

    def small_body(self) -> bytes:
        """The body of a request that describes something; an object's bytes may be larger."""
        body = self.request.body.read(_DOCUMENT_MAX_BYTES + 1)
        if len(body) > _DOCUMENT_MAX_BYTES:
            raise Refusal(413, "uploadTooLarge", f"The body is larger than {_DOCUMENT_MAX_BYTES} bytes.")
        return body

    def answer(self, document: dict[str, Any], *, status: int = 200, etag: str = "") -> Response:
        """A JSON answer, reduced to the selected `fields`."""
        if "fields" in self.parameters:
            document = projected(document, projection(self.parameters.get("fields")))
        return json_response(document, status=status, etag=etag)

    def answer_object(self, resource: ObjectResource) -> Response:
        """An object as the answer, computing the selected fields only."""
        wanted = projection(self.parameters.get("fields"))
        document = object_json(resource, self.base, names(wanted))
        return json_response(projected(document, wanted), etag=etag(resource))


def json_response(document: dict[str, Any], *, status: int = 200, etag: str = "") -> Response:
    headers = Headers(
        (
            ("Content-Type", "application/json; charset=UTF-8"),
            ("Cache-Control", "no-cache, no-store, max-age=0, must-revalidate"),
        )
    )
    if etag:
        headers.add("ETag", etag)
    return Response(status=status, headers=headers, body=json.dumps(document, separators=(",", ":")).encode())
