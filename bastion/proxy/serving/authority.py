"""The authority that vouches for the proxy, to the clients that are told to trust it.

Layer: proxy. Invariants:

* Its private key lies in a private folder, readable by this user only, and nowhere else; it lasts over restarts, so
  that clients that trusted the proxy before go on trusting it.
* Clients believe it about storage hosts only: a stolen key opens no other site.
* What is published is public, appears whole or not at all, and appears when the proxy is ready: clients wait for it.
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

# By which a client's person, and `bastion proxy doctor`, tell it from others.
AUTHORITY_NAME = "bastion storage proxy CA"
_KEPT_FILE = "authority.pem"
_DOMAIN = "googleapis.com"
_LIFETIME = datetime.timedelta(days=800)
_RENEWAL = datetime.timedelta(days=60)
_LEAF_LIFETIME = datetime.timedelta(days=30)
_LEAF_RENEWAL = datetime.timedelta(days=10)
# Every bucket has a host name of its own, and a client may make up any number of them.
_LEAVES_MAX = 256

Now = Callable[[], datetime.datetime]


def utc_now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


class ProxyAuthority:
    """Certificates for the hosts whose requests the proxy answers; threads may share it.

    Args:
        folder: Private; made if it is missing. The authority in it is used while it is valid, and made otherwise.
        now: The time, with its zone.

    Raises:
        Refused: the folder or the key in it is somebody else's, or others can read the key.
    """

    def __init__(self, folder: Path, *, now: Now = utc_now) -> None:
        self._now = now
        self._authority = _kept(folder, now())
        self._key = new_key()
        self._lock = threading.Lock()
        self._leaves: OrderedDict[str, tuple[ssl.SSLContext, datetime.datetime]] = OrderedDict()

    @property
    def public_pem(self) -> bytes:
        """What clients are to trust."""
        return self._authority.public_pem

    def context(self, host: str) -> ssl.SSLContext:
        """A server's settings that make it that host, in the eyes of who trusts the authority.

        Raises:
            ValueError: the host cannot stand in a certificate.
        """
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
        """Writes the public certificate, and one file of it with all authorities this machine trusts; to be called
        when the proxy listens.

        Args:
            folder: Made if it is missing.

        Raises:
            Refused: the files cannot be written, or the machine's authorities not be read.
        """
        own = self.public_pem
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # It may be in there already: a client's environment may have come down to us.
            others = roots().replace(own, b"")
            _replace(folder / BUNDLE_FILE, others + own, mode=0o644)
            # Last, because this is the one that is waited for.
            _replace(folder / CA_FILE, own, mode=0o644)
        except OSError as error:
            raise Refused(
                f"the certificates for clients cannot be published in {folder} ({error}); "
                "set PROXY_CERT_PATH to a folder that this user can write"
            ) from error

    def _make(self, host: str, now: datetime.datetime) -> ssl.SSLContext:
        leaf = self._authority.sign("bastion storage proxy", [host], key=self._key, now=now, lifetime=_LEAF_LIFETIME)
        # A context reads its key from a file only; this one is in memory, and gone with us however we end.
        with os.fdopen(os.memfd_create("leaf"), "wb") as file:
            file.write(leaf.private_pem)
            file.flush()
            return server_context(Path(f"/proc/self/fd/{file.fileno()}"))


def _kept(folder: Path, now: datetime.datetime) -> Authority:
    """The authority in a folder, made anew if it is none or ends soon."""
    file = folder / _KEPT_FILE
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW), "rb") as stream:
            facts = os.fstat(stream.fileno())
            if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
                raise Refused(
                    f"{file} holds a private key and others can read it, or it is not this user's; remove it, "
                    "and a new one is made"
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
    return Refused(f"the proxy's key cannot be kept in {folder} ({error}); choose another folder for its state")


def _replace(file: Path, data: bytes, *, mode: int) -> None:
    """Replaces a file atomically; it never has more rights than it is to have."""
    descriptor, draft = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            os.fchmod(stream.fileno(), mode)
        Path(draft).replace(file)
    except BaseException:
        Path(draft).unlink(missing_ok=True)
        raise
