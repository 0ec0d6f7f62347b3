"""The storage endpoint: a folder of buckets, its state folder, its HTTP and HTTPS servers.

Invariants:

* One endpoint per folder (`flock`), on 127.0.0.1, for processes of this user and root: write access to a bastion's
  bucket means running commands as its daemon's user. For the same reason web pages are refused.
* `endpoint.json` exists only while the endpoint answers.
* A restart keeps ports and certificate, so that connected clients continue.
"""

from __future__ import annotations

import contextlib
import datetime
import errno
import json
import os
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path

from bastion.core.errors import Refused
from bastion.emulators.gcs import certificate
from bastion.emulators.gcs.address import StorageAddress, publish, state_of, withdraw
from bastion.emulators.gcs.api import handler
from bastion.emulators.gcs.buckets import Buckets
from bastion.emulators.gcs.cross_site import without_web_pages
from bastion.emulators.gcs.faults import Faults
from bastion.emulators.gcs.iam.access import Access
from bastion.emulators.gcs.iam.identities import Identities
from bastion.emulators.gcs.objects import BeforeChange
from bastion.emulators.gcs.resources import BucketExists, InvalidRequest
from bastion.emulators.gcs.uploads import Uploads
from bastion.emulators.gcs.write_limit import WriteLimit
from bastion.emulators.state_folder import hold, make_private, read_document, this_process, write_private
from bastion.net import peers
from bastion.net.http1 import HttpServer
from bastion.net.http1.server import Handler

_HOST = "127.0.0.1"
_PORTS_FILE = "ports.json"
_SWEEP_SECONDS = 3600.0


def _take_every_change(_bucket: str, _name: str) -> None:
    """No limit."""


class StorageEndpoint:
    """Cloud Storage on this machine. Call `open`, use `url`, call `close`.

    Args:
        folder: Each direct subfolder with a valid name is a bucket; created if missing.
        port: Of HTTP; 0: the last run's if free, else any.
        https_port: The same for HTTPS; None: no HTTPS.
        buckets: Created if missing.
        faults: Closed by the endpoint.
        writes_per_object_second: More changes of one object are refused with 429; 0: no limit.
        fsync: Whether acknowledged data survives a power cut; it always survives a crash of the endpoint.
        allowed_hosts: Host names for clients, besides loopback and the real service's.
        identities: Who has which access token; with it, policies are enforced. None: everybody may do everything.
    """

    def __init__(
        self,
        folder: Path,
        *,
        port: int = 0,
        https_port: int | None = None,
        buckets: Sequence[str] = (),
        faults: Faults | None = None,
        writes_per_object_second: float = 0.0,
        fsync: bool = False,
        allowed_hosts: Sequence[str] = (),
        identities: Identities | None = None,
    ) -> None:
        self.folder = folder.absolute()
        self.faults = faults or Faults()
        self._port = port
        self._https_port = https_port
        self._wanted = tuple(buckets)
        self._before_change: BeforeChange = (
            WriteLimit(writes_per_object_second) if writes_per_object_second else _take_every_change
        )
        self._fsync = fsync
        self._allowed_hosts = tuple(allowed_hosts)
        self._access = None if identities is None else Access(identities)
        self._lock: int | None = None
        self._servers: list[HttpServer] = []
        self._address: StorageAddress | None = None
        self._closed = threading.Event()

    @property
    def address(self) -> StorageAddress:
        assert self._address is not None, "the endpoint is not open"
        return self._address

    @property
    def url(self) -> str:
        return self.address.url

    def __enter__(self) -> StorageEndpoint:
        self.open()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> StorageAddress:
        """Start serving. Raises EmulatorRunning if the folder is already served.

        Raises Refused if a port is in use, a bucket name is not valid, or the folder cannot be used.
        """
        try:
            return self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> StorageAddress:
        self._closed.clear()
        state = state_of(self.folder)
        make_private(state)
        self._lock = hold(state)
        buckets = Buckets(self.folder, fsync=self._fsync, before_change=self._before_change, access=self._access)
        for name in self._wanted:
            self._create(buckets, name)
        threading.Thread(target=self._sweep_hourly, args=(buckets,), name="gcs-sweep", daemon=True).start()
        answer = without_web_pages(self.faults.wrap(handler(buckets, Uploads(buckets))), self._allowed_hosts)
        last = read_document(state / _PORTS_FILE)
        http = self._serve(answer, self._port, last.get("port"))
        ports = {"port": http.port, "https_port": last.get("https_port", 0)}
        https_url = ca_file = ""
        if self._https_port is not None:
            identity = certificate.ensure(state, now=datetime.datetime.now(datetime.timezone.utc))
            https = self._serve(answer, self._https_port, last.get("https_port"), tls=identity.context())
            ports["https_port"] = https.port
            https_url, ca_file = f"https://{_HOST}:{https.port}", str(identity.ca_file)
        write_private(state / _PORTS_FILE, json.dumps(ports).encode())
        address = StorageAddress(
            url=f"http://{_HOST}:{http.port}", https_url=https_url, ca_file=ca_file, process=this_process()
        )
        publish(self.folder, address)
        self._address = address
        return address

    def close(self, *, grace_seconds: float = 5.0) -> None:
        """Stop serving; active requests may finish within the grace period."""
        if self._address is not None:
            withdraw(self.folder)
            self._address = None
        self._closed.set()
        self.faults.close()
        for server in self._servers:
            server.close(grace_seconds)
        self._servers.clear()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _sweep_hourly(self, buckets: Buckets) -> None:
        while not self._closed.wait(_SWEEP_SECONDS):
            # The folder may have been moved away.
            with contextlib.suppress(OSError):
                buckets.sweep()

    def _create(self, buckets: Buckets, name: str) -> None:
        with contextlib.suppress(BucketExists):
            try:
                buckets.create(name)
            except InvalidRequest as error:
                raise Refused(f"cannot create the bucket {name!r}: {error}") from error

    def _serve(self, answer: Handler, port: int, last: object, *, tls: ssl.SSLContext | None = None) -> HttpServer:
        """Open a server on a port, or by default on the last run's or any."""
        tries = [port] if port else [last if isinstance(last, int) and 0 < last < 1 << 16 else 0, 0]
        for wanted in tries:
            server = HttpServer(answer, host=_HOST, port=wanted, tls=tls, admit=peers.is_ours)
            try:
                server.open()
            except OSError as error:
                if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                    raise
                continue
            self._servers.append(server)
            return server
        raise Refused(f"port {port} of {_HOST} is in use or not permitted; choose another, or omit it")
