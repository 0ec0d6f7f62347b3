"""Bucket and project methods of the JSON API.

A bucket has no settings: a client's settings are accepted and dropped.
"""

from __future__ import annotations

from bastion.emulators.gcs.calls import Call
from bastion.emulators.gcs.json_resources import Json, bucket_json
from bastion.emulators.gcs.resources import NoSuchBucket
from bastion.emulators.gcs.storage_errors import not_served
from bastion.net.http1 import Response
from bastion.storage_wire.documents import text_field
from bastion.storage_wire.refusals import not_allowed, required

_PAGE_MAX = 1000
_POLICY_ETAG = "CAE="


def buckets(call: Call) -> Response:
    """Answer a request for `/b`."""
    match call.method:
        case "GET" | "HEAD":
            return _list(call)
        case "POST":
            name = text_field(call.document(), "name")
            if not name:
                raise required("name")
            call.buckets.create(name)
            return call.answer(bucket_json(name, call.base))
        case _:
            raise not_allowed(call.method, call.request.path)


def _list(call: Call) -> Response:
    if call.parameters.flag("softDeleted"):
        return call.answer({"kind": "storage#buckets"})
    prefix = call.parameters.get("prefix")
    after = call.parameters.get("pageToken")
    size = min(call.parameters.number("maxResults") or _PAGE_MAX, _PAGE_MAX)
    names = sorted(name for name in call.buckets.names() if name.startswith(prefix) and name > after)
    document: Json = {"kind": "storage#buckets", "items": [bucket_json(name, call.base) for name in names[:size]]}
    if len(names) > size:
        document["nextPageToken"] = names[size - 1]
    return call.answer(document)


def one_bucket(call: Call, name: str) -> Response:
    """Answer a request for `/b/BUCKET`."""
    call.buckets.open(name)
    call.parameters.preconditions()
    match call.method:
        case "GET" | "HEAD":
            if call.parameters.flag("softDeleted"):
                raise NoSuchBucket(f"{name}: this endpoint does not keep deleted buckets")
            return call.answer(bucket_json(name, call.base))
        case "PATCH" | "PUT":
            call.document()
            return call.answer(bucket_json(name, call.base))
        case "DELETE":
            call.buckets.delete(name)
            return Response(status=204)
        case _:
            raise not_allowed(call.method, call.request.path)


def bucket_part(call: Call, name: str, part: str) -> Response:
    """Answer a request for `/b/BUCKET/PART`, other than objects."""
    call.buckets.open(name)
    match (call.method, part):
        case ("GET", "storageLayout"):
            return call.answer(
                {
                    "kind": "storage#storageLayout",
                    "bucket": name,
                    "location": "US",
                    "locationType": "multi-region",
                    "hierarchicalNamespace": {"enabled": False},
                }
            )
        case ("GET", "iam"):
            return call.answer(_policy(name, {}))
        case ("PUT", "iam"):
            return call.answer(_policy(name, call.document()))
        case ("GET", "iam/testPermissions"):
            return call.answer(
                {"kind": "storage#testIamPermissionsResponse", "permissions": call.parameters.all("permissions")}
            )
        case _:
            raise not_served(call.method, call.request.path)


def _policy(bucket: str, document: Json) -> Json:
    bindings = document.get("bindings")
    return {
        "kind": "storage#policy",
        "resourceId": f"projects/_/buckets/{bucket}",
        "version": 1,
        "etag": _POLICY_ETAG,
        "bindings": bindings if isinstance(bindings, list) else [],
    }


def service_account(call: Call, project: str) -> Response:
    """Answer `GET /projects/PROJECT/serviceAccount`."""
    return call.answer(
        {
            "kind": "storage#serviceAccount",
            "email_address": f"service-{project}@gs-project-accounts.iam.gserviceaccount.com",
        }
    )
