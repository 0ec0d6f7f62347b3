"""Build and run the proxy from the environment: key service, storage service, folders.

The proxy is ready when its certificate is published: clients wait for that file.
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

# How long active requests may continue after SIGTERM.
_GRACE_SECONDS = 10.0
_BACKLOG = 512
# The host's processors are for its job; more than two processes were not measured.
_PROCESSES_MAX = 4


def kms_of(settings: ProxySettings) -> Kms:
    """Open the key service in the settings; raises Refused or KmsRefused without its library or credentials."""
    return open_kms(settings.keyring)


def envelopes(settings: ProxySettings) -> Envelopes:
    return Envelopes(kms_of(settings), clock=SystemClock(), trusted=settings.trusted_keys)


def object_metadata() -> ObjectMetadata:
    from bastion.adapters.gcs.object_metadata import GcsObjectMetadata

    return GcsObjectMetadata()


def try_key(kms: Kms, key: str) -> None:
    """Wrap and unwrap something under a key.

    Raises KmsRefused if the key cannot be used, or does not return what it was given; KmsUnavailable.
    """
    trial = os.urandom(32)
    wrapped = kms.wrap(key, trial, associated=SESSION_CONTEXT)
    if kms.unwrap(key, wrapped.version, wrapped.data, associated=SESSION_CONTEXT) != trial:
        raise KmsRefused(f"{key} cannot unwrap what it wrapped; its key service is broken")


def serve(environment: Mapping[str, str], *, home: Path, say: Callable[[str], None]) -> int:
    """Run the proxy until SIGTERM or SIGINT; return the exit code.

    Args:
        home: The default place of its state.
        say: Called with the lines that a client's shell needs.

    Raises:
        Refused, KmsRefused: The environment is malformed, a key cannot be used, or the port is in use.
        KmsUnavailable: The key service does not answer.
        BastionError: A process ended unexpectedly, or a system limit.
    """
    settings = ProxySettings.from_environment(environment)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    # Our loggers only: libraries log whole requests, with tokens and keys.
    logging.getLogger("bastion").setLevel(logging.DEBUG if settings.debug else logging.INFO)
    keep_freed_memory()
    # Keys are in memory.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Each client connection takes one to the service, so the usual limit of 1024 is too low.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    # The environment may be that of a client; the key service must not be reached through this proxy.
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
    """Start serving in one of the processes; return a function that stops it.

    Raises Refused, KmsRefused or KmsUnavailable if a key cannot be used; BastionError if no more threads can be
    started.
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
    """Restrict the proxy to its owner, if that can be checked: it decrypts with its owner's keys.

    For an address that other machines reach, the owner of a connection is unknown; such an address is the operator's
    choice.
    """
    try:
        local = ipaddress.ip_address(settings.listen[0]).is_loopback
    except ValueError:
        local = settings.listen[0] == "localhost"
    if settings.users is None or not local:
        return None
    return functools.partial(is_ours, others=settings.users)


def _usual_processes() -> int:
    """Return one per available processor, up to a limit."""
    return min(_PROCESSES_MAX, len(os.sched_getaffinity(0)))


def _listening(host: str, port: int) -> socket.socket:
    """Listen; raise Refused if the port is in use or the host is invalid."""
    try:
        version = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=version, backlog=_BACKLOG)
    except OSError as error:
        raise Refused(
            f"the proxy cannot listen on {_address(host, port)} ({error.strerror}); set {LISTEN} to a free port"
        ) from error


def _address(host: str, port: int) -> str:
    """Return the address as in a URL."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _tell(
    settings: ProxySettings, environment: Mapping[str, str], address: str, published: Path, say: Callable[[str], None]
) -> None:
    """Tell the user how to use the proxy, and log warnings."""
    for entry in settings.mapping.entries:
        what = "is encrypted" if settings.encrypt else "is NOT encrypted: GCS_PROXY_DISABLE_ENCRYPTION is set"
        _log.info("objects stored in %s/%s %s", entry.bucket, entry.prefix, what)
    if settings.upstream:
        _log.warning("requests to the storage service go to %s", settings.upstream)
    if settings.allow_plaintext:
        _log.warning("plaintext in mapped buckets may be read")
    _log.info("ready on %s; %s", address, published / CA_FILE)
    say(f"export https_proxy=http://{address} HTTPS_PROXY=http://{address}")
    say("export no_proxy=metadata.google.internal,169.254.169.254,localhost,127.0.0.1")
    for name in client_environment.BUNDLES:
        say(f"export {name}={published / BUNDLE_FILE}")
    for name, value in client_environment.defaults(environment).items():
        say(f"export {name}={shlex.quote(value)}")
