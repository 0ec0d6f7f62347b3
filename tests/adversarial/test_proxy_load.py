"""What clients may cost the proxy: memory for large objects, idle and slow connections, descriptors."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import google_crc32c
import pytest

from bastion.adapters.kms.keyring import KeyringKms
from bastion.adapters.system_clock import SystemClock
from bastion.net.http1 import Headers, Request, Response
from bastion.proxy.sealed.envelopes import Envelopes
from bastion.proxy.sealed.sealing import Sealing
from bastion.proxy.sealed.segments import plain_length, sealed_size, segment_count
from bastion.storage_wire.declared_sums import crc32c_text
from tests.support.attacked_proxy import HOST, KEY, MARK, Answer, AttackedProxy, attacked, http, received, status_of

pytestmark = pytest.mark.e2e

MIB = 1024 * 1024
# Larger for a closer look; bench/proxy_memory.py has the figures.
SIZE = int(os.environ.get("PROXY_LOAD_MIB", "256")) * MIB
RSS_MAX_MIB = 256
PIECE = bytes(range(256)) * 4096


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AttackedProxy]:
    # As many as the limits of memory are for, whatever this machine has processors for.
    with attacked(tmp_path_factory.mktemp("load"), GCS_PROXY_PROCESSES="2") as proxy:
        yield proxy


def peak_mib(proxy: AttackedProxy) -> int:
    """The most memory that its processes have had, each; what they share counts several times."""
    total = 0
    for process in proxy.processes:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process}/status").read_text())
        assert found is not None
        total += int(found[1])
    return total // 1024


class Endless:
    """A storage service that keeps no bytes: it forgets what comes, and makes up what it is asked for."""

    def __init__(self, proxy: AttackedProxy) -> None:
        envelopes = Envelopes(KeyringKms(proxy.keyring), clock=SystemClock())
        self._envelope, self._key = envelopes.new(KEY, "vault", "huge")
        self._resource = {"bucket": "vault", "name": "huge", "generation": "1", "metageneration": "1"}
        self.arrived = 0

    def answer(self, request: Request) -> Response:
        if request.method == "POST":
            location = f"https://{HOST}/upload/storage/v1/b/vault/o?uploadType=resumable&upload_id=x"
            return Response(status=200, headers=Headers([("Location", location)]))
        if request.method == "PUT":
            self._take(request)
        elif request.method == "GET" and "alt=media" in request.query:
            return self._media()
        elif request.method == "GET":
            size = str(sealed_size(SIZE))
            self._resource |= {"size": size, "metadata": self._envelope.to_metadata()}  # type: ignore[dict-item]
        return Response(status=200, body=json.dumps(self._resource).encode())

    def _take(self, request: Request) -> None:
        crc, size = 0, 0
        for piece in request.body.pieces():
            crc, size = google_crc32c.extend(crc, bytes(piece)), size + len(piece)
        self.arrived = size
        self._resource |= {"size": str(size), "crc32c": crc32c_text(crc)}

    def _media(self) -> Response:
        sealing = Sealing(self._key, self._envelope.header)

        def segments() -> Iterator[bytes]:
            yield self._envelope.header
            for index in range(segment_count(SIZE)):
                last = index == segment_count(SIZE) - 1
                yield sealing.seal(index, bytes(plain_length(index, SIZE)), last=last)

        length = str(sealed_size(SIZE))
        known = [("Content-Length", length), ("x-goog-generation", "1"), ("x-goog-metageneration", "1")]
        return Response(status=200, headers=Headers(known), body=segments())


@pytest.fixture
def endless(proxy: AttackedProxy) -> Iterator[Endless]:
    made = Endless(proxy)

    def wrap(answer: Answer) -> Answer:
        return made.answer

    proxy.wrap = wrap
    # What arrives is not to be kept here either.
    proxy.watch = lambda seen, size: seen.body.clear()
    yield made
    proxy.wrap, proxy.watch = lambda answer: answer, lambda seen, size: None


def uploaded(proxy: AttackedProxy, target: str, method: str, *headers: str) -> bytes:
    with proxy.connect() as connection:
        connection.settimeout(100)
        connection.sendall(http(method, target, f"Content-Length: {SIZE}", *headers, body=b""))
        for _ in range(SIZE // len(PIECE)):
            connection.sendall(PIECE)
        return received(connection)


def downloaded(proxy: AttackedProxy) -> int:
    with proxy.connect() as connection:
        connection.settimeout(100)
        connection.sendall(http("GET", f"/storage/v1/b/vault/o/{quote('huge')}?alt=media", body=b""))
        buffer, size = bytearray(MIB), 0
        head = b""
        while b"\r\n\r\n" not in head:
            head += connection.recv(1)
        assert status_of(head) == 200, head
        while count := connection.recv_into(buffer):
            size += count
        assert not any(buffer[:1000])
        return size


def test_a_huge_object_goes_up_and_down_in_little_memory(proxy: AttackedProxy, endless: Endless) -> None:
    began = time.monotonic()
    media = "/upload/storage/v1/b/vault/o?uploadType=media&name=huge"
    assert status_of(uploaded(proxy, media, "POST")) == 200
    assert endless.arrived == sealed_size(SIZE)
    up = peak_mib(proxy)
    halfway = time.monotonic()
    assert downloaded(proxy) == SIZE
    print(
        f"{SIZE // MIB} MiB: up {halfway - began:.1f} s, peak {up} MiB; "
        f"down {time.monotonic() - halfway:.1f} s, peak {peak_mib(proxy)} MiB"
    )
    assert peak_mib(proxy) < RSS_MAX_MIB


def test_a_huge_resumable_upload_in_one_piece_takes_little_memory(proxy: AttackedProxy, endless: Endless) -> None:
    begun = proxy.said(http("POST", "/upload/storage/v1/b/vault/o?uploadType=resumable&name=huge", body=b""))
    assert status_of(begun) == 200

    said = uploaded(proxy, "/upload/storage/v1/b/vault/o?uploadType=resumable&upload_id=x", "PUT")

    assert status_of(said) == 200, said
    assert endless.arrived == sealed_size(SIZE)
    assert peak_mib(proxy) < RSS_MAX_MIB


def works(proxy: AttackedProxy) -> bool:
    said = proxy.said(http("PUT", "/vault/small")), proxy.said(http("GET", "/vault/small", body=b""))
    return status_of(said[0]) == 200 and said[1].endswith(MARK)


def test_two_hundred_idle_connections_take_little_and_hold_up_nobody(proxy: AttackedProxy) -> None:
    before = peak_mib(proxy)
    with contextlib.ExitStack() as stack:
        for _ in range(200):
            connection = stack.enter_context(proxy.connect())
            connection.sendall(http("GET", "/vault/none", body=b"").replace(b"Connection: close\r\n", b""))
            assert connection.recv(4096).startswith(b"HTTP/1.1 404")
        assert works(proxy)
        assert peak_mib(proxy) - before < 100


def test_heads_that_trickle_hold_up_nobody(proxy: AttackedProxy) -> None:
    with contextlib.ExitStack() as stack:
        for count in range(100):
            connection = stack.enter_context(proxy.connect())
            connection.sendall(b"PUT /vault/slow HTTP/1.1\r\nX-Slow: " + b"x" * count)
        for _ in range(100):
            # Neither CONNECT nor the handshake comes to an end.
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port), 20))
            plain.sendall(b"CONNECT storage.goog")
        assert works(proxy)


def test_a_body_that_never_comes_holds_up_nobody(proxy: AttackedProxy) -> None:
    with contextlib.ExitStack() as stack:
        for count in range(60):
            connection = stack.enter_context(proxy.connect())
            connection.sendall(http("PUT", f"/vault/never{count}", "Content-Length: 100000000", body=MARK))
        assert works(proxy)


def test_who_takes_all_descriptors_only_harms_itself(tmp_path: Path) -> None:
    with attacked(tmp_path) as proxy:
        assert proxy.process is not None
        for process in proxy.processes:
            subprocess.run(["prlimit", f"--pid={process}", "--nofile=120:120"], check=True)
        with contextlib.ExitStack() as stack:
            for _ in range(150):
                with contextlib.suppress(OSError):
                    plain = stack.enter_context(socket.create_connection(("127.0.0.1", proxy.port), 5))
                    plain.settimeout(5)
            # They hold what they got; the proxy ends those that say nothing.
            deadline = time.monotonic() + 60
            while True:
                with contextlib.suppress(OSError):
                    if works(proxy):
                        break
                assert time.monotonic() < deadline
        assert proxy.process.poll() is None


def test_many_at_once_get_their_own_bytes(proxy: AttackedProxy) -> None:
    wrong: list[object] = []

    def run(number: int) -> None:
        session = proxy.requests()
        for turn in range(6):
            data = MARK + bytes([number, turn]) * (50_000 * (number % 7) + 1)
            # Two write each name, at once; what is read is whole, and one of theirs.
            url = f"https://{HOST}/vault/many-{number % 6}"
            if session.put(url, data=data, timeout=60).status_code != 200:
                wrong.append((number, turn))
            got = session.get(url, timeout=60)
            rest = got.content[len(MARK) :]
            if got.status_code != 200 or not got.content.startswith(MARK) or len(set(rest[::2])) != 1:
                wrong.append((number, turn, got.status_code))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert not proxy.in_the_clear()
