"""`bastion proxy run` as a process before a storage endpoint in this one, which sees all that arrives there."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import requests
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

from bastion.adapters.kms import keyring
from bastion.emulators.gcs.api import handler
from bastion.emulators.gcs.buckets import Buckets
from bastion.emulators.gcs.uploads import Uploads
from bastion.net.http1 import Body, HttpServer, Request, Response

HOST = "storage.googleapis.com"
URL = f"https://{HOST}"
UPLOAD = f"{URL}/upload/storage/v1/b/vault/o"
KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
# What no client may ever find in the bucket's folder, in an answer of the service, or on the way there.
MARK = b"never-in-the-clear-"
TOKEN = "a-secret-token"
_RUN = [sys.executable, "-c", "import sys; from bastion.cli.main import main; sys.exit(main())", "proxy", "run"]

Answer = Callable[[Request], Response]


@dataclass
class Seen:
    """A request that arrived at the endpoint."""

    request: Request
    body: bytearray = field(default_factory=bytearray)

    @property
    def line(self) -> str:
        return f"{self.request.method} {self.request.target}"


class _Watched(Body):
    """A request's body whose bytes are noted as they come."""

    def __init__(self, body: Body, noted: Callable[[bytes], None]) -> None:
        super().__init__(body.length)
        self._body = body
        self._noted = noted

    @property
    def finished(self) -> bool:
        return self._body.finished

    def receive(self, max_bytes: int) -> bytes:
        piece = self._body.receive(max_bytes)
        self._noted(piece)
        return piece


