"""The requests of multipart uploads of the XML API."""

from __future__ import annotations

from bastion.emulators.gcs.calls import Call
from bastion.emulators.gcs.iam.permissions import Action
from bastion.emulators.gcs.json_resources import md5_text
from bastion.emulators.gcs.storage_errors import not_served
from bastion.emulators.gcs.xml_documents import Element, document, read
from bastion.emulators.gcs.xml_headers import attributes_of, etag, preconditions, stored_headers
from bastion.emulators.gcs.xml_multipart import PART_NUMBER_MAX, complete, put_part
from bastion.net.http1 import Headers, Response
from bastion.storage_wire.declared_sums import crc32c_text, declared_in_headers
from bastion.storage_wire.refusals import Refusal, invalid, not_allowed

MULTIPART_PARAMETERS = ("uploads", "uploadId")


def multipart(call: Call, bucket: str, name: str) -> Response:
    """Answer a request for an object with `uploads` or `uploadId`."""
    if "uploadId" not in call.parameters:
        if call.method != "POST":
            raise not_allowed(call.method, f"{call.request.path}?uploads")
        return _begin(call, bucket, name)
    match call.method:
        case "PUT":
            return _part(call, bucket, name)
        case "POST":
            return _complete(call, bucket, name)
        case "GET":
            return _list_parts(call, bucket, name)
        case "DELETE":
            call.buckets.open(bucket).need(Action.ABORT_PARTS, name)
            upload_id = call.parameters.get("uploadId")
            call.multipart_uploads.end(upload_id, call.multipart_uploads.find(upload_id, bucket, name))
            return Response(status=204)
        case _:
            raise not_allowed(call.method, call.request.path)


def _begin(call: Call, bucket: str, name: str) -> Response:
    call.buckets.open(bucket).need(Action.UPLOAD_PARTS, name)
    upload_id = call.multipart_uploads.begin(bucket, name, attributes_of(call.request.headers))
    return document("InitiateMultipartUploadResult", [("Bucket", bucket), ("Key", name), ("UploadId", upload_id)])


def _part(call: Call, bucket: str, name: str) -> Response:
    headers = call.request.headers
    if "x-goog-copy-source" in headers or "x-amz-copy-source" in headers:
        raise not_served("PUT (a part by copy)", call.request.path)
    call.buckets.open(bucket).need(Action.UPLOAD_PARTS, name)
    upload = call.multipart_uploads.find(call.parameters.get("uploadId"), bucket, name)
    number = call.parameters.number("partNumber")
    if number is None or not 1 <= number <= PART_NUMBER_MAX:
        raise invalid(f"partNumber must be from 1 to {PART_NUMBER_MAX}.")
    part = put_part(upload, number, call.request.body.pieces(), declared_in_headers(headers))
    hashes = f"crc32c={crc32c_text(part.crc32c)},md5={md5_text(part.md5)}"
    return Response(status=200, headers=Headers((("ETag", part.etag), ("x-goog-hash", hashes))))


def _complete(call: Call, bucket: str, name: str) -> Response:
    call.buckets.open(bucket).need(Action.UPLOAD_PARTS, name)
    headers = call.request.headers
    upload_id = call.parameters.get("uploadId")
    upload = call.multipart_uploads.find(upload_id, bucket, name)
    wanted = []
    for item in read(call.small_body(), "CompleteMultipartUpload").iter("Part"):
        number = item.findtext("PartNumber", "").strip()
        if not (number.isascii() and number.isdigit()):
            raise Refusal(400, "invalid", "A part has no number.", code="MalformedXML")
        wanted.append((int(number), item.findtext("ETag", "")))
    resource = complete(upload, wanted, call.buckets.open(bucket), preconditions(headers), declared_in_headers(headers))
    call.multipart_uploads.end(upload_id, upload)
    answer = document(
        "CompleteMultipartUploadResult",
        [
            ("Location", f"{call.base}{call.request.path}"),
            ("Bucket", bucket),
            ("Key", name),
            ("ETag", etag(resource)),
        ],
    )
    for field, value in stored_headers(resource).items():
        if field != "ETag":
            answer.headers.add(field, value)
    return answer


def _list_parts(call: Call, bucket: str, name: str) -> Response:
    call.buckets.open(bucket).need(Action.LIST_PARTS, name)
    upload_id = call.parameters.get("uploadId")
    upload = call.multipart_uploads.find(upload_id, bucket, name)
    with upload.lock:
        parts = sorted(upload.parts.values(), key=lambda part: part.number)
    children: list[Element] = [("Bucket", bucket), ("Key", name), ("UploadId", upload_id), ("IsTruncated", "false")]
    children += [
        ("Part", [("PartNumber", str(part.number)), ("ETag", part.etag), ("Size", str(part.size))]) for part in parts
    ]
    return document("ListPartsResult", children)


def list_uploads(call: Call, bucket: str) -> Response:
    """Answer `GET /BUCKET?uploads`."""
    call.buckets.open(bucket).need(Action.LIST_MULTIPART_UPLOADS)
    children: list[Element] = [("Bucket", bucket), ("IsTruncated", "false")]
    children += [
        ("Upload", [("Key", upload.name), ("UploadId", upload_id)])
        for upload_id, upload in call.multipart_uploads.of_bucket(bucket)
    ]
    return document("ListMultipartUploadsResult", children)
