"""A stand-in for Google Secret Manager's access call, on this machine.

By its documentation: the REST method `projects.secrets.versions.access`, `SecretPayload` (`data` in base64,
`dataCrc32c` an int64 as a string), versions that are numbered from 1, `latest` as the newest one whatever its state,
and errors as of https://google.aip.dev/193. The words of the errors are those that users of the service quote.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import google_crc32c
from google.auth.credentials import Credentials

_NAME = re.compile(r"/v1/projects/([^/]+)/secrets/([^/]+)/versions/([^/:]+):access")
_STATUS = {
    400: "FAILED_PRECONDITION",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    503: "UNAVAILABLE",
}
ACCOUNT = "workers@our-team.iam.gserviceaccount.com"


class Token(Credentials):  # type: ignore[misc]
    """Credentials with one token that lasts."""

    service_account_email = ACCOUNT

    def __init__(self, token: str = "the-workers-token") -> None:
        super().__init__()
        self.token = token

    def refresh(self, request: object) -> None:
        raise AssertionError("the token lasts")


@dataclass
class SecretManagerServer:
    """One project's secrets.

    Attributes:
        versions: Value and state of each version of each secret.
        readers: Tokens that may access a secret; any, if it is not here.
        answers: What is sent instead of the next answers: status and message, or a change of the answer's document.
        asked: Method, path and headers (in lower case) of each request.
    """

    project: str = "our-team"
    versions: dict[str, list[tuple[bytes, str]]] = field(default_factory=dict)
    readers: dict[str, set[str]] = field(default_factory=dict)
    answers: list[tuple[int, str] | Callable[[dict[str, Any]], Any]] = field(default_factory=list)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)
    endpoint: str = ""

    def add(self, secret: str, value: bytes, state: str = "ENABLED") -> None:
        self.versions.setdefault(secret, []).append((value, state))

    def answer(self, path: str, token: str) -> tuple[int, Any]:
        """The status and the document of an answer."""
        change = self.answers.pop(0) if self.answers else None
        if isinstance(change, tuple):
            return change[0], _error(*change)
        found = _NAME.fullmatch(path.partition("?")[0])
        if found is None:
            return 404, "<html>the requested URL was not found</html>"
        project, secret, version = found.groups()
        name = f"projects/{project}/secrets/{secret}"
        if project != self.project or token not in self.readers.get(secret, {token}):
            denied = "Permission 'secretmanager.versions.access' denied for resource"
            return 403, _error(403, f"{denied} '{name}/versions/{version}' (or it may not exist).")
        versions = self.versions.get(secret, [])
        if not versions:
            return 404, _error(404, f"Secret [{name}] not found or has no versions.")
        number = len(versions) if version == "latest" else int(version)
        if not 1 <= number <= len(versions):
            return 404, _error(404, f"Secret Version [{name}/versions/{number}] not found.")
        value, state = versions[number - 1]
        if state != "ENABLED":
            return 400, _error(400, f"Secret Version [{name}/versions/{number}] is in {state} state.")
        checksum = str(google_crc32c.value(value))
        payload = {"data": base64.b64encode(value).decode(), "dataCrc32c": checksum}
        document: Any = {"name": f"projects/123456789012/secrets/{secret}/versions/{number}", "payload": payload}
        return 200, document if change is None else change(document)


def _error(status: int, message: str) -> dict[str, Any]:
    return {"error": {"code": status, "message": message, "status": _STATUS[status]}}


@contextmanager
def serving() -> Iterator[SecretManagerServer]:
    service = SecretManagerServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            service.asked.append(
                (self.command, self.path, {name.lower(): value for name, value in self.headers.items()})
            )
            token = self.headers.get("Authorization", "").removeprefix("Bearer ")
            status, document = service.answer(self.path, token)
            body = document.encode() if isinstance(document, str) else json.dumps(document, indent=2).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json; charset=UTF-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    service.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield service
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
