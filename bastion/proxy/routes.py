"""What a request to the storage service is about: the call, the bucket, the object.

Pure, and independent of the mapping. A path is split before it is decoded, so that `%2F` in an object's name stays in
it. A request without a certain meaning is NOT_UNDERSTOOD; the handler refuses it unless it clearly concerns no mapped
bucket.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from enum import Enum, auto
from urllib.parse import unquote

from bastion.net.http1 import Headers
from bastion.proxy.service.intercepted import bucket_in, is_shared
from bastion.storage_wire.query import Query, decoded
from bastion.storage_wire.refusals import Refusal

_JSON = "/storage/v1/"
_UPLOADS = ("/upload/storage/v1/", "/resumable/upload/storage/v1/")
_DOWNLOADS = "/download/storage/v1/"
_BATCHES = ("/batch/storage/v1", "/batch")
# First path segments of the service's other interfaces; never a bucket.
_RESERVED = ("storage", "upload", "download", "resumable", "batch", "discovery")
# XML API query parameters that change what a read or write does.
_XML_SUBRESOURCES = (
    "acl", "append", "compose", "cors", "delete", "encryption", "legal-hold", "lifecycle", "partNumber", "restore",
    "retention", "tagging", "torrent", "uploadId", "uploads", "upload_id", "versions",
)  # fmt: skip
# Ambiguous when repeated.
_ONCE = ("alt", "uploadType")
# Signed URLs: the signature covers the request, so the proxy cannot change it.
_SIGNED = ("X-Goog-Signature", "X-Amz-Signature", "Signature")
_SIGNATURES = ("AWS", "GOOG1", "GOOG4")
_STRANGE_PATH = "this path of the storage service"
# Wider than the service's bucket names, but excludes `vault%2Fa`, which a reader could split.
_BUCKET = re.compile(r"[A-Za-z0-9._:-]+")
_PART_OF_BUCKET = re.compile(r"[A-Za-z]{2,}")
_READING = ("GET", "HEAD", "OPTIONS")


class Action(Enum):
    """What a request wants. PASS: it concerns no object's bytes, size or custom metadata."""

    PASS = auto()
    NOT_UNDERSTOOD = auto()
    BATCH = auto()
    LIST = auto()
    DESCRIBE = auto()
    READ = auto()
    CHANGE = auto()
    REPLACE = auto()
    DELETE = auto()
    UPLOAD = auto()
    INSERT_EMPTY = auto()
    COPY = auto()
    REWRITE = auto()
    XML_READ = auto()
    XML_UPLOAD = auto()
    XML_DELETE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """What a request is about.

    Attributes:
        bucket: Decoded, the destination of a copy; empty if none is named.
        name: The object's, decoded; empty if not in the path.
        source: Bucket and name that a copy reads.
        why: The unsupported feature, if NOT_UNDERSTOOD.
        suspects: Other names that a service could take for the bucket of a change, because host and path can both name
            one.
    """

    action: Action
    bucket: str = ""
    name: str = ""
    source: tuple[str, str] = ("", "")
    why: str = ""
    is_xml: bool = False
    suspects: tuple[str, ...] = ()

    @property
    def buckets(self) -> tuple[str, ...]:
        return tuple(bucket for bucket in (self.bucket, self.source[0]) if bucket)


