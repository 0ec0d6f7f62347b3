"""`PUT` of an object through the XML API, translated into an insert of the JSON API.

Headers become a resource and a query. An unknown header that could matter is refused, because it would be lost.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import urlencode

from bastion.net.http1 import Headers, Response
from bastion.proxy.calls import Call
from bastion.proxy.sealed.sealed_stream import Plaintext
from bastion.proxy.service.intercepted import bucket_in, is_storage, split_authority
from bastion.proxy.service.targets import insert_target
from bastion.proxy.uploads.service_sessions import Declined, explained
from bastion.proxy.uploads.storing import store
from bastion.proxy.uploads.upload_description import described
from bastion.storage_wire.query import Query
from bastion.storage_wire.refusals import Refusal

_JSON_HOST = "storage.googleapis.com"
_METADATA = ("x-goog-meta-", "x-amz-meta-")
_FIELDS = {
    "cache-control": "cacheControl",
    "content-disposition": "contentDisposition",
    "content-encoding": "contentEncoding",
    "content-language": "contentLanguage",
    "content-type": "contentType",
    "x-goog-custom-time": "customTime",
    "x-goog-storage-class": "storageClass",
}
_PARAMETERS = {
    "x-goog-encryption-kms-key-name": "kmsKeyName",
    "x-goog-if-generation-match": "ifGenerationMatch",
    "x-goog-if-metageneration-match": "ifMetagenerationMatch",
}
_ACLS = {
    "private": "private",
    "project-private": "projectPrivate",
    "public-read": "publicRead",
    "authenticated-read": "authenticatedRead",
    "bucket-owner-read": "bucketOwnerRead",
    "bucket-owner-full-control": "bucketOwnerFullControl",
}
# Headers that are equal in both APIs, or irrelevant for the object.
_KEPT = frozenset(
    (
        *("x-goog-api-client", "x-goog-encryption-algorithm", "x-goog-encryption-key"),
        *("x-goog-encryption-key-sha256", "x-goog-gcs-idempotency-token", "x-goog-hash", "x-goog-request-params"),
        *("x-goog-request-reason", "x-goog-user-project"),
    )
)
_DROPPED = frozenset(["x-goog-acl", "x-goog-api-version", "x-goog-date"])
# Headers that make a write conditional.
_CONDITIONS = frozenset(["if-match", "if-none-match", "if-modified-since", "if-unmodified-since"])
_QUERY_KEPT = ("userProject",)
_QUERY_DROPPED = ("x-id",)


def upload(call: Call) -> Response:
    """Answer `PUT` of an object in a mapped place.

    Raises Refusal: 501 if a header or parameter is unknown; else the service's error, or why it was not asked.
    KmsUnavailable and KmsRefused: the service was not asked. UpstreamUnavailable: the result is unknown.
    """
    _check(call)
    headers = call.request.headers
    insert = _insert(call)
    description = described(_resource(headers), insert.query, headers, content_type="")
    body = call.request.body
    try:
        stored = store(insert, description, Plaintext(body=body, length=body.length), length=body.length)
    except Declined as error:
        raise explained(error) from error
    return Response(status=200, headers=_stored_headers(stored))


def _check(call: Call) -> None:
    """Raise Refusal (501) if this translation would lose something."""
    headers = call.request.headers
    for lower in [name.lower() for name, _ in headers.items()]:
        vendor = lower.startswith(("x-goog-", "x-amz-"))
        known = lower in _KEPT or lower in _DROPPED or lower in _FIELDS or lower in _PARAMETERS
        if lower in _CONDITIONS or (vendor and not known and not lower.startswith(_METADATA)):
            raise _not_understood(f"the header {lower}")
    for item in call.request.query.split("&"):
        name = item.partition("=")[0]
        if name and name not in (*_QUERY_KEPT, *_QUERY_DROPPED):
            raise _not_understood(f"the parameter {name[:80]!r} of the XML API")


def _not_understood(what: str) -> Refusal:
    return Refusal(
        501,
        "notImplemented",
        f"The encrypting proxy does not support {what} for an encrypted bucket. Use the JSON API.",
    )


def _insert(call: Call) -> Call:
    """The equivalent call of the JSON API."""
    request = call.request
    parameters = {"uploadType": "media", "name": call.route.name}
    for header, parameter in _PARAMETERS.items():
        if value := request.headers.get(header).strip():
            parameters[parameter] = value
    if acl := request.headers.get("x-goog-acl").strip():
        if acl not in _ACLS:
            raise _not_understood("this value of x-goog-acl")
        parameters["predefinedAcl"] = _ACLS[acl]
    for name in _QUERY_KEPT:
        if name in call.query:
            parameters[name] = call.query.get(name)
    query = urlencode(parameters)
    target = insert_target(call.route.bucket, query)
    insert = replace(
        request,
        method="POST",
        target=target,
        path=target.partition("?")[0],
        query=query,
        headers=_json_headers(request.headers),
        authority=_json_authority(request.authority),
    )
    return replace(call, request=insert, query=Query(query))


def _json_authority(authority: str) -> str:
    """The host of the JSON API. Hosts that name a bucket, and older ones, serve the XML API only."""
    bucket = bucket_in(split_authority(authority)[0])
    host = authority[len(bucket) + 1 :] if bucket else authority
    return host if host.startswith("storage.") or not is_storage(split_authority(host)[0]) else _JSON_HOST


def _json_headers(headers: Headers) -> Headers:
    """The headers with the same meaning in both APIs."""
    translated = {*_FIELDS, *_PARAMETERS, *_DROPPED}
    return Headers(
        (name, value)
        for name, value in headers.items()
        if name.lower() not in translated and not name.lower().startswith(_METADATA)
    )


def _resource(headers: Headers) -> dict[str, Any]:
    resource: dict[str, Any] = {}
    metadata: dict[str, str] = {}
    for name, value in headers.items():
        lower = name.lower()
        if lower in _FIELDS:
            resource[_FIELDS[lower]] = _text(value)
        for prefix in _METADATA:
            if lower.startswith(prefix):
                metadata[lower.removeprefix(prefix)] = _text(value)
    if metadata:
        resource["metadata"] = metadata
    return resource


def _text(value: str) -> str:
    """A header's value, decoded as UTF-8 if possible."""
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def _stored_headers(resource: dict[str, Any]) -> Headers:
    """The answer's headers about the new object, in terms of its plaintext."""
    headers = Headers(
        (
            ("Content-Type", "text/html; charset=UTF-8"),
            ("ETag", f'"{resource.get("etag", "")}"'),
            ("x-goog-generation", str(resource.get("generation"))),
            ("x-goog-metageneration", str(resource.get("metageneration"))),
            ("x-goog-stored-content-encoding", str(resource.get("contentEncoding") or "identity")),
            ("x-goog-stored-content-length", str(resource.get("size"))),
        )
    )
    for name, field in (("crc32c", "crc32c"), ("md5", "md5Hash")):
        if resource.get(field):
            headers.add("x-goog-hash", f"{name}={resource[field]}")
    return headers
