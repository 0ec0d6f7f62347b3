"""What the XML API says in headers where the JSON API has documents: attributes, conditions, the object itself.

Layer: emulator.
"""

from __future__ import annotations

from bastion.emulators.gcs.json_resources import etag as json_etag
from bastion.emulators.gcs.media import add_custom_metadata, object_headers
from bastion.emulators.gcs.parameters import check_tags
from bastion.emulators.gcs.resources import Attributes, ObjectResource, Preconditions
from bastion.net.http1 import Headers
from bastion.storage_wire.query import natural_number

_METADATA_PREFIXES = ("x-goog-meta-", "x-amz-meta-")


def etag(resource: ObjectResource) -> str:
    """In quotes: the MD5 in hexadecimal; of a composite object, which has none, what the JSON API has."""
    return f'"{resource.md5.hex()}"' if resource.md5 is not None else f'"{json_etag(resource)}"'


def resource_headers(resource: ObjectResource) -> Headers:
    """Everything about an object, custom metadata included."""
    headers = object_headers(resource, etag(resource))
    add_custom_metadata(headers, resource.attributes)
    return headers


def stored_headers(resource: ObjectResource) -> Headers:
    """What the answer to an upload says of the new object."""
    headers = Headers((("ETag", etag(resource)),))
    for name, value in object_headers(resource, etag(resource)).items():
        if name.startswith("x-goog-"):
            headers.add(name, value)
    return headers


def attributes_of(headers: Headers) -> Attributes:
    """What the headers of an upload set."""
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
    """A header's value as the client meant it: UTF-8, if its bytes are that."""
    if value.isascii():
        return value
    try:
        return value.encode("latin-1").decode()
    except UnicodeError:
        return value


def preconditions(headers: Headers, prefix: str = "x-goog-") -> Preconditions:
    """What `x-goog-if-generation-match` and `x-goog-if-metageneration-match` demand.

    Args:
        prefix: `x-goog-copy-source-` for what a copy demands of its source.
    """
    return Preconditions(
        generation_match=_number(headers, f"{prefix}if-generation-match"),
        metageneration_match=_number(headers, f"{prefix}if-metageneration-match"),
    )


def _number(headers: Headers, name: str) -> int | None:
    value = headers.get(name)
    return natural_number(name, value.strip()) if value else None


def check_reading(headers: Headers, resource: ObjectResource) -> None:
    """Holds the conditions of a read against the object.

    Raises:
        ConditionFailed, NotModified: one of them does not hold.
    """
    preconditions(headers).check(resource)
    check_tags(headers, etag(resource))