def route(method: str, authority: str, path: str, query: Query, headers: Headers) -> Route:
    """Classify a request.

    `authority` is the host that the client means, with a port if given; `path` is percent-encoded, without the query.
    """
    host = authority.rpartition("@")[2].lower().partition(":")[0].rstrip(".")
    if headers.get("Content-Type").lower().startswith("application/grpc"):
        return Route(action=Action.NOT_UNDERSTOOD, why="gRPC")
    if not path.startswith("/"):
        return Route(action=Action.NOT_UNDERSTOOD, why="a path that does not begin with `/`")
    if any(segment.lower().replace("%2e", ".") in (".", "..") for segment in path.split("/")):
        return Route(action=Action.NOT_UNDERSTOOD, why="a path with `.` or `..`, which the service may resolve")
    try:
        found = _of_json(method, path, query)
        if found is not None and (bucket := bucket_in(host)):
            # At a bucket's host this is an object's name, but a reader could take it for a call.
            found = _refused(found, "a path of the JSON API at a bucket's own host", source=(bucket, ""))
        if found is None:
            found = _of_others(method, host, path, query, headers)
            if method not in _READING:
                found = replace(found, suspects=_suspects(path))
    except Refusal:
        return Route(action=Action.NOT_UNDERSTOOD, why="a path that is not percent-encoded UTF-8")
    if not all(map(_BUCKET.fullmatch, found.buckets)):
        return Route(action=Action.NOT_UNDERSTOOD, why="an invalid bucket name", is_xml=found.is_xml)
    if any(len(query.all(name)) > 1 for name in _ONCE):
        return _refused(found, f"a query that repeats {' or '.join(_ONCE)}")
    if found.action is Action.UPLOAD and any(name.lower().startswith("x-goog-upload-") for name, _ in headers.items()):
        return _refused(found, "uploads with X-Goog-Upload-* headers")
    if found.action is not Action.PASS and "X-HTTP-Method-Override" in headers:
        return _refused(found, "X-HTTP-Method-Override")
    if found.action is not Action.PASS and any(name in query for name in _SIGNED):
        return _refused(found, "signed URLs")
    if found.action is not Action.PASS and headers.get("Authorization").upper().startswith(_SIGNATURES):
        return _refused(found, "requests signed with an HMAC key")
    return found


def _refused(found: Route, why: str, *, source: tuple[str, str] | None = None) -> Route:
    return replace(found, action=Action.NOT_UNDERSTOOD, source=source or found.source, why=why)


def _of_json(method: str, path: str, query: Query) -> Route | None:
    if path.rstrip("/") in _BATCHES:
        return Route(action=Action.BATCH)
    for prefix in _UPLOADS:
        if path.startswith(prefix):
            return _upload(method, path[len(prefix) :].split("/"), query)
    if path.startswith(_DOWNLOADS):
        return _download(method, path[len(_DOWNLOADS) :].split("/"))
    if path.startswith(_JSON):
        return _call(method, path[len(_JSON) :].split("/"), query)
    return None


def _upload(method: str, segments: list[str], query: Query) -> Route:
    match segments:
        case ["b", bucket, "o"] | ["b", bucket, "o", ""] if method in ("POST", "PUT", "DELETE") and bucket:
            return Route(action=Action.UPLOAD, bucket=decoded(bucket), name=query.get("name"))
        case ["b", bucket, *_]:
            return Route(action=Action.NOT_UNDERSTOOD, bucket=decoded(bucket), why=f"{method} of this type of upload")
        case _:
            return Route(action=Action.NOT_UNDERSTOOD, why="this type of upload")


def _download(method: str, segments: list[str]) -> Route:
    match segments:
        case ["b", bucket, "o", name] if method in ("GET", "HEAD") and bucket and name:
            return Route(action=Action.READ, bucket=decoded(bucket), name=decoded(name))
        case ["b", bucket, *_]:
            return Route(action=Action.NOT_UNDERSTOOD, bucket=decoded(bucket), why=f"{method} of this type of download")
        case _:
            return Route(action=Action.NOT_UNDERSTOOD, why="this type of download")


_OF_OBJECTS = {
    "GET": Action.DESCRIBE,
    "HEAD": Action.DESCRIBE,
    "PATCH": Action.CHANGE,
    "PUT": Action.REPLACE,
    "DELETE": Action.DELETE,
}


