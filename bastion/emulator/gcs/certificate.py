"""The endpoint's certificate: for this machine and for the storage hosts, from an authority of its own.

Layer: emulator. The authority signs one certificate and its key is forgotten at once: whoever trusts `ca.pem` trusts
this endpoint and nobody else, for ever. Both lie in the endpoint's private folder and last over restarts, so that
clients need to be told only once; they are made anew when they are about to expire or do not belong together.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bastion.emulator.state_folder import write_private

_NAMES = ("localhost", "storage.googleapis.com", "*.storage.googleapis.com", "www.googleapis.com")
_ADDRESSES = ("127.0.0.1", "::1")
_LIFETIME = datetime.timedelta(days=800)
_RENEWAL = datetime.timedelta(days=30)
# For machines whose clock is behind.
_BACKDATED = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerIdentity:
    """What a TLS server needs.

    Attributes:
        ca_file: PEM of the authority, for clients.
        server_file: PEM of the certificate and its key, readable by this user only.
    """

    ca_file: Path
    server_file: Path

    def context(self) -> ssl.SSLContext:
        """A server's settings: TLS 1.2 or later, HTTP/1.1 and nothing newer."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(self.server_file)
        return context


def ensure(folder: Path, *, now: datetime.datetime) -> ServerIdentity:
    """The identity in a private folder, made if there is none that is valid.

    Args:
        folder: Exists.
        now: With a time zone.
    """
    identity = ServerIdentity(ca_file=folder / "ca.pem", server_file=folder / "server.pem")
    if not _is_valid(identity, now):
        _make(identity, now)
    return identity


def _is_valid(identity: ServerIdentity, now: datetime.datetime) -> bool:
    try:
        authority = x509.load_pem_x509_certificate(identity.ca_file.read_bytes())
        data = identity.server_file.read_bytes()
        certificate = x509.load_pem_x509_certificate(data)
        certificate.verify_directly_issued_by(authority)
        key = serialization.load_pem_private_key(data, password=None)
    except (OSError, ValueError, TypeError, InvalidSignature):
        return False
    belongs = key.public_key() == certificate.public_key()
    return belongs and certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - _RENEWAL


def _make(identity: ServerIdentity, now: datetime.datetime) -> None:
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    authority_name = _name("bastion storage endpoint CA")
    authority_id = x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key())
    authority = (
        _builder(authority_name, authority_name, authority_key, now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(authority_id, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    names = [x509.DNSName(name) for name in _NAMES]
    addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in _ADDRESSES]
    certificate = (
        _builder(_name("bastion storage endpoint"), authority_name, key, now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([*names, *addresses]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_private(identity.server_file, certificate.public_bytes(serialization.Encoding.PEM) + private)
    write_private(identity.ca_file, authority.public_bytes(serialization.Encoding.PEM))


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + _LIFETIME)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
