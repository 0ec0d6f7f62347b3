"""Dispatch requests of the XML API. The bucket is the path's first segment, or the host's first label."""

from __future__ import annotations

from urllib.parse import quote

from bastion.emulators.gcs import sessions
from bastion.emulators.gcs.calls import Call
from bastion.emulators.gcs.iam.permissions import Action
from bastion.emulators.gcs.json_resources import instant
from bastion.emulators.gcs.media import download
from bastion.emulators.gcs.resources import NoSuchObject, NotPermitted, Preconditions, StorageError
from bastion.emulators.gcs.storage_errors import not_served, permission_message
from bastion.emulators.gcs.xml_documents import Element, document, read
from bastion.emulators.gcs.xml_headers import (
    attributes_of,
    check_reading,
    etag,
    preconditions,
    resource_headers,
    stored_headers,
)
from bastion.emulators.gcs.xml_listing import list_buckets, list_objects
from bastion.emulators.gcs.xml_multipart_calls import MULTIPART_PARAMETERS, list_uploads, multipart
from bastion.net.http1 import Headers, Response
from bastion.storage_wire.declared_sums import declared_in_headers
from bastion.storage_wire.query import decoded, natural_number
from bastion.storage_wire.refusals import Refusal, not_allowed
from bastion.storage_wire.unfinished import incomplete

_VIRTUAL_HOST = ".storage.googleapis.com"
# Sub-resources of the service that this endpoint lacks.
_SUBRESOURCES = (
    *("acl", "tagging", "compose", "cors", "lifecycle", "versioning", "policy", "logging", "website", "billing"),
    *("encryption", "storageClass", "retention", "legal-hold", "object-lock", "defaultObjectAcl", "versions"),
)
_DELETE_MAX = 1000


def answer(call: Call) -> Response:
    """Answer a request. Raises Refusal or StorageError."""
    bucket, name = _place(call)
    for subresource in _SUBRESOURCES:
        if subresource in call.parameters:
            raise not_served(call.method, f"{call.request.path}?{subresource}")
    if not bucket:
        if call.method not in ("GET", "HEAD"):
            raise not_allowed(call.method, call.request.path)
        return list_buckets(call)
    if not name:
        return _bucket(call, bucket)
    if any(parameter in call.parameters for parameter in MULTIPART_PARAMETERS):
        return multipart(call, bucket, name)
    if "upload_id" in call.parameters:
        return _session(call)
    return _object(call, bucket, name)


def _place(call: Call) -> tuple[str, str]:
    path = call.request.path.removeprefix("/")
    host = call.request.authority.rpartition(":")[0] or call.request.authority
    if host.endswith(_VIRTUAL_HOST):
        return host.removesuffix(_VIRTUAL_HOST), decoded(path)
    bucket, _, name = path.partition("/")
    return decoded(bucket), decoded(name)


def _bucket(call: Call, bucket: str) -> Response:
    if call.method == "PUT":
        call.buckets.create(bucket, project=call.request.headers.get("x-goog-project-id"))
        return Response(status=200)
    opened = call.buckets.open(bucket)
    match call.method:
        case "GET" if "uploads" in call.parameters:
            return list_uploads(call, bucket)
        case "GET" if "location" in call.parameters:
            opened.need(Action.GET_BUCKET)
            return document("LocationConstraint", "US")
        case "GET":
            return list_objects(call, bucket)
        case "HEAD":
            opened.need(Action.GET_BUCKET)
            return Response(status=200)
        case "DELETE":
            call.buckets.delete(bucket)
            return Response(status=204)
        case "POST" if "delete" in call.parameters:
            return _delete_many(call, opened.name)
        case "POST":
            raise not_served("POST (a form upload)", call.request.path)
        case _:
            raise not_allowed(call.method, call.request.path)


def _delete_many(call: Call, bucket: str) -> Response:
    tree = read(call.small_body(), "Delete")
    opened = call.buckets.open(bucket)
    wanted = [(item.findtext("Key", ""), item.findtext("VersionId", "")) for item in tree.iter("Object")]
    if len(wanted) > _DELETE_MAX:
        raise Refusal(400, "invalid", f"More than {_DELETE_MAX} objects.", code="MalformedXML")
    quiet = tree.findtext("Quiet", "") == "true"
    children: list[Element] = []
    for name, version in wanted:
        generation = natural_number("VersionId", version) if version else None
        try:
            opened.delete(name, Preconditions(), generation=generation)
        except NoSuchObject:
            pass  # As in the service, deleting nothing succeeds.
        except NotPermitted as error:
            message = permission_message(error)
            children.append(("Error", [("Key", name), ("Code", "AccessDenied"), ("Message", message)]))
            continue
        except StorageError as error:
            children.append(("Error", [("Key", name), ("Code", "InvalidArgument"), ("Message", str(error))]))
            continue
        if not quiet:
            children.append(("Deleted", [("Key", name)]))
    return document("DeleteResult", children)


