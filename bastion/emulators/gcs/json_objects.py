"""The object methods of the JSON API, except `insert`."""

from __future__ import annotations

import base64
import contextlib
import json
from collections.abc import Callable

from bastion.emulators.gcs.buckets import Source
from bastion.emulators.gcs.calls import Call
from bastion.emulators.gcs.json_resources import WRITABLE, Json, attributes_of, etag, object_json, patched
from bastion.emulators.gcs.media import download, object_headers
from bastion.emulators.gcs.parameters import Parameters, check_tags
from bastion.emulators.gcs.resources import Attributes, ConditionFailed, NoSuchObject, ObjectResource, Preconditions
from bastion.net.http1 import Response
from bastion.storage_wire.json_fields import names, projection
from bastion.storage_wire.query import natural_number
from bastion.storage_wire.refusals import Refusal, invalid, not_allowed

_PAGE_MAX = 1000
_COMPOSE_MAX = 32
_REWRITE_QUANTUM_BYTES = 1024 * 1024


def one_object(call: Call, bucket: str, name: str) -> Response:
    """Answer a request for `/b/BUCKET/o/OBJECT`."""
    match call.method:
        case "GET" | "HEAD":
            if call.parameters.get("alt") == "media":
                return get_media(call, bucket, name)
            return _get(call, bucket, name)
        case "PATCH":
            document = call.document()
            return _change(call, bucket, name, lambda present: patched(present, document))
        case "PUT":
            replacement = attributes_of(call.document())
            return _change(call, bucket, name, lambda _: replacement)
        case "DELETE":
            call.buckets.open(bucket).delete(
                name, call.parameters.preconditions(), generation=call.parameters.number("generation")
            )
            return Response(status=204)
        case _:
            raise not_allowed(call.method, call.request.path)


def _get(call: Call, bucket: str, name: str) -> Response:
    _check_live(call, bucket, name)
    resource = call.buckets.open(bucket).stat(name, generation=call.parameters.number("generation"))
    _check_reading(call, resource)
    return call.answer_object(resource)


def get_media(call: Call, bucket: str, name: str) -> Response:
    _check_live(call, bucket, name)
    opened = call.buckets.open(bucket).open(name, generation=call.parameters.number("generation"))
    try:
        _check_reading(call, opened.resource)
        headers = object_headers(opened.resource, etag(opened.resource))
        return download(call.request, opened, headers)
    finally:
        opened.close()


def _check_live(call: Call, bucket: str, name: str) -> None:
    """Refuse reads of soft-deleted objects, which this endpoint does not keep."""
    if call.parameters.flag("softDeleted"):
        call.buckets.open(bucket)
        raise NoSuchObject(f"No such object: {bucket}/{name}: this endpoint does not keep deleted objects")


def _check_reading(call: Call, resource: ObjectResource) -> None:
    call.parameters.preconditions().check(resource)
    check_tags(call.request.headers, etag(resource))


def _change(call: Call, bucket: str, name: str, change: Callable[[Attributes], Attributes]) -> Response:
    resource = call.buckets.open(bucket).patch(
        name, change, call.parameters.preconditions(), generation=call.parameters.number("generation")
    )
    return call.answer_object(resource)


def list_objects(call: Call, bucket: str) -> Response:
    """Answer `GET /b/BUCKET/o`."""
    parameters = call.parameters
    page_size = parameters.number("maxResults") or _PAGE_MAX
    _check_delimiter(parameters)
    opened = call.buckets.open(bucket)
    if parameters.flag("softDeleted"):
        return call.answer({"kind": "storage#objects"})
    page = opened.list(
        prefix=parameters.get("prefix"),
        delimiter=parameters.get("delimiter"),
        start_offset=parameters.get("startOffset"),
        end_offset=parameters.get("endOffset"),
        page_token=parameters.get("pageToken"),
        page_size=min(page_size, _PAGE_MAX),
        include_trailing_delimiter=parameters.flag("includeTrailingDelimiter"),
        match_glob=parameters.get("matchGlob"),
    )
    document: Json = {"kind": "storage#objects"}
    if page.next_page_token:
        document["nextPageToken"] = page.next_page_token
    if page.prefixes:
        document["prefixes"] = list(page.prefixes)
    if page.items:
        only = _wanted_of_items(parameters.get("fields"))
        document["items"] = [object_json(resource, call.base, only) for resource in page.items]
    return call.answer(document)


def _check_delimiter(parameters: Parameters) -> None:
    delimiter = parameters.get("delimiter")
    if parameters.get("matchGlob") and delimiter not in ("", "/"):
        raise invalid("A listing with matchGlob must have the delimiter '/' or none.")
    if parameters.flag("includeFoldersAsPrefixes") and delimiter != "/":
        raise invalid("A listing with includeFoldersAsPrefixes must have the delimiter '/'.")


def _wanted_of_items(fields: str) -> frozenset[str] | None:
    """The fields of items that a listing needs; None: all."""
    wanted = projection(fields)
    return None if wanted is None or "*" in wanted else names(wanted.get("items", {}))


