"""Objects and buckets in the JSON API's form, and what a client sets. Pure. 64-bit numbers are strings."""

from __future__ import annotations

import binascii
import re
import time
from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from bastion.emulators.gcs import etags
from bastion.emulators.gcs.resources import Attributes, ObjectResource
from bastion.storage_wire.declared_sums import crc32c_text
from bastion.storage_wire.documents import text_field
from bastion.storage_wire.refusals import Refusal

Json = dict[str, Any]

DEFAULT_STORAGE_CLASS = "STANDARD"
_LOCATION = "US"
_EPOCH = "1970-01-01T00:00:00.000Z"
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_./~-]*")


@lru_cache(maxsize=4096)
def instant(seconds: float) -> str:
    """RFC 3339 in UTC with milliseconds, like the service's."""
    whole, thousandths = divmod(int(seconds * 1000), 1000)
    year, month, day, hour, minute, second = time.gmtime(whole)[:6]
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{thousandths:03}Z"


def md5_text(md5: bytes) -> str:
    return binascii.b2a_base64(md5, newline=False).decode()


def etag(resource: ObjectResource) -> str:
    """An opaque tag, unique per generation and metageneration."""
    return etags.of_numbers(resource.generation, resource.metageneration)


# JSON names of what a client may set besides custom metadata, and their place in `Attributes`.
WRITABLE = {
    "contentType": "content_type",
    "contentEncoding": "content_encoding",
    "contentDisposition": "content_disposition",
    "contentLanguage": "content_language",
    "cacheControl": "cache_control",
    "storageClass": "storage_class",
    "customTime": "custom_time",
}
_UNSHOWN_WHEN_EMPTY = {name: attribute for name, attribute in WRITABLE.items() if name != "storageClass"}


def _address(resource: ObjectResource) -> str:
    name = resource.name
    # Most names need only this, and a listing has two thousand links.
    escaped = name.replace("/", "%2F") if _PLAIN_NAME.fullmatch(name) else quote(name, safe="")
    return f"storage/v1/b/{resource.bucket}/o/{escaped}"


def _media_link(resource: ObjectResource, base: str) -> str:
    return f"{base}/download/{_address(resource)}?generation={resource.generation}&alt=media"


# How to show each field, given object and link base; None: the object lacks it.
_SHOWN: dict[str, Callable[[ObjectResource, str], Any]] = {
    "kind": lambda _resource, _base: "storage#object",
    "id": lambda resource, _base: f"{resource.bucket}/{resource.name}/{resource.generation}",
    "selfLink": lambda resource, base: f"{base}/{_address(resource)}",
    "mediaLink": _media_link,
    "name": lambda resource, _base: resource.name,
    "bucket": lambda resource, _base: resource.bucket,
    "generation": lambda resource, _base: str(resource.generation),
    "metageneration": lambda resource, _base: str(resource.metageneration),
    "storageClass": lambda resource, _base: resource.attributes.storage_class or DEFAULT_STORAGE_CLASS,
    "size": lambda resource, _base: str(resource.size),
    "crc32c": lambda resource, _base: crc32c_text(resource.crc32c),
    "md5Hash": lambda resource, _base: None if resource.md5 is None else md5_text(resource.md5),
    "componentCount": lambda resource, _base: resource.component_count,
    "etag": lambda resource, _base: etag(resource),
    "timeCreated": lambda resource, _base: instant(resource.time_created),
    "updated": lambda resource, _base: instant(resource.updated),
    "timeStorageClassUpdated": lambda resource, _base: instant(resource.time_created),
    "timeFinalized": lambda resource, _base: instant(resource.time_created),
    "metadata": lambda resource, _base: dict(resource.attributes.metadata) or None,
}


def object_json(resource: ObjectResource, base: str, only: Collection[str] | None = None) -> Json:
    """An object as `storage#object`; `base` begins its links, `only` selects fields (None: all)."""
    document: Json = {
        name: value
        for name, show in _SHOWN.items()
        if (only is None or name in only) and (value := show(resource, base)) is not None
    }
    attributes = resource.attributes
    for name, attribute in _UNSHOWN_WHEN_EMPTY.items():
        if (only is None or name in only) and (value := getattr(attributes, attribute)):
            document[name] = value
    return document


def bucket_json(name: str, base: str, settings: Json) -> Json:
    """A bucket as `storage#bucket`: what clients set, above defaults."""
    return {
        "kind": "storage#bucket",
        "id": name,
        "selfLink": f"{base}/storage/v1/b/{name}",
        "name": name,
        "projectNumber": "0",
        "generation": "1",
        "metageneration": "1",
        "location": _LOCATION,
        "locationType": "multi-region",
        "storageClass": DEFAULT_STORAGE_CLASS,
        "etag": "CAE=",
        "timeCreated": _EPOCH,
        "updated": _EPOCH,
        "iamConfiguration": {
            "uniformBucketLevelAccess": {"enabled": True},
            "bucketPolicyOnly": {"enabled": True},
            "publicAccessPrevention": "inherited",
            **settings.get("iamConfiguration", {}),
        },
        "softDeletePolicy": {"retentionDurationSeconds": "0"},
        **{key: value for key, value in settings.items() if key != "iamConfiguration"},
    }


def attributes_of(document: Json, *, content_type: str = "", content_encoding: str = "") -> Attributes:
    """The attributes that a request's resource sets, with defaults; read-only fields are ignored."""
    values = {attribute: text_field(document, name) for name, attribute in WRITABLE.items() if name in document}
    values["content_type"] = values.get("content_type") or content_type
    values["content_encoding"] = values.get("content_encoding") or content_encoding
    metadata = {key: value for key, value in _metadata_changes(document).items() if value is not None}
    return Attributes(metadata=metadata, **values)


def patched(present: Attributes, document: Json) -> Attributes:
    """Attributes after a patch: null unsets a field, removes a metadata key, or clears all metadata."""
    values = {
        attribute: text_field(document, name) if name in document else getattr(present, attribute)
        for name, attribute in WRITABLE.items()
    }
    metadata = dict(present.metadata)
    if "metadata" in document and document["metadata"] is None:
        metadata = {}
    for key, value in _metadata_changes(document).items():
        if value is None:
            metadata.pop(key, None)
        else:
            metadata[key] = value
    return Attributes(metadata=metadata, **values)


def _metadata_changes(document: Json) -> dict[str, str | None]:
    given = document.get("metadata")
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise Refusal(400, "invalid", "The value of metadata must be an object.")
    # The service accepts numbers and booleans for strings here.
    return {
        key: value
        if value is None or isinstance(value, str)
        else str(value).lower()
        if isinstance(value, bool)
        else str(value)
        for key, value in given.items()
    }