def _object(call: Call, bucket: str, name: str) -> Response:
    headers = call.request.headers
    match call.method:
        case "GET":
            return _get(call, bucket, name)
        case "HEAD":
            return _head(call, bucket, name)
        case "PUT" if "x-goog-copy-source" in headers or "x-amz-copy-source" in headers:
            return _copy(call, bucket, name)
        case "PUT":
            return _put(call, bucket, name)
        case "DELETE":
            call.buckets.open(bucket).delete(
                name, preconditions(headers), generation=call.parameters.number("generation")
            )
            return Response(status=204)
        case "POST" if headers.get("x-goog-resumable").lower() == "start":
            return _begin(call, bucket, name)
        case "POST":
            raise not_served("POST (a form upload)", call.request.path)
        case _:
            raise not_allowed(call.method, call.request.path)


def _get(call: Call, bucket: str, name: str) -> Response:
    opened = call.buckets.open(bucket).open(name, generation=call.parameters.number("generation"))
    try:
        check_reading(call.request.headers, opened.resource)
        return download(call.request, opened, resource_headers(opened.resource))
    finally:
        opened.close()


def _head(call: Call, bucket: str, name: str) -> Response:
    resource = call.buckets.open(bucket).stat(name, generation=call.parameters.number("generation"))
    check_reading(call.request.headers, resource)
    headers = resource_headers(resource)
    if resource.attributes.content_encoding:
        headers.add("Content-Encoding", resource.attributes.content_encoding)
    headers.add("Content-Length", str(resource.size))
    return Response(status=200, headers=headers)


def _put(call: Call, bucket: str, name: str) -> Response:
    headers = call.request.headers
    opened = call.buckets.open(bucket)
    with opened.stage() as staging:
        for piece in call.request.body.pieces():
            staging.write(piece)
        resource = opened.commit(
            name, staging, attributes_of(headers), preconditions(headers), declared=declared_in_headers(headers)
        )
    return Response(status=200, headers=stored_headers(resource))


def _copy(call: Call, bucket: str, name: str) -> Response:
    headers = call.request.headers
    given = headers.get("x-goog-copy-source") or headers.get("x-amz-copy-source")
    source_bucket, _, source = given.removeprefix("/").partition("/")
    generation = headers.get("x-goog-copy-source-generation")
    directive = headers.get("x-goog-metadata-directive") or headers.get("x-amz-metadata-directive")
    resource = call.buckets.open(bucket).copy(
        call.buckets.open(decoded(source_bucket)),
        decoded(source),
        name,
        attributes_of(headers) if directive.upper() == "REPLACE" else None,
        preconditions(headers),
        source_generation=natural_number("x-goog-copy-source-generation", generation) if generation else None,
        source_preconditions=preconditions(headers, "x-goog-copy-source-"),
    )
    answer = document("CopyObjectResult", [("ETag", etag(resource)), ("LastModified", instant(resource.updated))])
    for field, value in stored_headers(resource).items():
        if field != "ETag":
            answer.headers.add(field, value)
    return answer


def _begin(call: Call, bucket: str, name: str) -> Response:
    headers = call.request.headers
    attributes = attributes_of(headers)
    upload_id = call.uploads.begin(
        bucket, name, attributes, preconditions(headers), declared=declared_in_headers(headers), caller=call.caller
    )
    address = f"{call.base}{quote(call.request.path, safe='/%')}?upload_id={upload_id}"
    return Response(
        status=201, headers=Headers((("Location", address), ("X-GUploader-UploadID", upload_id))), reason="Created"
    )


def _session(call: Call) -> Response:
    upload_id = call.parameters.get("upload_id")
    match call.method:
        case "PUT" | "POST":
            progress = sessions.advance(call.uploads, upload_id, call.request)
            if progress.resource is None:
                return incomplete(progress.persisted)
            return Response(status=200, headers=stored_headers(progress.resource))
        case "DELETE":
            call.uploads.find(upload_id).cancel()
            return sessions.cancelled()
        case _:
            raise not_allowed(call.method, call.request.path)
