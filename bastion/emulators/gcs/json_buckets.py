"""Bucket and project methods of the JSON API.

Settings in `_KEPT` are kept and shown, and have no effect; others are accepted and dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bastion.emulators.gcs.calls import Call
from bastion.emulators.gcs.iam.permissions import Action
from bastion.emulators.gcs.iam.rules import Rules
from bastion.emulators.gcs.json_resources import Json, bucket_json
from bastion.emulators.gcs.resources import NoSuchBucket
from bastion.emulators.gcs.storage_errors import not_served
from bastion.net.http1 import Response
from bastion.storage_wire.documents import text_field
from bastion.storage_wire.refusals import Refusal, not_allowed, required

_PAGE_MAX = 1000
_KEPT = (
    "defaultEventBasedHold",
    "iamConfiguration",
    "lifecycle",
    "retentionPolicy",
    "softDeletePolicy",
    "versioning",
)
_BOOLEANS = frozenset({"defaultEventBasedHold"})
_NAMES: Mapping[type, str] = {bool: "a boolean", dict: "an object"}


def buckets(call: Call) -> Response:
    """Answer a request for `/b`."""
    match call.method:
        case "GET" | "HEAD":
            return _list(call)
        case "POST":
            document = call.document()
            name = text_field(document, "name")
            if not name:
                raise required("name")
            given = _settings(document)
            call.buckets.create(name, project=call.parameters.get("project"))
            return call.answer(bucket_json(name, call.base, _changed(call, name, given)))
        case _:
            raise not_allowed(call.method, call.request.path)


def _list(call: Call) -> Response:
    if call.parameters.flag("softDeleted"):
        return call.answer({"kind": "storage#buckets"})
    prefix = call.parameters.get("prefix")
    after = call.parameters.get("pageToken")
    size = min(call.parameters.number("maxResults") or _PAGE_MAX, _PAGE_MAX)
    names = sorted(name for name in call.buckets.names() if name.startswith(prefix) and name > after)
    document: Json = {"kind": "storage#buckets", "items": [_shown(call, name) for name in names[:size]]}
    if len(names) > size:
        document["nextPageToken"] = names[size - 1]
    return call.answer(document)


def one_bucket(call: Call, name: str) -> Response:
    """Answer a request for `/b/BUCKET`."""
    opened = call.buckets.open(name)
    call.parameters.preconditions()
    match call.method:
        case "GET" | "HEAD":
            opened.need(Action.GET_BUCKET)
            if call.parameters.flag("softDeleted"):
                raise NoSuchBucket(f"{name}: this endpoint does not keep deleted buckets")
            return call.answer(_shown(call, name))
        case "PATCH" | "PUT":
            opened.need(Action.UPDATE_BUCKET)
            return call.answer(bucket_json(name, call.base, _changed(call, name, _settings(call.document()))))
        case "DELETE":
            call.buckets.delete(name)
            return Response(status=204)
        case _:
            raise not_allowed(call.method, call.request.path)


def _shown(call: Call, name: str) -> Json:
    return bucket_json(name, call.base, call.buckets.open(name).rules().settings)


def _settings(document: Json) -> Json:
    """The settings in a document that are kept. Raises Refusal if one has the wrong type."""
    given = {key: document[key] for key in _KEPT if key in document}
    for key, value in given.items():
        expected = bool if key in _BOOLEANS else dict
        if value is not None and not isinstance(value, expected):
            raise Refusal(400, "invalid", f"The value of {key} must be {_NAMES[expected]}.")
    return given


def _changed(call: Call, name: str, given: Json) -> Json:
    """Keep the settings, each as a whole; null takes one away."""
    if not given:
        return call.buckets.open(name).rules().settings

    def changed(rules: Rules) -> Rules:
        merged = {**rules.settings, **given}
        return replace(rules, settings={key: value for key, value in merged.items() if value is not None})

    return call.buckets.open(name).change_rules(changed).settings


def bucket_part(call: Call, name: str, part: str) -> Response:
    """Answer a request for `/b/BUCKET/PART`, other than objects, policies and managed folders."""
    opened = call.buckets.open(name)
    match (call.method, part):
        case ("GET", "storageLayout"):
            opened.need(Action.GET_STORAGE_LAYOUT, call.parameters.get("prefix"))
            return call.answer(
                {
                    "kind": "storage#storageLayout",
                    "bucket": name,
                    "location": "US",
                    "locationType": "multi-region",
                    "hierarchicalNamespace": {"enabled": False},
                }
            )
        case _:
            raise not_served(call.method, call.request.path)


def service_account(call: Call, project: str) -> Response:
    """Answer `GET /projects/PROJECT/serviceAccount`."""
    call.buckets.need(Action.GET_SERVICE_ACCOUNT)
    return call.answer(
        {
            "kind": "storage#serviceAccount",
            "email_address": f"service-{project}@gs-project-accounts.iam.gserviceaccount.com",
        }
    )