def compose(call: Call, bucket: str, name: str) -> Response:
    """Answer `POST /b/BUCKET/o/OBJECT/compose`."""
    document = call.document()
    given = document.get("sourceObjects")
    if not isinstance(given, list) or not given:
        raise Refusal(400, "required", "Required: sourceObjects, the components to compose.")
    if len(given) > _COMPOSE_MAX:
        raise invalid(f"The number of source components provided ({len(given)}) exceeds the maximum ({_COMPOSE_MAX})")
    destination = document.get("destination") or {}
    if not isinstance(destination, dict):
        raise invalid("The value of destination must be an object.")
    resource = call.buckets.open(bucket).compose(
        name,
        [_source(item) for item in given],
        attributes_of(destination),
        call.parameters.preconditions(),
    )
    return call.answer_object(resource)


def _source(item: object) -> Source:
    if not isinstance(item, dict) or not isinstance(item.get("name"), str) or not item["name"]:
        raise Refusal(400, "required", "Required: a name for every source object.")
    demanded = item.get("objectPreconditions") or {}
    if not isinstance(demanded, dict):
        raise invalid("The value of objectPreconditions must be an object.")
    return Source(
        name=item["name"],
        generation=_optional_number(item, "generation"),
        generation_match=_optional_number(demanded, "ifGenerationMatch"),
    )


def _optional_number(document: Json, name: str) -> int | None:
    value = document.get(name)
    return None if value is None else natural_number(name, str(value))


def copy_to(call: Call, source: tuple[str, str], destination: tuple[str, str]) -> Response:
    """Answer `POST /b/B/o/O/copyTo/b/B/o/O`."""
    resource = _copy(call, source, destination, call.document())
    return call.answer_object(resource)


def _copy(call: Call, source: tuple[str, str], destination: tuple[str, str], document: Json) -> ObjectResource:
    replaces = any(name in document for name in (*WRITABLE, "metadata") if name != "storageClass")
    source_bucket = call.buckets.open(source[0])
    return call.buckets.open(destination[0]).copy(
        source_bucket,
        source[1],
        destination[1],
        attributes_of(document) if replaces else None,
        call.parameters.preconditions(),
        source_generation=call.parameters.number("sourceGeneration"),
        source_preconditions=call.parameters.source_preconditions(),
    )


def move_to(call: Call, bucket: str, source: str, name: str) -> Response:
    """Answer `POST /b/BUCKET/o/OBJECT/moveTo/o/OBJECT`: copy, then delete the source.

    Unlike in the service this is not atomic: both exist for a moment. A source that is rewritten meanwhile stays.
    """
    if source == name:
        raise invalid("The source and the destination of a move are the same object.")
    opened = call.buckets.open(bucket)
    present = opened.stat(source)
    resource = opened.copy(
        opened,
        source,
        name,
        None,
        call.parameters.preconditions(),
        source_generation=present.generation,
        source_preconditions=call.parameters.source_preconditions(),
    )
    with contextlib.suppress(ConditionFailed, NoSuchObject):
        opened.delete(source, Preconditions(generation_match=present.generation))
    return call.answer_object(resource)


def rewrite_to(call: Call, source: tuple[str, str], destination: tuple[str, str]) -> Response:
    """Answer `POST /b/B/o/O/rewriteTo/b/B/o/O`.

    One call copies everything. With `maxBytesRewrittenPerCall` the last call does, after answers like the service's.
    """
    document = call.document()
    parameters = call.parameters
    token = parameters.get("rewriteToken")
    limit = parameters.number("maxBytesRewrittenPerCall")
    if limit is not None and (limit == 0 or limit % _REWRITE_QUANTUM_BYTES):
        raise invalid(f"maxBytesRewrittenPerCall must be a multiple of {_REWRITE_QUANTUM_BYTES}.")
    present = call.buckets.open(source[0]).stat(source[1], generation=parameters.number("sourceGeneration"))
    rewritten = _rewritten_so_far(token, present)
    if limit is not None and present.size - rewritten > limit:
        rewritten += limit
        return call.answer(
            {
                "kind": "storage#rewriteResponse",
                "totalBytesRewritten": str(rewritten),
                "objectSize": str(present.size),
                "done": False,
                "rewriteToken": _rewrite_token(present, rewritten),
            }
        )
    resource = _copy(call, source, destination, document)
    return call.answer(
        {
            "kind": "storage#rewriteResponse",
            "totalBytesRewritten": str(resource.size),
            "objectSize": str(resource.size),
            "done": True,
            "resource": object_json(resource, call.base),
        }
    )


def _rewrite_token(source: ObjectResource, rewritten: int) -> str:
    return base64.urlsafe_b64encode(json.dumps([source.generation, rewritten]).encode()).decode()


def _rewritten_so_far(token: str, source: ObjectResource) -> int:
    if not token:
        return 0
    try:
        generation, rewritten = json.loads(base64.urlsafe_b64decode(token.encode()))
    except (ValueError, TypeError, RecursionError) as error:
        raise invalid("The rewriteToken is not valid.") from error
    if generation != source.generation or not isinstance(rewritten, int):
        raise invalid("The rewriteToken belongs to another generation of the source.")
    return rewritten
