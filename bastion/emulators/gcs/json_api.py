"""Dispatch a request to a method of the JSON API.

A path is split before it is decoded: `%2F` stays in an object's name.
"""

from __future__ import annotations

from bastion.emulators.gcs import json_buckets, json_managed_folders, json_objects, json_policies
from bastion.emulators.gcs.calls import Call
from bastion.emulators.gcs.json_uploads import insert_without_media, upload
from bastion.emulators.gcs.storage_errors import not_served
from bastion.net.http1 import Response
from bastion.storage_wire.query import decoded
from bastion.storage_wire.refusals import not_allowed

PREFIX = "/storage/v1/"
UPLOAD_PREFIXES = ("/upload/storage/v1/", "/resumable/upload/storage/v1/")
DOWNLOAD_PREFIX = "/download/storage/v1/"


def is_json_path(path: str) -> bool:
    """Whether a path belongs to this API, not to a bucket of the XML API."""
    return path.startswith((PREFIX, DOWNLOAD_PREFIX, *UPLOAD_PREFIXES))


def is_media(call: Call) -> bool:
    """Whether the answer would be an object's bytes, with errors as text."""
    path = call.request.path
    return path.startswith(DOWNLOAD_PREFIX) or (path.startswith(PREFIX) and call.parameters.get("alt") == "media")


def answer(call: Call) -> Response:
    """Answer a request. Raises Refusal or StorageError."""
    path = call.request.path
    for prefix in UPLOAD_PREFIXES:
        if path.startswith(prefix):
            return _upload(call, path[len(prefix) :].split("/"))
    if path.startswith(DOWNLOAD_PREFIX):
        return _download(call, path[len(DOWNLOAD_PREFIX) :].split("/"))
    return _call(call, path[len(PREFIX) :].split("/"))


def _upload(call: Call, segments: list[str]) -> Response:
    match segments:
        case ["b", bucket, "o"]:
            return upload(call, decoded(bucket))
        case _:
            raise not_served(call.method, call.request.path)


def _download(call: Call, segments: list[str]) -> Response:
    match segments:
        case ["b", bucket, "o", name] if call.method in ("GET", "HEAD"):
            return json_objects.get_media(call, decoded(bucket), decoded(name))
        case _:
            raise not_served(call.method, call.request.path)


def _call(call: Call, segments: list[str]) -> Response:
    match segments:
        case ["b", bucket, "o", name] if name:
            return json_objects.one_object(call, decoded(bucket), decoded(name))
        case ["b", bucket, "o"] | ["b", bucket, "o", ""]:
            return _objects(call, decoded(bucket))
        case ["b", bucket, "o", name, "compose"]:
            _only_post(call)
            return json_objects.compose(call, decoded(bucket), decoded(name))
        case ["b", source_bucket, "o", source, "copyTo" | "rewriteTo" as method, "b", bucket, "o", name]:
            _only_post(call)
            copying = json_objects.copy_to if method == "copyTo" else json_objects.rewrite_to
            return copying(call, (decoded(source_bucket), decoded(source)), (decoded(bucket), decoded(name)))
        case ["b", bucket, "o", source, "moveTo", "o", name]:
            _only_post(call)
            return json_objects.move_to(call, decoded(bucket), decoded(source), decoded(name))
        case ["b"] | ["b", ""]:
            return json_buckets.buckets(call)
        case ["b", bucket]:
            return json_buckets.one_bucket(call, decoded(bucket))
        case ["b", bucket, "iam"] | ["b", bucket, "iam", "testPermissions"]:
            return json_policies.bucket_policy(call, decoded(bucket), tests=len(segments) == 4)
        case ["b", bucket, "managedFolders"] | ["b", bucket, "managedFolders", ""]:
            return json_managed_folders.folders(call, decoded(bucket))
        case ["b", bucket, "managedFolders", name]:
            return json_managed_folders.one_folder(call, decoded(bucket), decoded(name))
        case ["b", bucket, "managedFolders", name, "iam"] | [
            "b",
            bucket,
            "managedFolders",
            name,
            "iam",
            "testPermissions",
        ]:
            return json_policies.folder_policy(call, decoded(bucket), decoded(name), tests=len(segments) == 6)
        case ["b", bucket, *parts] if parts[0] != "o":
            return json_buckets.bucket_part(call, decoded(bucket), "/".join(parts))
        case ["projects", project, "serviceAccount"] if call.method == "GET":
            return json_buckets.service_account(call, decoded(project))
        case _:
            raise not_served(call.method, call.request.path)


def _objects(call: Call, bucket: str) -> Response:
    match call.method:
        case "GET" | "HEAD":
            return json_objects.list_objects(call, bucket)
        case "POST":
            return insert_without_media(call, bucket)
        case _:
            raise not_allowed(call.method, call.request.path)


def _only_post(call: Call) -> None:
    if call.method != "POST":
        raise not_allowed(call.method, call.request.path)