class AttackedProxy:
    """A proxy process, and behind it the buckets `vault` (mapped), `attic` (mapped below `deep/`) and `lake`.

    Attributes:
        seen: All requests that arrived at the endpoint.
        wrap: Put around the endpoint's own answer; a test may replace it.
        watch: Called with each request and the number of its body's bytes so far.
        log: What the proxy said.
    """

    def __init__(self, folder: Path, **environment: str) -> None:
        self.folder, self.buckets, self.log = folder, folder / "buckets", folder / "proxy.log"
        made = Buckets(self.buckets)
        for name in ("vault", "attic", "lake"):
            made.create(name)
        self.endpoint_handler = handler(made, Uploads(made))
        self.seen: list[Seen] = []
        self.wrap: Callable[[Answer], Answer] = lambda answer: answer
        self.watch: Callable[[Seen, int], None] = lambda seen, size: None
        self._endpoint = HttpServer(self._answer)
        self._endpoint.open()
        self.endpoint = f"http://127.0.0.1:{self._endpoint.port}"
        self.keyring = folder / "keyring.json"
        keyring.create(self.keyring, KEY)
        # Ours for as long as it comes and goes: who listens there may, and nobody else is given the port meanwhile.
        self._reserved = reserved("127.0.0.1")
        self.port = self._reserved.getsockname()[1]
        self._certificates = folder / "certs"
        base = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        self.environment = {
            **base,
            "GCP_KMS_BUCKET_KEY_MAPPING": f"vault:{KEY},attic/deep/:{KEY}",
            "GCS_PROXY_KEYRING": str(self.keyring),
            "GCS_PROXY_STATE_PATH": str(folder / "state"),
            "GCS_PROXY_LISTEN": f"127.0.0.1:{self.port}",
            "GCS_PROXY_UPSTREAM": self.endpoint,
            "PROXY_CERT_PATH": str(self._certificates),
            "DEBUG_LEVEL": "1",
            **environment,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self._trust: ssl.SSLContext | None = None
        self.start()

    @property
    def bundle(self) -> str:
        return str(self._certificates / "ca-bundle.pem")

    def start(self, **environment: str) -> None:
        """Starts it at the same address, on the same state."""
        with contextlib.suppress(FileNotFoundError):
            (self._certificates / "mitmproxy-ca-cert.pem").unlink()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                _RUN, env={**self.environment, **environment}, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=log,
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while not (self._certificates / "mitmproxy-ca-cert.pem").exists():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, "the proxy does not come up"
            time.sleep(0.02)

    @property
    def processes(self) -> list[int]:
        """The one that was started, and those that serve."""
        assert self.process is not None
        first = self.process.pid
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        return [first, *map(int, children)]

    def kill(self) -> None:
        # Where another thread starts it again as soon as its connections end, this one waits for the old process.
        process = self.process
        assert process is not None
        process.kill()
        process.wait()

    def close(self) -> None:
        self.kill()
        self._endpoint.close()
        self._reserved.close()

    def _answer(self, request: Request) -> Response:
        seen = Seen(request)
        self.seen.append(seen)

        def noted(piece: bytes) -> None:
            seen.body.extend(piece)
            self.watch(seen, len(seen.body))

        return self.wrap(self.endpoint_handler)(replace(request, body=_Watched(request.body, noted)))

    def check_log(self) -> None:
        """The log tells of no mistake of the program itself, and nothing secret."""
        log = self.log.read_text()
        assert "Traceback" not in log, log[log.index("Traceback") :][:3000]
        for secret in (TOKEN, "upload_id", "Bearer", MARK.decode(), "PRIVATE KEY", *self.secrets):
            assert secret not in log, secret

    @property
    def secrets(self) -> list[str]:
        """The keys in the keyring."""
        keys = json.loads(self.keyring.read_text())["keys"].values()
        return [secret for key in keys for secret in key["versions"].values()]

    def ask_endpoint(self, method: str, path: str, **more: object) -> requests.Response:
        """A request past the proxy: what the bucket's provider, or whoever can write there, does."""
        return requests.request(method, f"{self.endpoint}{path}", timeout=20, **more)  # type: ignore[arg-type]

    def requests(self) -> requests.Session:
        session = requests.Session()
        session.trust_env = False
        session.proxies = {"https": f"http://127.0.0.1:{self.port}"}
        session.verify = self.bundle
        session.headers["Authorization"] = f"Bearer {TOKEN}"
        return session

    def client(self) -> storage.Client:
        """google-cloud-storage, through the proxy."""
        return storage.Client(
            project="p", credentials=AnonymousCredentials(), _http=self.requests(),
            client_options={"api_endpoint": f"https://{HOST}"},
        )  # fmt: skip

    def connect(self, host: str = HOST, *, asked: str = "") -> ssl.SSLSocket:
        """A TLS connection through the proxy to a host.

        Args:
            asked: What CONNECT names; empty: the host.
        """
        plain = socket.create_connection(("127.0.0.1", self.port), 20)
        plain.sendall(f"CONNECT {asked or f'{host}:443'} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        answer = b""
        while b"\r\n\r\n" not in answer:
            piece = plain.recv(4096)
            if not piece:
                raise ConnectionError(answer)
            answer += piece
        if not answer.startswith(b"HTTP/1.1 200"):
            plain.close()
            raise ConnectionError(answer)
        if self._trust is None:
            self._trust = ssl.create_default_context(cafile=self.bundle)
        return self._trust.wrap_socket(plain, server_hostname=host)

    def said(self, data: bytes, host: str = HOST, *, asked: str = "") -> bytes:
        """All that the proxy says to some bytes, until it has nothing more to say."""
        with self.connect(host, asked=asked) as connection:
            connection.settimeout(20)
            connection.sendall(data)
            return received(connection)

    def in_the_clear(self) -> list[str]:
        """Where the mark arrived or lies, which it must not."""
        arrived = [seen.line for seen in self.seen if MARK in seen.body]
        return arrived + [str(path) for path in self.marked()]

    def marked(self, bucket: str = "") -> list[Path]:
        """The files of a bucket, or of all, that hold the mark; one that is removed meanwhile holds nothing."""
        return [path for path in (self.buckets / bucket).rglob("*") if MARK in _content(path)]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, IsADirectoryError):
        return b""


def reserved(host: str, family: socket.AddressFamily = socket.AF_INET) -> socket.socket:
    """A socket that keeps a port of an address for whoever may share it, which is who listens there as servers do.

    Raises:
        OSError: this machine has no such address.
    """
    kept = socket.socket(family)
    try:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind((host, 0))
    except OSError:
        kept.close()
        raise
    return kept


def received(connection: socket.socket) -> bytes:
    """What comes until the peer ends."""
    answer = b""
    with contextlib.suppress(OSError):
        while piece := connection.recv(65536):
            answer += piece
    return answer


def http(method: str, target: str, *headers: str, body: bytes = MARK, host: str = HOST) -> bytes:
    """A request as bytes, the last on its connection."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    if not any(line.lower().startswith(("content-length", "transfer-encoding")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def content(size: int, seed: int) -> bytes:
    """Of an object: it begins with the mark, and is another for each seed."""
    return (MARK + random.Random(seed).randbytes(1000) * (size // 1000 + 1))[:size]


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


@contextlib.contextmanager
def attacked(folder: Path, **environment: str) -> Iterator[AttackedProxy]:
    proxy = AttackedProxy(folder, **environment)
    try:
        yield proxy
    finally:
        proxy.close()
    proxy.check_log()