def _call(method: str, segments: list[str], query: Query) -> Route:
    match segments:
        case ["b", bucket, "o", name] if name:
            action = _OF_OBJECTS.get(method, Action.NOT_UNDERSTOOD)
            if action is Action.DESCRIBE and query.get("alt") == "media":
                action = Action.READ
            return Route(action=action, bucket=decoded(bucket), name=decoded(name), why=f"{method} of an object")
        case ["b", bucket, "o"] | ["b", bucket, "o", ""]:
            of_all = {"GET": Action.LIST, "HEAD": Action.LIST, "POST": Action.INSERT_EMPTY}
            return Route(
                action=of_all.get(method, Action.NOT_UNDERSTOOD),
                bucket=decoded(bucket),
                name=query.get("name"),
                why=f"{method} of objects",
            )
        case ["b", source_bucket, "o", source, "copyTo" | "rewriteTo" as word, "b", bucket, "o", name] if name:
            return Route(
                action=Action.COPY if word == "copyTo" else Action.REWRITE,
                bucket=decoded(bucket),
                name=decoded(name),
                source=(decoded(source_bucket), decoded(source)),
            )
        case ["b", bucket, "o", name, "acl" | "iam", *_]:
            return Route(action=Action.PASS, bucket=decoded(bucket), name=decoded(name))
        case ["b", bucket, "o", name, word, *_]:
            why = {"compose": "composing objects", "moveTo": "moving objects"}.get(word, f"{word} of an object")
            return Route(action=Action.NOT_UNDERSTOOD, bucket=decoded(bucket), name=decoded(name), why=why)
        case ["b", bucket, "folders", _, "renameTo", *_]:
            return Route(action=Action.NOT_UNDERSTOOD, bucket=decoded(bucket), why="renaming folders")
        case ["b", bucket] | ["b", bucket, ""] if bucket:
            return Route(action=Action.PASS, bucket=decoded(bucket))
        case ["b", bucket, part, *_] if bucket and _PART_OF_BUCKET.fullmatch(part):
            return Route(action=Action.PASS, bucket=decoded(bucket))
        case ["b"] | ["b", ""] | ["projects", *_]:
            return Route(action=Action.PASS)
        case _:
            # A reader that merges empty segments or decodes `%2F` could take it for any of the above.
            return Route(action=Action.NOT_UNDERSTOOD, why="this path of the JSON API")


def _of_others(method: str, host: str, path: str, query: Query, headers: Headers) -> Route:
    """A request outside of the JSON API: other services of the shared host, or the XML API."""
    first, _, rest = path.lstrip("/").partition("/")
    word = decoded(first)
    if is_shared(host):
        # Storage has its own prefixes here; a similar path may mean it.
        like = any(part in ("storage", "b") for text in _readings(path) for part in text.lower().split("/"))
        return Route(action=Action.NOT_UNDERSTOOD if like else Action.PASS, why=_STRANGE_PATH)
    if path.startswith("//") or word in _RESERVED:
        return Route(action=Action.NOT_UNDERSTOOD, why=_STRANGE_PATH)
    bucket = bucket_in(host)
    if bucket:
        return _xml(method, bucket, decoded(path[1:]), query, headers)
    if not word:
        # A form upload names its bucket in the form.
        action = Action.PASS if method in ("GET", "HEAD", "OPTIONS") else Action.NOT_UNDERSTOOD
        return Route(action=action, why=f"{method} without a bucket")
    return _xml(method, word, decoded(rest), query, headers)


def _readings(path: str) -> tuple[str, str]:
    once = unquote(path)
    return once, unquote(once)


def _suspects(path: str) -> tuple[str, ...]:
    """The segments of a path that some reader could take for the bucket: the first, and any after a `b`."""
    names = [re.findall(r"[A-Za-z0-9._:-]*[A-Za-z0-9_]", text.lower()) for text in _readings(path)]
    found = [name for segments in names for before, name in itertools.pairwise(["b", *segments]) if before == "b"]
    return tuple(dict.fromkeys(found))


def _place(source: str) -> tuple[str, str]:
    """Parse `/BUCKET/OBJECT`."""
    bucket, _, name = source.lstrip("/").partition("/")
    return decoded(bucket), decoded(name)


def _xml(method: str, bucket: str, name: str, query: Query, headers: Headers) -> Route:
    action = {"GET": Action.XML_READ, "HEAD": Action.XML_READ, "PUT": Action.XML_UPLOAD, "DELETE": Action.XML_DELETE}
    copied = headers.get("x-goog-copy-source") or headers.get("x-amz-copy-source")
    found = Route(
        action=action.get(method, Action.NOT_UNDERSTOOD),
        bucket=bucket,
        name=name,
        source=_place(copied) if copied else ("", ""),
        why=f"{method} through the XML API",
        is_xml=True,
    )
    strange = next((word for word in _XML_SUBRESOURCES if word in query), "")
    if not name:
        return _refused(found, f"{method} of a bucket through the XML API")
    if strange:
        return _refused(found, f"{strange} of the XML API")
    if copied:
        return _refused(found, "copying through the XML API")
    if "x-goog-resumable" in headers:
        return _refused(found, "resumable uploads of the XML API")
    return found
