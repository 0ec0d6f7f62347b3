"""The metadata server of an emulated host or pod, like Compute Engine's under `/computeMetadata/v1/`.

Runs in the supervisor, on the host's own loopback address. Standard library only.

The metadata may hold secrets (a startup script, a run token), and any local user can connect. So a request must have
`Metadata-Flavor: Google` and no `X-Forwarded-For`, as on a real VM, where that stops browsers and naive proxies. The
peer must belong to this user or root (`bastion.net.peers`). The request's host must be a name of the metadata server,
because a page whose name resolves to a loopback address can send any header.
"""

from __future__ import annotations

import hashlib
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

from bastion.net import cross_site, peers

_ROOT = "/computeMetadata/v1/"
_GUEST_ATTRIBUTES = "instance/guest-attributes/"
_VALUE_MAX_BYTES = 256 * 1024
_GUEST_ATTRIBUTES_MAX = 1000
_WAIT_MAX_SECONDS = 60.0
# The real server's names, which clients may send to any address.
_HOSTS = frozenset(("metadata", "metadata.google.internal", "169.254.169.254"))

# A leaf is a value or a function; a folder holds both.
Leaf = str | Callable[[], str]
Tree = dict[str, Any]


def account(email: str) -> Tree:
    """A service account, with a token that the emulated Cloud Storage accepts."""
    token = {"access_token": "emulated", "expires_in": 3599, "token_type": "Bearer"}
    return {
        "aliases": "default\n",
        "email": email,
        "scopes": "https://www.googleapis.com/auth/cloud-platform\n",
        "token": json.dumps(token),
    }


def find(root: Tree, path: str) -> Tree | Leaf | None:
    """The entry at a path like `instance/attributes/`; None: no such entry."""
    found: Any = root
    for piece in path.strip("/").split("/") if path.strip("/") else []:
        if not isinstance(found, dict) or piece not in found:
            return None
        found = found[piece]
    return found  # type: ignore[no-any-return]


def render(found: Tree | Leaf, *, recursive: bool) -> tuple[str, str]:
    """Content type and body: a value, a folder's listing, or with `recursive` the folder as JSON."""
    if isinstance(found, dict):
        if recursive:
            return "application/json", json.dumps(_as_json(found))
        return "application/text", "".join(
            f"{name}/\n" if isinstance(child, dict) else f"{name}\n" for name, child in sorted(found.items())
        )
    return "application/text", found() if callable(found) else found


def _as_json(found: Tree | Leaf, name: str = "") -> Any:
    if isinstance(found, dict):
        # Recursive answers omit the token, and lists are JSON lists; google-auth relies on both.
        return {child: _as_json(value, child) for child, value in found.items() if child != "token"}
    text = found() if callable(found) else found
    return text.split() if name in ("aliases", "scopes") else text


