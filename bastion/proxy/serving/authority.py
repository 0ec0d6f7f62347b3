"""The certificate authority of the proxy, for clients that are told to trust it.

Invariants:

* Its private key stays in a folder that only this user can read. It survives restarts, so that clients keep trusting
  it.
* It can vouch for storage hosts only: a stolen key opens no other site.
* Published files are complete, and appear when the proxy is ready: clients wait for them.
"""

from __future__ import annotations

import datetime
import os
import ssl
import tempfile
import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from bastion.core.encryption.sidecar_contract import BUNDLE_FILE, CA_FILE
from bastion.core.errors import Refused
from bastion.net.tls import Authority, new_key, server_context
from bastion.proxy.service.roots import roots

__all__ = ["AUTHORITY_NAME", "BUNDLE_FILE", "CA_FILE", "ProxyAuthority"]

# Identifies our authority to users and to `bastion proxy doctor`.
AUTHORITY_NAME = "bastion storage proxy CA"
_KEPT_FILE = "authority.pem"
_DOMAIN = "googleapis.com"
_LIFETIME = datetime.timedelta(days=800)
_RENEWAL = datetime.timedelta(days=60)
_LEAF_LIFETIME = datetime.timedelta(days=30)
_LEAF_RENEWAL = datetime.timedelta(days=10)
# Every bucket has its own host name, so a client can name any number of hosts.
_LEAVES_MAX = 256

Now = Callable[[], datetime.datetime]


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


class ProxyAuthority:
    """Certificates for the hosts that the proxy answers for; thread-safe.

    A valid authority in the private `folder` is used; otherwise one is made. Raises Refused if another user owns the
    folder or key, or can read the key.
    """

    def __init__(self, folder: Path, *, now: Now = utc_now) -> None:
        self._now = now
        self._authority = _kept(folder, now())
        self._key = new_key()
        self._lock = threading.Lock()
        self._leaves: OrderedDict[str, tuple[ssl.SSLContext, datetime.datetime]] = OrderedDict()

    @property
    def public_pem(self) -> bytes:
        return self._authority.public_pem

    def context(self, host: str) -> ssl.SSLContext:
        """A server's TLS settings for that host. Raises ValueError if no certificate can name it."""
        now = self._now()
        with self._lock:
            found = self._leaves.get(host)
            if found is None or found[1] - _LEAF_RENEWAL <= now:
                found = self._leaves[host] = (self._make(host, now), now + _LEAF_LIFETIME)
            self._leaves.move_to_end(host)
            if len(self._leaves) > _LEAVES_MAX:
                self._leaves.popitem(last=False)
            return found[0]

    def publish(self, folder: Path) -> None:
        """Write the public certificate, and a bundle with all authorities that this machine trusts; call it once the
        proxy listens.

        Raises Refused if it cannot read the machine's authorities or write the files.
        """
        own = self.public_pem
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # A client's environment may include it already.
            others = roots().replace(own, b"")
            _replace(folder / BUNDLE_FILE, others + own, mode=0o644)
            # Last: clients wait for this file.
            _replace(folder / CA_FILE, own, mode=0o644)
        except OSError as error:
            raise Refused(
                f"cannot write the certificates for clients to {folder} ({error}); "
                "set PROXY_CERT_PATH to a folder that this user can write"
            ) from error

    def _make(self, host: str, now: datetime.datetime) -> ssl.SSLContext:
        leaf = self._authority.sign("bastion storage proxy", [host], key=self._key, now=now, lifetime=_LEAF_LIFETIME)
        # A TLS context reads its key only from a file; this file is in memory and ends with the process.
        with os.fdopen(os.memfd_create("leaf"), "wb") as file:
            file.write(leaf.private_pem)
            file.flush()
            return server_context(Path(f"/proc/self/fd/{file.fileno()}"))


def _kept(folder: Path, now: datetime.datetime) -> Authority:
    """The authority in a folder; a new one if it is invalid or expires soon."""
    file = folder / _KEPT_FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
            facts = os.fstat(stream.fileno())
            if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
                raise Refused(
                    f"{file} holds a private key that others own or can read; remove it, and a new one will be created"
                )
            data = stream.read()
    except FileNotFoundError:
        data = b""
    except OSError as error:
        raise _not_kept(folder, error) from error
    try:
        authority = Authority.from_pem(data)
        certificate = authority.certificate
        if certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - _RENEWAL:
            return authority
    except ValueError:
        pass
    authority = Authority.new(AUTHORITY_NAME, now=now, lifetime=_LIFETIME, only_below=[_DOMAIN])
    try:
        _replace(file, authority.private_pem, mode=0o600)
    except OSError as error:
        raise _not_kept(folder, error) from error
    return authority


def _not_kept(folder: Path, error: OSError) -> Refused:
    return Refused(f"cannot store the proxy's key in {folder} ({error}); choose another folder for its state")


def _replace(file: Path, data: bytes, *, mode: int) -> None:
    """Replace a file atomically; it never has more permissions than `mode`."""
    descriptor, draft = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            os.fchmod(stream.fileno(), mode)
        Path(draft).replace(file)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
