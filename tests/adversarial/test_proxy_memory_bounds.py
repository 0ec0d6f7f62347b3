"""The memory of the proxy's process, with many clients that hold it at its most."""

from __future__ import annotations

import itertools
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import pytest
import requests

from bastion.net.http1 import Headers, HttpServer, Request, Response
from bastion.storage_wire.declared_sums import crc32c_text
from bastion.storage_wire.query import Query
from tests.support.attacked_proxy import HOST, UPLOAD, URL, AttackedProxy

MIB = 1024 * 1024
UPLOADS = 16
# Most that the lent memory may be, a MiB for each upload, and what connections and allocation take besides.
UPLOADS_MAX_MIB = 64 + UPLOADS + 60
DOWNLOADS = 120
DOWNLOADS_MAX_MIB = 64 + DOWNLOADS * 0.5 + DOWNLOADS * 0.4


class Sink:
    """Takes uploads through sessions, and keeps no byte of them."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._resources: dict[str, dict[str, object]] = {}
        self._sums: dict[str, tuple[int, int]] = {}
        self.server = HttpServer(self._answer)
        self.server.open()

    def _answer(self, request: Request) -> Response:
        if request.method == "POST":
            target = f"{request.path}?upload_id={next(self._numbers)}"
            resource = {"name": Query(request.query).get("name"), **json.loads(request.body.read())}
            self._resources[target.partition("?")[2]] = resource
            return Response(status=200, headers=Headers([("Location", f"https://{HOST}{target}")]))
        if request.method != "PUT":
            return Response(status=403)
        size, crc32c = self._sums.get(request.query, (0, 0))
        for piece in request.body.pieces():
            size, crc32c = size + len(piece), google_crc32c.extend(crc32c, piece)
        self._sums[request.query] = size, crc32c
        if request.headers.get("Content-Range").endswith("/*"):
            return Response(status=308, headers=Headers([("Range", f"bytes=0-{size - 1}")]))
        resource = {
            **self._resources[request.query],
            "bucket": "vault",
            "size": str(size),
            "crc32c": crc32c_text(crc32c),
            "generation": "1",
            "metageneration": "1",
        }
        return Response(status=200, body=json.dumps(resource).encode())


def resident(proxy: AttackedProxy) -> float:
    """MiB of the process that serves."""
    lines = Path(f"/proc/{proxy.processes[1]}/status").read_text("ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmRSS:")).split()[1]) / 1024


@pytest.mark.timeout(240)
def test_uploads_of_unknown_size_take_no_more_than_is_lent(tmp_path: Path) -> None:
    sink = Sink()
    proxy = AttackedProxy(tmp_path, GCS_PROXY_UPSTREAM=f"http://127.0.0.1:{sink.server.port}", GCS_PROXY_PROCESSES="1")
    # Each has sent what the proxy would hold of it at most; then all go on.
    sent = threading.Barrier(UPLOADS + 1)
    measured = threading.Barrier(UPLOADS + 1)
    piece = bytes(MIB)

    def body() -> Iterator[bytes]:
        for _ in range(22):
            yield piece
        sent.wait(120)
        measured.wait(120)
        for _ in range(4):
            yield piece

    def upload(number: int) -> int:
        return requests.post(
            f"{UPLOAD}?uploadType=media&name={number}", data=body(), verify=proxy.bundle, timeout=120,
            proxies={"https": f"http://127.0.0.1:{proxy.port}"},
        ).status_code  # fmt: skip

    try:
        before = resident(proxy)
        with ThreadPoolExecutor(UPLOADS) as threads:
            answers = threads.map(upload, range(UPLOADS))
            sent.wait(120)
            held = resident(proxy)
            measured.wait(120)
            assert list(answers) == [200] * UPLOADS
        left = resident(proxy)
        print(f"{before:.0f} MiB before, {held - before:.0f} more with {UPLOADS} uploads, {left - before:.0f} after")
        assert held - before < UPLOADS_MAX_MIB
        assert left - before < 60
    finally:
        proxy.close()
        sink.server.close()


@pytest.mark.timeout(240)
def test_stalled_downloads_take_less_each_than_few_that_flow(tmp_path: Path) -> None:
    proxy = AttackedProxy(tmp_path, GCS_PROXY_PROCESSES="1")
    stalled: list[ssl.SSLSocket] = []
    try:
        through = {"https": f"http://127.0.0.1:{proxy.port}"}
        stored = requests.put(f"{URL}/vault/a", data=bytes(12 * MIB), verify=proxy.bundle, proxies=through, timeout=60)
        assert stored.status_code == 200
        before = resident(proxy)
        stalled.extend(_stalled(proxy) for _ in range(DOWNLOADS))
        held = resident(proxy)
        print(f"{before:.0f} MiB before, {held - before:.0f} more with {DOWNLOADS} stalled downloads")
        assert held - before < DOWNLOADS_MAX_MIB
    finally:
        for connection in stalled:
            connection.close()
        proxy.close()


def _stalled(proxy: AttackedProxy) -> ssl.SSLSocket:
    """A client that has read the head of an answer, and reads no more."""
    plain = socket.socket()
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    plain.settimeout(60)
    plain.connect(("127.0.0.1", proxy.port))
    plain.sendall(f"CONNECT {HOST}:443 HTTP/1.1\r\n\r\n".encode())
    assert b" 200 " in plain.recv(4096)
    context = ssl.create_default_context(cafile=proxy.bundle)
    connection = context.wrap_socket(plain, server_hostname=HOST)
    connection.sendall(f"GET /vault/a HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode())
    assert connection.recv(4096).startswith(b"HTTP/1.1 200 ")
    return connection