class MetadataServer:
    """Serves metadata on a listening socket."""

    def __init__(self, root: Tree, listener: socket.socket) -> None:
        class Handler(_Handler):
            metadata = root
            changed = threading.Lock()

        # Already bound by the emulator; binding here would look up the host's name.
        self._server = ThreadingHTTPServer(listener.getsockname()[:2], Handler, bind_and_activate=False)
        self._server.socket.close()
        self._server.socket = listener
        self._server.daemon_threads = True

    def start(self, *, stop_poll_seconds: float = 5.0) -> None:
        """Serve in a thread that checks for `stop` at this interval: an idle host should rarely wake up."""
        serve = self._server.serve_forever
        threading.Thread(target=serve, args=(stop_poll_seconds,), name="metadata", daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _etag(body: str) -> str:
    return hashlib.sha256(body.encode("utf-8", "surrogateescape")).hexdigest()[:16]


class _Handler(BaseHTTPRequestHandler):
    metadata: ClassVar[Tree]
    changed: ClassVar[threading.Lock]
    protocol_version = "HTTP/1.1"
    # A silent peer must not hold a thread forever.
    timeout = 90

    def log_message(self, format: str, *args: Any) -> None:
        """Silent: agents poll every second."""

    def version_string(self) -> str:
        return "Metadata Server for VM (emulated)"

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        if url.path == "/":
            # google-auth first asks here, without a flavor, whether this is a metadata server.
            return self._answer(HTTPStatus.OK, "computeMetadata/\n")
        if not self._allowed():
            return None
        found = self._find(url.path)
        if found is None:
            return self._answer(HTTPStatus.NOT_FOUND, f"there is no metadata at {url.path}\n")
        query = urllib.parse.parse_qs(url.query)
        recursive = query.get("recursive", [""])[0].lower() == "true"
        if query.get("wait_for_change", [""])[0].lower() == "true":
            last = query.get("last_etag", [""])[0]
            self._wait_for_change(found, query.get("timeout_sec", [""])[0], recursive=recursive, last=last)
        with self.changed:
            content_type, body = render(found, recursive=recursive)
        if url.path.endswith("/token"):
            content_type = "application/json"  # Otherwise google-auth treats it as text.
        return self._answer(HTTPStatus.OK, body, content_type, etag=_etag(body))

    def do_PUT(self) -> None:
        if not self._allowed():
            return None
        path = urllib.parse.urlsplit(self.path).path.removeprefix(_ROOT)
        pieces = path.removeprefix(_GUEST_ATTRIBUTES).split("/")
        if not path.startswith(_GUEST_ATTRIBUTES) or len(pieces) != 2 or not all(pieces):
            self.close_connection = True  # The body stays unread.
            return self._answer(HTTPStatus.NOT_FOUND, "only instance/guest-attributes/NAMESPACE/KEY can be written\n")
        length = self.headers.get("Content-Length", "")
        if not length.isdigit() or int(length) > _VALUE_MAX_BYTES:
            self.close_connection = True
            return self._answer(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a value must be at most {_VALUE_MAX_BYTES} bytes\n"
            )
        value = self.rfile.read(int(length)).decode("utf-8", "replace")
        with self.changed:
            guest = self.metadata["instance"]["guest-attributes"]
            if sum(len(keys) for keys in guest.values()) >= _GUEST_ATTRIBUTES_MAX:
                return self._answer(
                    HTTPStatus.INSUFFICIENT_STORAGE, f"a host must have at most {_GUEST_ATTRIBUTES_MAX} attributes\n"
                )
            guest.setdefault(pieces[0], {})[pieces[1]] = value
        return self._answer(HTTPStatus.OK, "")

    def _find(self, path: str) -> Tree | Leaf | None:
        if not path.startswith(_ROOT):
            return None
        with self.changed:
            return find(self.metadata, urllib.parse.unquote(path.removeprefix(_ROOT)))

    def _allowed(self) -> bool:
        if self.headers.get("Metadata-Flavor") != "Google":
            reason = "the request has no 'Metadata-Flavor: Google' header"
        elif "X-Forwarded-For" in self.headers:
            reason = "the request was forwarded (X-Forwarded-For)"
        elif not peers.is_ours(self.client_address, self.connection.getsockname()):
            reason = "the request comes from another user of this machine"
        elif why := cross_site.refusal(lambda name: self.headers.get_all(name) or [], hosts=_HOSTS):
            reason = why
        else:
            return True
        self.close_connection = True
        self._answer(HTTPStatus.FORBIDDEN, f"refused: {reason}\n")
        return False

    def _wait_for_change(self, found: Tree | Leaf, timeout: str, *, recursive: bool, last: str) -> None:
        """Return when the value differs from the one with the tag `last`, by default the current one."""
        deadline = time.monotonic() + min(float(timeout) if timeout.isdigit() else _WAIT_MAX_SECONDS, _WAIT_MAX_SECONDS)
        before = last or _etag(render(found, recursive=recursive)[1])
        while time.monotonic() < deadline and _etag(render(found, recursive=recursive)[1]) == before:
            time.sleep(0.2)

    def _answer(self, status: HTTPStatus, body: str, content_type: str = "application/text", *, etag: str = "") -> None:
        data = body.encode("utf-8", "surrogateescape")
        self.send_response(status)
        self.send_header("Metadata-Flavor", "Google")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        if etag:
            self.send_header("ETag", etag)
        self.end_headers()
        self.wfile.write(data)
