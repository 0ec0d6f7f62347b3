"""From the environment to a running proxy: which keys, which storage service, which folders.

Layer: wiring. The proxy is ready when its certificate is published; who waits for that file may begin.
"""

from __future__ import annotations

import functools
import ipaddress
import logging
import os
import resource
import shlex
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from bastion.adapters.kms.key_service import open_kms
from bastion.adapters.system_clock import SystemClock
from bastion.core.encryption import client_environment
from bastion.core.errors import KmsRefused, Refused
from bastion.net.http1 import HttpServer
from bastion.net.http1.server import Admit
from bastion.net.peers import is_ours
from bastion.ports import Kms, ObjectMetadata
from bastion.proxy.calls import Parts
from bastion.proxy.handler import handler
from bastion.proxy.objects import KnownObjects
from bastion.proxy.sealed.envelopes import SESSION_CONTEXT, Envelopes
from bastion.proxy.service.forwarding import ForwardingUpstream
from bastion.proxy.service.intercepted import is_storage
from bastion.proxy.serving.authority import BUNDLE_FILE, CA_FILE, ProxyAuthority
from bastion.proxy.serving.freed_memory import keep_freed_memory
from bastion.proxy.serving.listener import ProxyListener
from bastion.proxy.serving.prefork import Prefork, Seat, within_limits
from bastion.proxy.settings import LISTEN, ProxySettings
from bastion.proxy.uploads.resumables import Resumables

_log = logging.getLogger(__name__)

# Requests at hand get so long when the proxy is told to end.
_GRACE_SECONDS = 10.0
_BACKLOG = 512
# The host's processors are there for its job; what more than two processes gain was not measured.
_PROCESSES_MAX = 4


def kms_of(settings: ProxySettings) -> Kms:
    """The key service that the settings name.

    Raises:
        Refused, KmsRefused: its library is not installed, or there are no credentials.
    """
    return open_kms(settings.keyring)


def envelopes(settings: ProxySettings) -> Envelopes:
    return Envelopes(kms_of(settings), clock=SystemClock(), trusted=settings.trusted_keys)


def object_metadata() -> ObjectMetadata:
    from bastion.adapters.gcs.object_metadata import GcsObjectMetadata

    return GcsObjectMetadata()


def try_key(kms: Kms, key: str) -> None:
    """Wraps and unwraps something under a key.

    Raises:
        KmsRefused: it cannot be used, or does not give back what it was given.
        KmsUnavailable: the key service does not answer.
    """
    trial = os.urandom(32)
    wrapped = kms.wrap(key, trial, associated=SESSION_CONTEXT)
    if kms.unwrap(key, wrapped.version, wrapped.data, associated=SESSION_CONTEXT) != trial:
        raise KmsRefused(f"{key} does not unwrap what it wrapped; its key service is broken")


def serve(environment: Mapping[str, str], *, home: Path, say: Callable[[str], None]) -> int:
    """Runs the proxy until SIGTERM or SIGINT; returns the exit code.

    Args:
        home: Where its state lies if the environment names no folder.
        say: Told what a shell needs whose programs are to use the proxy.

    Raises:
        Refused, KmsRefused: the environment is malformed, a key cannot be used, or the port is taken.
        KmsUnavailable: the key service does not answer.
        BastionError: a process of the proxy ended unasked, or there cannot be so many.
    """
    settings = ProxySettings.from_environment(environment)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    # Ours alone: libraries log whole requests, with tokens and keys in them.
    logging.getLogger("bastion").setLevel(logging.DEBUG if settings.debug else logging.INFO)
    keep_freed_memory()
    # Keys are in memory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A connection of a client takes one to the service, and the usual limit of 1024 would be few.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    # A client's environment may have come down to us, and the key service must not be asked through ourselves.
    own = f"http://{_address(*settings.listen)}"
    for name in ("https_proxy", "HTTPS_PROXY"):
        if os.environ.get(name, "").rstrip("/") == own:
            del os.environ[name]
    state = settings.state_path or home / "proxy"
    authority = ProxyAuthority(state / "authority")
    upstream = ForwardingUpstream(endpoint=settings.upstream or "")
    count = settings.processes or _usual_processes()
    prefork = Prefork(count, lambda seat: _serve(settings, state, authority, upstream, seat, count=count))
    grace_seconds = 0.0
    try:
        if not prefork.start():
            return 0
        host, port = settings.listen
        with _listening(host, port) as listener:
            published = settings.cert_path or state / "certs"
            authority.publish(published)
            _tell(settings, environment, _address(host, listener.getsockname()[1]), published, say)
            grace_seconds = _GRACE_SECONDS
            prefork.distribute(listener)
            return 0
    finally:
        prefork.close(grace_seconds)


