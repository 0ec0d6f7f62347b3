"""Answer requests to the storage service: choose the handler, and translate errors.

Invariants: a request that names no mapped bucket passes through untouched. Any other is understood, or refused with 501
before its body is read. No failure falls back to plaintext.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from bastion.core.errors import KmsRefused, KmsUnavailable
from bastion.net.http1 import Request, Response
from bastion.proxy import batches, changes, copies, listings, resources
from bastion.proxy.calls import Call, Parts
from bastion.proxy.reads import downloads, xml_reading
from bastion.proxy.routes import Action, Route, route
from bastion.proxy.sealed.envelope import EnvelopeBroken
from bastion.proxy.sealed.sealing import SealBroken
from bastion.proxy.service.upstream import UpstreamUnavailable
from bastion.proxy.uploads import json_uploads, xml_uploads
from bastion.storage_wire.query import Query
from bastion.storage_wire.refusals import Refusal, as_json, as_text, as_xml, invalid

_log = logging.getLogger(__name__)

Handler = Callable[[Request], Response]

_ANSWERS: dict[Action, Callable[[Call], Response]] = {
    Action.LIST: listings.list_objects,
    Action.DESCRIBE: resources.describe,
    Action.READ: downloads.read,
    Action.CHANGE: changes.change,
    Action.REPLACE: changes.replace,
    Action.DELETE: Call.pass_on_alone,
    Action.UPLOAD: json_uploads.upload,
    Action.INSERT_EMPTY: json_uploads.insert_empty,
    Action.COPY: copies.copy,
    Action.REWRITE: copies.rewrite,
    Action.XML_READ: xml_reading.read,
    Action.XML_UPLOAD: xml_uploads.upload,
    Action.XML_DELETE: Call.pass_on_alone,
}
# These pass with encryption off. UPLOAD decides itself, because an upload that began encrypted must continue so.
_WHOLE_UPLOADS = frozenset({Action.INSERT_EMPTY, Action.XML_UPLOAD})
# The path names the object, so the mapped prefix is checked here.
_OF_ONE_OBJECT = frozenset(
    {Action.DESCRIBE, Action.READ, Action.CHANGE, Action.REPLACE, Action.XML_READ, Action.XML_UPLOAD}
)


# Statuses that make clients follow Location, some with the body.
_REDIRECTS = (300, 301, 302, 303, 305, 307, 308)


def handler(parts: Parts) -> Handler:
    """Return the handler of requests to the storage hosts; thread-safe."""

    def answer(request: Request) -> Response:
        render: Callable[[Refusal], Response] = as_json
        try:
            query = Query(request.query)
            found = route(request.method, request.authority, request.path, query, request.headers)
            render = _rendering(found)
            return _answer(Call(request=request, route=found, query=query, parts=parts))
        except Refusal as refusal:
            return render(refusal)
        except (EnvelopeBroken, SealBroken, KmsRefused) as error:
            _log.error("%s %s: %s", request.method, request.path, error)
            return render(_broken(error))
        except (KmsUnavailable, UpstreamUnavailable) as error:
            _log.warning("%s %s: %s", request.method, request.path, error)
            return render(Refusal(503, "backendError", str(error), code="ServiceUnavailable"))

    def _answer(call: Call) -> Response:
        found = call.route
        if found.action is Action.BATCH:
            return batches.answer(call, answer)
        if found.action is Action.NOT_UNDERSTOOD and not found.buckets:
            raise _not_understood(found)
        if found.action is Action.PASS or not any(map(call.parts.mapping.covers, found.buckets)):
            _check_passing(call)
            return call.pass_on()
        if found.action is Action.NOT_UNDERSTOOD:
            raise _not_understood(found)
        if found.action in _WHOLE_UPLOADS and not call.parts.encrypt:
            return call.pass_on()
        if found.action in _OF_ONE_OBJECT and call.parts.mapping.key_for(found.bucket, found.name) is None:
            _check_passing(call)
            return call.pass_on()
        return _kept_here(_ANSWERS[found.action](call))

    return answer


def _check_passing(call: Call) -> None:
    """Refuse a pass-through request that could change a mapped bucket (501) or names a sealed upload (400).

    The service identifies an upload by its name alone, whatever the path says.
    """
    if call.parts.encrypt and any(map(call.parts.mapping.covers, call.route.suspects)):
        raise _not_understood(replace(call.route, why="a path that names an encrypted bucket at another host"))
    if any(map(call.parts.resumables.is_sealed, call.query.all("upload_id"))):
        raise invalid("This upload was started for an encrypted bucket; use that bucket's path.")


def _kept_here(response: Response) -> Response:
    """Return the response. Refuse (502) a redirect, which could leak plaintext or return foreign data."""
    if response.status in _REDIRECTS and "location" in response.headers:
        response.close()
        raise Refusal(
            502,
            "backendError",
            "The storage service answered with a redirect, which the encrypting proxy does not follow.",
        )
    return response


def _rendering(found: Route) -> Callable[[Refusal], Response]:
    if found.is_xml:
        return as_xml
    return as_text if found.action is Action.READ else as_json


def _not_understood(found: Route) -> Refusal:
    return Refusal(
        501,
        "notImplemented",
        f"The encrypting proxy does not support {found.why} for an encrypted bucket. See docs/reference/proxy.md.",
    )


def _broken(error: Exception) -> Refusal:
    if isinstance(error, KmsRefused):
        return Refusal(403, "forbidden", str(error), code="AccessDenied")
    return Refusal(400, "ciphertextInvalid", str(error))
