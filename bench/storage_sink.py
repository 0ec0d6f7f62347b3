"""A storage service that costs as little as possible: enough of the JSON API for the proxy, nothing on disk.

Runs in its own process for `bench/proxy.py`, with HTTPS on a port that it prints. Computes the checksum of uploads and
drops them, except names that begin with `keep`, which can be downloaded. `PUT /pace?up=BYTES&down=BYTES` limits all
connections together to that many bytes a second; 0: no limit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import google_crc32c

from bastion.net.http1 import Body, Headers, HttpServer, Request, Response
from bastion.net.tls import server_context
from bastion.storage_wire.declared_sums import crc32c_text
from bastion.storage_wire.multipart_related import MultipartRelated, boundary_of

PIECE_BYTES = 256 * 1024


class Pace:
    """A limit of bytes per second, over all connections."""

    def __init__(self) -> None:
        self.bytes_per_second = 0.0
        self._lock = threading.Lock()
        self._free_at = 0.0

    def wait(self, size: int) -> None:
        """Wait until these bytes may have passed."""
        if not self.bytes_per_second:
            return
        with self._lock:
            now = time.monotonic()
            # A thread may catch up a little, because it is never woken at the exact moment.
            self._free_at = max(self._free_at, now - 0.005) + size / self.bytes_per_second
            late = self._free_at - now
        if late > 0:
            time.sleep(late)


@dataclass(slots=True)
class Upload:
    """An object's bytes as they arrive."""

    name: str
    resource: dict[str, Any]
    size: int = 0
    crc32c: int = 0
    kept: list[bytes] = field(default_factory=list)


class Sink:
    """All objects and open sessions."""

    def __init__(self) -> None:
        self.up, self.down = Pace(), Pace()
        self._objects: dict[str, Upload] = {}
        self._sessions: dict[str, Upload] = {}
        self._numbers = itertools.count(1)

    def answer(self, request: Request) -> Response:
        query = dict(parse_qsl(request.query, keep_blank_values=True))
        if request.path == "/pace":
            self.up.bytes_per_second, self.down.bytes_per_second = float(query["up"]), float(query["down"])
            return Response(status=200)
        if request.path.startswith("/upload/"):
            return self._upload(request, query)
        name = unquote(request.path.rpartition("/o/")[2])
        stored = self._objects.get(name)
        if stored is None:
            return _json(404, {"error": {"code": 404, "message": f"No such object: {name}"}})
        match request.method:
            case "GET" if query.get("alt") == "media":
                return self._media(stored, request)
            case "GET":
                return _json(200, stored.resource)
            case "PATCH":
                return self._patch(stored, json.loads(request.body.read()))
            case "DELETE":
                del self._objects[name]
                return Response(status=204)
        return Response(status=501)

    def _upload(self, request: Request, query: dict[str, str]) -> Response:
        if session := query.get("upload_id"):
            return self._put(request, session)
        described: dict[str, Any] = {}
        body: Body | MultipartRelated = request.body
        if query["uploadType"] == "multipart":
            body = MultipartRelated(request.body, boundary_of(request.headers.get("content-type")))
            described = body.document
        elif query["uploadType"] == "resumable":
            described = json.loads(request.body.read() or b"{}")
        upload = Upload(name=query.get("name") or described["name"], resource=described)
        if query["uploadType"] == "resumable":
            session = f"s{next(self._numbers)}"
            self._sessions[session] = upload
            place = f"https://{request.authority}{request.path}?uploadType=resumable&upload_id={session}"
            return Response(status=200, headers=Headers([("Location", place)]))
        self._take(upload, body)
        return self._finish(upload)

    def _put(self, request: Request, session: str) -> Response:
        upload = self._sessions[session]
        span, _, total = request.headers.get("content-range", "bytes */*").removeprefix("bytes ").partition("/")
        if span != "*":
            first = int(span.partition("-")[0])
            assert first == upload.size, f"{first} follows {upload.size}"
        self._take(upload, request.body)
        if total != "*" and int(total) == upload.size:
            del self._sessions[session]
            return self._finish(upload)
        headers = Headers([("Range", f"bytes=0-{upload.size - 1}")] if upload.size else [])
        return Response(status=308, headers=headers)

    def _take(self, upload: Upload, body: Body | MultipartRelated) -> None:
        keep = upload.name.startswith("keep")
        for piece in body.pieces():
            upload.size += len(piece)
            upload.crc32c = google_crc32c.extend(upload.crc32c, piece)
            self.up.wait(len(piece))
            if keep:
                upload.kept.append(piece)

    def _finish(self, upload: Upload) -> Response:
        upload.kept = [b"".join(upload.kept)]
        upload.resource = {
            "kind": "storage#object",
            **upload.resource,
            "name": upload.name,
            "bucket": "bench",
            "generation": str(next(self._numbers)),
            "metageneration": "1",
            "size": str(upload.size),
            "crc32c": crc32c_text(upload.crc32c),
        }
        self._objects[upload.name] = upload
        return _json(200, upload.resource)

    def _patch(self, stored: Upload, changes: dict[str, Any]) -> Response:
        metadata = {**stored.resource.get("metadata", {}), **changes.pop("metadata", {})}
        number = str(int(stored.resource["metageneration"]) + 1)
        stored.resource = {**stored.resource, **changes, "metadata": metadata, "metageneration": number}
        return _json(200, stored.resource)

    def _media(self, stored: Upload, request: Request) -> Response:
        start, end = 0, stored.size
        wanted = request.headers.get("range")
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(stored.size, int(last) + 1 if last else stored.size)
        headers = Headers([("Content-Type", "application/octet-stream"), ("Content-Length", str(end - start))])
        headers.add("x-goog-generation", stored.resource["generation"])
        headers.add("x-goog-metageneration", stored.resource["metageneration"])
        headers.add("x-goog-hash", f"crc32c={stored.resource['crc32c']}")
        headers.add("x-goog-stored-content-encoding", "identity")
        headers.add("x-goog-stored-content-length", str(stored.size))
        for name, value in stored.resource.get("metadata", {}).items():
            headers.add(f"x-goog-meta-{name}", value)
        if wanted:
            headers.add("Content-Range", f"bytes {start}-{end - 1}/{stored.size}")
        return Response(status=206 if wanted else 200, headers=headers, body=self._pieces(stored.kept[0], start, end))

    def _pieces(self, data: bytes, start: int, end: int) -> Iterator[bytes]:
        view = memoryview(data)
        for at in range(start, end, PIECE_BYTES):
            piece = view[at : min(at + PIECE_BYTES, end)]
            self.down.wait(len(piece))
            yield piece


def _json(status: int, document: dict[str, Any]) -> Response:
    headers = Headers([("Content-Type", "application/json; charset=UTF-8")])
    return Response(status=status, headers=headers, body=json.dumps(document).encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("certificate", type=Path, help="PEM of the server's certificate and key")
    server = HttpServer(Sink().answer, tls=server_context(parser.parse_args().certificate))
    server.open()
    print(server.port, flush=True)
    sys.stdin.read()
    server.close(0.0)


if __name__ == "__main__":
    main()