def _serve(
    settings: ProxySettings,
    state: Path,
    authority: ProxyAuthority,
    upstream: ForwardingUpstream,
    seat: Seat,
    *,
    count: int,
) -> Callable[[float], None]:
    """Begins to serve in one of the processes; returns what ends that.

    Raises:
        Refused, KmsRefused, KmsUnavailable: a key cannot be used.
        BastionError: there can be no more threads.
    """
    kms = kms_of(settings)
    if seat.siblings.own == 0:
        for key in settings.mapping.keys:
            try_key(kms, key)
    parts = Parts(
        mapping=settings.mapping,
        envelopes=Envelopes(kms, clock=SystemClock(), trusted=settings.trusted_keys),
        objects=KnownObjects(),
        resumables=Resumables(state / "uploads"),
        upstream=upstream,
        siblings=seat.siblings,
        encrypt=settings.encrypt,
        allow_plaintext=settings.allow_plaintext,
    )
    clients = ProxyListener(
        handler(parts),
        intercepts=lambda name, _port: is_storage(name),
        context=authority.context,
        admit=_admitting(settings),
        listener=seat.clients,
        workload=seat.workload,
    )
    requests = HttpServer(clients.answer, listener=seat.requests)
    with within_limits(count):
        requests.open()
        clients.open()

    def close(grace_seconds: float) -> None:
        deadline = time.monotonic() + grace_seconds
        clients.close(grace_seconds)
        requests.close(max(0.0, deadline - time.monotonic()))
        upstream.close()

    return close


def _admitting(settings: ProxySettings) -> Admit | None:
    """Who may use it, where that can be known: it decrypts with the keys of the user that runs it.

    An address that other machines reach is an operator's decision, and whose a connection is cannot be known there.
    """
    try:
        local = ipaddress.ip_address(settings.listen[0]).is_loopback
    except ValueError:
        local = settings.listen[0] == "localhost"
    if settings.users is None or not local:
        return None
    return functools.partial(is_ours, others=settings.users)


def _usual_processes() -> int:
    """One for each processor that this program may use, up to a few."""
    return min(_PROCESSES_MAX, len(os.sched_getaffinity(0)))


def _listening(host: str, port: int) -> socket.socket:
    """
    Raises:
        Refused: the port is taken, or the host is none.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise Refused(
            f"the proxy cannot listen on {_address(host, port)} ({error.strerror}); set {LISTEN} to a free port"
        ) from error


def _address(host: str, port: int) -> str:
    """As it stands in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tell(
    settings: ProxySettings, environment: Mapping[str, str], address: str, published: Path, say: Callable[[str], None]
) -> None:
    """What a person who started it needs to know; and what must not be overlooked."""
    for entry in settings.mapping.entries:
        what = "is encrypted" if settings.encrypt else "is NOT encrypted: GCS_PROXY_DISABLE_ENCRYPTION is set"
        _log.info("what is stored in %s/%s %s", entry.bucket, entry.prefix, what)
    if settings.upstream:
        _log.warning("what is meant for the storage service goes to %s", settings.upstream)
    if settings.allow_plaintext:
        _log.warning("plaintext in mapped buckets may be read")
    _log.info("ready on %s; %s", address, published / CA_FILE)
    say(f"export https_proxy=http://{address} HTTPS_PROXY=http://{address}")
    say("export no_proxy=metadata.google.internal,169.254.169.254,localhost,127.0.0.1")
    for name in client_environment.BUNDLES:
        say(f"export {name}={published / BUNDLE_FILE}")
    for name, value in client_environment.defaults(environment).items():
        say(f"export {name}={shlex.quote(value)}")
