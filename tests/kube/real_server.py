"""A real Kubernetes API server over etcd on loopback, from the programs that `make kube` builds.

With TLS by an authority of its own, one bearer token, the namespaces that every cluster has, and the
CustomResourceDefinitions of JobSet and Kueue.
"""

from __future__ import annotations

import base64
import datetime
import functools
import http.client
import json
import os
import secrets
import shutil
import socket
import ssl
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization

from bastion.net.tls import Authority, new_key
from bastion.processes import end_with_parent
from tests.support.kubernetes_schemas import crd_documents, kueue_documents
from tests.support.waiting import until

NAMESPACES = ("default", "kube-system")


def programs() -> Path:
    """The folder where `make kube` puts kube-apiserver and etcd."""
    cache = os.environ.get("BASTION_KUBE_CACHE")
    if cache:
        return Path(cache) / "bin"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bastion-kube" / "bin"


def missing() -> str:
    """Why no server can be started here; empty if one can."""
    for program in ("kube-apiserver", "etcd"):
        if not (programs() / program).is_file():
            return f"no real API server: {programs() / program} is missing; run: make kube"
    try:
        crd_documents()
        kueue_documents()
    except FileNotFoundError as error:
        return str(error)
    return ""


class RealServer:
    """etcd and kube-apiserver as processes; `open` returns when the server answers and serves JobSets.

    Attributes:
        server: `https://127.0.0.1:PORT`.
        token: Of a user who may do everything.
        ca_file: The authority that clients must trust.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="bastion-kube-"))
        self._ports = _free_ports(3)
        self.server = f"https://127.0.0.1:{self._ports[0]}"
        self.token = secrets.token_hex(16)
        self.ca_file = str(self._folder / "ca.pem")
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> RealServer:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Raises AssertionError with the end of the log if a program ends or does not answer."""
        try:
            self._write_certificates()
            (self._folder / "tokens.csv").write_text(f'{self.token},admin,admin,"system:masters"\n')
            self._start_etcd()
            self._start_server()
            self._prepare()
            self.restart()
        except BaseException:
            self.close()
            raise

    def restart(self) -> None:
        """Restart the server with etcd compacted: no older version can be watched or listed."""
        self._end(self._processes.pop())
        found = self._etcd("/v3/kv/range", {"key": _base64("\0")})
        self._etcd("/v3/kv/compaction", {"revision": found["header"]["revision"], "physical": True})
        self._start_server()

    def close(self) -> None:
        for process in reversed(self._processes):
            self._end(process)
        self._processes.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Send one JSON request; returns the status code and the decoded answer (text if it is not JSON)."""
        context = ssl.create_default_context(cafile=self.ca_file)
        connection = http.client.HTTPSConnection("127.0.0.1", self._ports[0], timeout=30, context=context)
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        try:
            return answer.status, json.loads(text)
        except ValueError:
            return answer.status, text

    def _prepare(self) -> None:
        for name in NAMESPACES:
            self._create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        for document in (*crd_documents(), *kueue_documents()):
            self._create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", document)
        self._await_job_sets()

    def _await_job_sets(self) -> None:
        """The server learns of its CustomResourceDefinitions after it is ready, and tells of them later still."""
        kueue = [f"v1beta2/{document['spec']['names']['plural']}" for document in kueue_documents()]
        for path in ("v1alpha2/jobsets", "v1alpha2", ""):
            until(lambda path=path: self.request("GET", f"/apis/jobset.x-k8s.io/{path}".rstrip("/"))[0] == 200)
        for path in (*kueue, "v1beta2", ""):
            until(lambda path=path: self.request("GET", f"/apis/kueue.x-k8s.io/{path}".rstrip("/"))[0] == 200)
        # The list of kinds grows one by one.
        until(lambda: {f"v1beta2/{name}" for name in self._kinds("kueue.x-k8s.io/v1beta2")} >= {*kueue})

    def _kinds(self, version: str) -> list[str]:
        answer = self.request("GET", f"/apis/{version}")[1]
        return [each["name"] for each in answer["resources"]]

    def _create(self, path: str, document: dict[str, Any]) -> None:
        code, answer = self.request("POST", path, document)
        assert code == 201, answer

    def _write_certificates(self) -> None:
        now, lifetime = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=2)
        authority = Authority.new("bastion kube test CA", now=now, lifetime=lifetime)
        server = authority.sign("kube-apiserver", ("127.0.0.1", "localhost"), key=new_key(), now=now, lifetime=lifetime)
        key = server.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        Path(self.ca_file).write_bytes(authority.public_pem)
        (self._folder / "server.pem").write_bytes(server.certificate.public_bytes(serialization.Encoding.PEM))
        (self._folder / "server.key").write_bytes(key)

    def _start_etcd(self) -> None:
        client, peer = (f"http://127.0.0.1:{port}" for port in self._ports[1:])
        self._start(
            "etcd", f"--data-dir={self._folder / 'etcd'}", "--unsafe-no-fsync", f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
        )  # fmt: skip
        self._await(lambda: self._etcd("/v3/maintenance/status", {}))

    def _start_server(self) -> None:
        self._start(
            "kube-apiserver", f"-etcd=http://127.0.0.1:{self._ports[1]}", f"-port={self._ports[0]}",
            f"-certificate={self._folder / 'server.pem'}", f"-key={self._folder / 'server.key'}",
            f"-tokens={self._folder / 'tokens.csv'}",
        )  # fmt: skip
        self._await(lambda: self.request("GET", "/readyz")[0] == 200)
        if (self._folder / "prepared").exists():
            self._await_job_sets()
        (self._folder / "prepared").touch()

    def _start(self, program: str, *options: str) -> None:
        with (self._folder / f"{program}.log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(
                    [str(programs() / program), *options],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._folder,
                    preexec_fn=functools.partial(end_with_parent, os.getpid()),
                )
            )

    def _await(self, ready: Any) -> None:
        """Wait until the program started last answers."""
        process = self._processes[-1]

        def answers() -> bool:
            assert process.poll() is None, self._log(process)
            try:
                return bool(ready())
            except OSError:
                return False

        until(answers)

    def _log(self, process: subprocess.Popen[bytes]) -> str:
        program = Path(str(process.args[0])).name  # type: ignore[index]
        text = (self._folder / f"{program}.log").read_text(errors="replace")
        return f"{program} ended with {process.returncode}: ...{text[-2000:]}"

    def _etcd(self, path: str, message: dict[str, Any]) -> dict[str, Any]:
        """Call etcd by its JSON gateway."""
        connection = http.client.HTTPConnection("127.0.0.1", self._ports[1], timeout=10)
        try:
            connection.request("POST", path, json.dumps(message))
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
        finally:
            connection.close()
        return answer

    @staticmethod
    def _end(process: subprocess.Popen[bytes]) -> None:
        process.terminate()
        try:
            process.wait(5)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [found.getsockname()[1] for found in sockets]
    finally:
        for found in sockets:
            found.close()


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
