"""The API server: state folder, objects, HTTPS.

Invariants:

* One server per folder (`flock`), on 127.0.0.1, for processes of this user and root.
* `kubernetes.json` exists only while the server answers.
* A restart keeps port, token, certificate and objects.
"""

from __future__ import annotations

import datetime
import errno
import json
import os
import secrets
import threading
from pathlib import Path

from bastion.core.errors import Refused
from bastion.emulators.kubernetes.address import KubernetesAddress, publish, withdraw
from bastion.emulators.kubernetes.apiserver import certificate, first_objects, retention
from bastion.emulators.kubernetes.apiserver.api import Api
from bastion.emulators.kubernetes.apiserver.faults import ApiFaults
from bastion.emulators.kubernetes.apiserver.store import Store
from bastion.emulators.state_folder import hold, make_private, read_document, this_process, write_private
from bastion.net import peers
from bastion.net.http1 import HttpServer

_HOST = "127.0.0.1"
_LAST_FILE = "apiserver.json"
_OBJECTS_FILE = "objects.sqlite"
_SWEEP_SECONDS = 60.0


class ApiServer:
    """Kubernetes' API on this machine. Call `open`, use `address`, call `close`.

    Args:
        state_dir: Created if missing; made private.
        port: 0: the last run's if free, else any.
        faults: May be changed while the server runs.
        bookmark_seconds: Interval of bookmarks in watches that allow them.
        kueue: Serve Kueue's kinds and run its webhooks.
    """

    def __init__(
        self,
        state_dir: Path,
        *,
        port: int = 0,
        faults: ApiFaults | None = None,
        bookmark_seconds: float = 60.0,
        kueue: bool = False,
    ) -> None:
        self.state_dir = state_dir.absolute()
        self.faults = faults or ApiFaults()
        self._port = port
        self._bookmark_seconds = bookmark_seconds
        self._kueue = kueue
        self._closing = threading.Event()
        self._lock: int | None = None
        self._store: Store | None = None
        self._server: HttpServer | None = None
        self._address: KubernetesAddress | None = None

    @property
    def address(self) -> KubernetesAddress:
        assert self._address is not None, "the API server is not open"
        return self._address

    def __enter__(self) -> ApiServer:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> KubernetesAddress:
        """Start serving. Raises EmulatorRunning if the folder is served already, Refused if it cannot be used."""
        try:
            return self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> KubernetesAddress:
        self._closing.clear()
        make_private(self.state_dir)
        self._lock = hold(self.state_dir)
        last = read_document(self.state_dir / _LAST_FILE)
        token = last.get("token")
        if not isinstance(token, str) or not token:
            token = secrets.token_urlsafe(32)
        ca_file, context = certificate.ensure(self.state_dir, now=datetime.datetime.now(datetime.timezone.utc))
        store = self._store = Store(self.state_dir / _OBJECTS_FILE, has_kueue=self._kueue)
        first_objects.ensure(store)
        threading.Thread(target=self._sweep, args=(store,), name="kubernetes-sweep", daemon=True).start()
        api = Api(
            store,
            token=token,
            faults=self.faults,
            ended=self._closing.is_set,
            bookmark_seconds=self._bookmark_seconds,
        )
        found = last.get("port")
        tries = [self._port] if self._port else [found if isinstance(found, int) and 0 < found < 1 << 16 else 0, 0]
        for port in tries:
            server = HttpServer(api, host=_HOST, port=port, tls=context, admit=peers.is_ours)
            try:
                server.open()
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                continue
            self._server = server
            break
        else:
            raise Refused(f"port {self._port} of {_HOST} is in use or not permitted; choose another, or omit it")
        write_private(self.state_dir / _LAST_FILE, _encoded(port=server.port, token=token))
        address = KubernetesAddress(
            server=f"https://{_HOST}:{server.port}", token=token, ca_file=str(ca_file), process=this_process()
        )
        publish(self.state_dir, address)
        self._address = address
        return address

    def close(self, *, grace_seconds: float = 5.0) -> None:
        """Stop serving; open watches end at once, active requests may finish within the grace period."""
        if self._address is not None:
            withdraw(self.state_dir)
            self._address = None
        self._closing.set()
        store, self._store = self._store, None
        if store is not None:
            with store.lock:
                store.changed.notify_all()
        if self._server is not None:
            self._server.close(grace_seconds)
            self._server = None
        if store is not None:
            store.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _sweep(self, store: Store) -> None:
        while not self._closing.wait(_SWEEP_SECONDS):
            with store.lock:
                if not self._closing.is_set():
                    retention.sweep(store, datetime.datetime.now(datetime.timezone.utc))

    def expire_history(self) -> None:
        """Make every version before now too old to watch or to page on from."""
        assert self._store is not None, "the API server is not open"
        self._store.expire_history()

    def cut_watches(self) -> None:
        """Reset the connections of all open watches."""
        assert self._store is not None, "the API server is not open"
        self.faults.cut_watches()
        with self._store.lock:
            self._store.changed.notify_all()


def _encoded(*, port: int, token: str) -> bytes:
    return json.dumps({"port": port, "token": token}).encode()
