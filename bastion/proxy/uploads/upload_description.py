"""A client's description of an upload, and the part of it that the service gets. Pure.

The service never learns the plaintext's checksums, or its content encoding, which it would try to decode for readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bastion.net.http1 import Headers
from bastion.proxy.sealed.envelope import is_ours
from bastion.storage_wire.declared_sums import Declared, both_declared, declared_in_headers, declared_in_resource
from bastion.storage_wire.documents import text_field
from bastion.storage_wire.query import Query
from bastion.storage_wire.refusals import Refusal, invalid, required

# About the plaintext or its transfer; everything else is forwarded.
UNFORWARDED_HEADERS = frozenset(
    (
        *("accept-encoding", "content-encoding", "content-md5", "content-range", "content-type", "x-goog-hash"),
        *("x-upload-content-length", "x-upload-content-type"),
    )
)
# `fields` selects from the answer. The proxy needs more than the client, so it applies the selection itself.
UNFORWARDED_PARAMETERS = ("contentEncoding", "fields")
DEFAULT_CONTENT_TYPE = "application/octet-stream"
_ENCODING_MAX = 100
# The service's own limit.
_OBJECT_MAX_BYTES = 5 << 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """What a client said about an upload.

    Attributes:
        document: The resource for the service, without our metadata, checksums and content encoding.
        content_encoding: Of the plaintext.
        declared: The checksums that the plaintext must have.
    """

    name: str
    document: dict[str, Any]
    content_encoding: str
    declared: Declared

    def resource(self, metadata: Mapping[str, str]) -> dict[str, Any]:
        """The resource for the service with our metadata entries."""
        return {**self.document, "metadata": {**(self.document.get("metadata") or {}), **metadata}}

    @property
    def content_type(self) -> str:
        """As a header value; the document's value overrides the header's."""
        value = str(self.document.get("contentType") or "")
        return value if value and _is_plain(value) else DEFAULT_CONTENT_TYPE


def described(document: Mapping[str, Any], query: Query, headers: Headers, *, content_type: str) -> Description:
    """Read a description from the `document` in the request, its query and its headers.

    `content_type` is the default, may be empty. Raises Refusal (400) if the name is missing, a checksum is invalid, or
    the client sets our metadata.
    """
    if len(query.all("name")) > 1:
        raise invalid("The query has several names; send one.")
    document = dict(document)
    named = text_field(document, "name")
    name = query.get("name") or named
    if named not in ("", name):
        raise invalid("The query and the resource name different objects; send one name.")
    if not name:
        raise required("name")
    _check_metadata(document.get("metadata"))
    declared = both_declared(declared_in_resource(document), declared_in_headers(headers))
    content_encoding = text_field(document, "contentEncoding") or query.get("contentEncoding")
    if not _is_plain(content_encoding) or len(content_encoding) > _ENCODING_MAX:
        raise invalid(f"{content_encoding[:80]!r} is not a valid contentEncoding.")
    for field in ("crc32c", "md5Hash", "contentEncoding"):
        document.pop(field, None)
    if not text_field(document, "contentType"):
        document["contentType"] = content_type or DEFAULT_CONTENT_TYPE
    return Description(name=name, document=document, content_encoding=content_encoding, declared=declared)


def check_size(size: int | None) -> None:
    """Raise Refusal (400) if no object can have that size."""
    if size is not None and size > _OBJECT_MAX_BYTES:
        raise invalid(f"An object has at most {_OBJECT_MAX_BYTES} bytes, not {size}.")


def refuse_packed(headers: Headers) -> None:
    """Raise Refusal (501) for a body that is compressed for transfer: the service cannot decompress sealed bytes."""
    if headers.get("Content-Encoding").strip().lower() not in ("", "identity"):
        raise Refusal(
            501,
            "notImplemented",
            "The encrypting proxy does not decompress uploads (Content-Encoding); send the "
            "bytes as they are. Set an object's content encoding in its resource or in the query.",
        )


def _check_metadata(metadata: object) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, dict):
        raise invalid("The value of metadata must be an object.")
    for name in metadata:
        if is_ours(name):
            raise invalid(f"The name {name[:80]!r} of custom metadata belongs to the encrypting proxy; choose another.")


def _is_plain(value: str) -> bool:
    return value.isascii() and value.isprintable() and value == value.strip()
