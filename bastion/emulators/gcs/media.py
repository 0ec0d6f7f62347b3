"""An object's bytes as a response for both APIs: whole, a range, or decompressed; with headers."""

from __future__ import annotations

from email.utils import formatdate
from functools import lru_cache

from bastion.emulators.gcs.buckets import OpenObject
from bastion.emulators.gcs.json_resources import DEFAULT_STORAGE_CLASS, md5_text
from bastion.emulators.gcs.resources import Attributes, ObjectResource
from bastion.emulators.gcs.transcoding import Decompressed, starts_like_gzip
from bastion.net.http1 import FileSlice, Headers, Request, Response
from bastion.storage_wire.declared_sums import crc32c_text
from bastion.storage_wire.ranges import read_range
from bastion.storage_wire.transcoding import is_decompressed

_UNSET_CONTENT_TYPE = "application/octet-stream"
_SHOWN_ATTRIBUTES = {
    "Cache-Control": "cache_control",
    "Content-Disposition": "content_disposition",
    "Content-Language": "content_language",
}
_CONTROLS = dict.fromkeys((*range(32), 127), " ")


def header_text(text: str) -> str:
    """A text as a header value: its UTF-8 bytes, without line ends."""
    if text.isascii() and text.isprintable():
        return text
    return text.translate(_CONTROLS).encode("utf-8", "replace").decode("latin-1")


@lru_cache(maxsize=1024)
def _http_date(seconds: int) -> str:
    return formatdate(seconds, usegmt=True)


def object_headers(resource: ObjectResource, etag: str) -> Headers:
    """The headers of every answer about an object, except length and encoding."""
    attributes = resource.attributes
    hashes = f"crc32c={crc32c_text(resource.crc32c)}"
    if resource.md5 is not None:
        hashes += f",md5={md5_text(resource.md5)}"
    headers = Headers(
        (
            ("ETag", etag),
            ("Content-Type", header_text(attributes.content_type) or _UNSET_CONTENT_TYPE),
            ("Last-Modified", _http_date(int(resource.updated))),
            ("Accept-Ranges", "bytes"),
            ("x-goog-generation", str(resource.generation)),
            ("x-goog-metageneration", str(resource.metageneration)),
            ("x-goog-stored-content-encoding", header_text(attributes.content_encoding) or "identity"),
            ("x-goog-stored-content-length", str(resource.size)),
            ("x-goog-hash", hashes),
            ("x-goog-storage-class", header_text(attributes.storage_class) or DEFAULT_STORAGE_CLASS),
        )
    )
    if resource.component_count is not None:
        headers.add("x-goog-component-count", str(resource.component_count))
    for name, attribute in _SHOWN_ATTRIBUTES.items():
        if value := getattr(attributes, attribute):
            headers.add(name, header_text(value))
    return headers


def add_custom_metadata(headers: Headers, attributes: Attributes) -> None:
    """Add `x-goog-meta-*`, which the XML API shows."""
    for key, value in attributes.metadata.items():
        if key.isascii() and key.isprintable() and " " not in key and ":" not in key:
            headers.add(f"x-goog-meta-{key}", header_text(value))


def download(request: Request, opened: OpenObject, headers: Headers) -> Response:
    """Respond with the bytes of an open object, which the response then owns; completes `headers`.

    Raises Refusal (416); the caller then still closes the object.
    """
    resource = opened.resource
    attributes = resource.attributes
    if is_decompressed(attributes.content_encoding, attributes.cache_control, request.headers):
        descriptor = opened.detach_file()
        if starts_like_gzip(descriptor):
            headers.add("Warning", "214 UploadServer gunzipped")
            return Response(status=200, headers=headers, body=Decompressed(descriptor))
        return Response(
            status=200, headers=headers, body=FileSlice(descriptor=descriptor, start=0, length=resource.size)
        )
    if attributes.content_encoding:
        headers.add("Content-Encoding", header_text(attributes.content_encoding))
    wanted = read_range(request.headers.get("Range"), resource.size)
    if wanted is None:
        start, length, status = 0, resource.size, 200
    else:
        (start, length), status = wanted, 206
        headers.add("Content-Range", f"bytes {start}-{start + length - 1}/{resource.size}")
    return Response(
        status=status, headers=headers, body=FileSlice(descriptor=opened.detach_file(), start=start, length=length)
    )
