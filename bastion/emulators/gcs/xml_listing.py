"""Listings of the XML API: buckets, and objects in both versions."""

from __future__ import annotations

from urllib.parse import quote

from bastion.emulators.gcs.calls import Call
from bastion.emulators.gcs.json_resources import instant
from bastion.emulators.gcs.resources import ObjectResource, Page
from bastion.emulators.gcs.xml_documents import LISTING_NAMESPACE, Element, document
from bastion.emulators.gcs.xml_headers import etag
from bastion.net.http1 import Response

_PAGE_MAX = 1000
_LAST_CHARACTER = chr(0x10FFFF)


def list_buckets(call: Call) -> Response:
    """Answer `GET /`."""
    items: list[Element] = [
        ("Bucket", [("Name", name), ("CreationDate", instant(0))]) for name in sorted(call.buckets.names())
    ]
    return document("ListAllMyBucketsResult", [("Buckets", items)])


def list_objects(call: Call, bucket: str) -> Response:
    """Answer `GET /BUCKET`; `list-type=2` is the newer version."""
    return _second(call, bucket) if call.parameters.get("list-type") == "2" else _first(call, bucket)


def _first(call: Call, bucket: str) -> Response:
    parameters = call.parameters
    prefix, delimiter, marker = (parameters.get(name) for name in ("prefix", "delimiter", "marker"))
    size = _page_size(call)
    page = _page(call, bucket, _just_after(marker, delimiter), "", size)
    children: list[Element] = [
        ("Name", bucket),
        ("Prefix", _name(call, prefix)),
        ("Marker", _name(call, marker)),
        ("MaxKeys", str(size)),
        ("IsTruncated", _truth(page)),
    ]
    if delimiter:
        children.append(("Delimiter", _name(call, delimiter)))
    if page.next_page_token:
        names = [*(resource.name for resource in page.items), *page.prefixes]
        children.append(("NextMarker", _name(call, max(names, key=str.encode))))
    return document("ListBucketResult", [*children, *_contents(call, page)], namespace=LISTING_NAMESPACE)


def _second(call: Call, bucket: str) -> Response:
    parameters = call.parameters
    prefix, delimiter, after, token = (
        parameters.get(name) for name in ("prefix", "delimiter", "start-after", "continuation-token")
    )
    size = _page_size(call)
    page = _page(call, bucket, "" if token else _just_after(after, delimiter), token, size)
    children: list[Element] = [
        ("Name", bucket),
        ("Prefix", _name(call, prefix)),
        ("KeyCount", str(len(page.items) + len(page.prefixes))),
        ("MaxKeys", str(size)),
        ("IsTruncated", _truth(page)),
    ]
    given = (("Delimiter", delimiter), ("StartAfter", after), ("ContinuationToken", token))
    children += [(name, _name(call, value)) for name, value in given if value]
    if page.next_page_token:
        children.append(("NextContinuationToken", page.next_page_token))
    return document("ListBucketResult", [*children, *_contents(call, page)], namespace=LISTING_NAMESPACE)


def _page(call: Call, bucket: str, start_offset: str, page_token: str, page_size: int) -> Page:
    opened = call.buckets.open(bucket)
    if page_size == 0:
        return Page(items=(), prefixes=())
    return opened.list(
        prefix=call.parameters.get("prefix"),
        delimiter=call.parameters.get("delimiter"),
        start_offset=start_offset,
        end_offset="",
        page_token=page_token,
        page_size=page_size,
        include_trailing_delimiter=False,
        match_glob="",
    )


def _page_size(call: Call) -> int:
    given = call.parameters.number("max-keys")
    return _PAGE_MAX if given is None else min(given, _PAGE_MAX)


def _just_after(marker: str, delimiter: str) -> str:
    """The first name after a marker that may be listed; after a folded prefix, nothing below it."""
    if not marker:
        return ""
    return marker + (_LAST_CHARACTER if delimiter and marker.endswith(delimiter) else "\x00")


def _truth(page: Page) -> str:
    return "true" if page.next_page_token else "false"


def _name(call: Call, name: str) -> str:
    return quote(name) if call.parameters.get("encoding-type") == "url" else name


def _contents(call: Call, page: Page) -> list[Element]:
    objects: list[Element] = [("Contents", _object(call, resource)) for resource in page.items]
    return objects + [("CommonPrefixes", [("Prefix", _name(call, prefix))]) for prefix in page.prefixes]


def _object(call: Call, resource: ObjectResource) -> list[Element]:
    return [
        ("Key", _name(call, resource.name)),
        ("Generation", str(resource.generation)),
        ("MetaGeneration", str(resource.metageneration)),
        ("LastModified", instant(resource.updated)),
        ("ETag", etag(resource)),
        ("Size", str(resource.size)),
    ]
