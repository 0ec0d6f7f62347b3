"""Headers of the XML API: attributes, conditions, and the object itself."""

from __future__ import annotations

from bastion.emulators.gcs.json_resources import etag as json_etag
from bastion.emulators.gcs.media import add_custom_metadata, object_headers
from bastion.emulators.gcs.parameters import check_tags
from bastion.emulators.gcs.resources import Attributes, ObjectResource, Preconditions
from bastion.net.http1 import Headers
from bastion.storage_wire.query import natural_number

_METADATA_PREFIXES = ("x-goog-meta-", "x-amz-meta-")


def etag(resource: ObjectResource) -> str:
    """The quoted MD5 in hexadecimal; for a composite object, which has none, the JSON API's tag."""
    return f'"{resource.md5.hex()}"' if resource.md5 is not None else f'"{json_etag(resource)}"'


def resource_headers(resource: ObjectResource) -> Headers:
    """All headers about an object, with custom metadata."""
    headers = object_headers(resource, etag(resource))
    add_custom_metadata(headers, resource.attributes)
    return headers


def stored_headers(resource: ObjectResource) -> Headers:
    """The headers of the answer to an upload."""
    headers = Headers((("ETag", etag(resource)),))
    for name, value in object_headers(resource, etag(resource)).items():
        if name.startswith("x-goog-"):
            headers.add(name, value)
    return headers


def attributes_of(headers: Headers) -> Attributes:
    """The attributes that an upload's headers set."""
    metadata = {}
    for name, value in headers.items():
        lower = name.lower()
        for prefix in _METADATA_PREFIXES:
            if lower.startswith(prefix):
                metadata[lower[len(prefix) :]] = _text(value)
    return Attributes(
        content_type=_text(headers.get("Content-Type")),
        content_encoding=_text(headers.get("Content-Encoding")),
        content_disposition=_text(headers.get("Content-Disposition")),
        content_language=_text(headers.get("Content-Language")),
        cache_control=_text(headers.get("Cache-Control")),
        storage_class=headers.get("x-goog-storage-class"),
        custom_time=headers.get("x-goog-custom-time"),
        metadata=metadata,
    )


def _text(value: str) -> str:
    """A header's value, decoded as UTF-8 if possible."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def preconditions(headers: Headers, prefix: str = "x-goog-") -> Preconditions:
    """`x-goog-if-[meta]generation-match`; prefix `x-goog-copy-source-` for the source of a copy."""
    return Preconditions(
        generation_match=_number(headers, f"{prefix}if-generation-match"),
        metageneration_match=_number(headers, f"{prefix}if-metageneration-match"),
    )


def _number(headers: Headers, name: str) -> int | None:
    value = headers.get(name)
    return natural_number(name, value.strip()) if value else None


def check_reading(headers: Headers, resource: ObjectResource) -> None:
    """Check the conditions of a read. Raises ConditionFailed or NotModified."""
    preconditions(headers).check(resource)
    check_tags(headers, etag(resource))
