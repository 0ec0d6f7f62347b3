"""Our own certificates: an authority, and server certificates that it signs. In memory; callers store them."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# For machines with a slow clock.
_BACKDATED = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCertificate:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def private_pem(self) -> bytes:
        """Certificate and key, as `ssl` loads them from a file."""
        return _pem(self.certificate) + _private_pem(self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A certificate authority; its clients trust every server that it signs for."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @classmethod
    def new(
        cls,
        name: str,
        *,
        now: datetime.datetime,
        lifetime: datetime.timedelta,
        only_below: Sequence[str] = (),
    ) -> Authority:
        """Make an authority.

        `name` is shown in lists of authorities. `now` has a time zone. `only_below` limits the domains that clients
        accept from it; empty: no limit.
        """
        key = new_key()
        builder = (
            _builder(_name(name), _name(name), key, now, now + lifetime)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        if only_below:
            domains = [x509.DNSName(domain) for domain in only_below]
            constraints = x509.NameConstraints(permitted_subtrees=domains, excluded_subtrees=None)
            builder = builder.add_extension(constraints, critical=True)
        return cls(certificate=builder.sign(key, hashes.SHA256()), key=key)

    @classmethod
    def from_pem(cls, data: bytes) -> Authority:
        """Load from `private_pem`. Raises ValueError."""
        certificate = x509.load_pem_x509_certificate(data)
        return cls(certificate=certificate, key=_key_of(certificate, data))

    @property
    def public_pem(self) -> bytes:
        """The certificate, for clients."""
        return _pem(self.certificate)

    @property
    def private_pem(self) -> bytes:
        return _pem(self.certificate) + _private_pem(self.key)

    def sign(
        self,
        name: str,
        hosts: Sequence[str],
        *,
        key: ec.EllipticCurvePrivateKey,
        now: datetime.datetime,
        lifetime: datetime.timedelta,
    ) -> ServerCertificate:
        """Sign a server's certificate, which never lives longer than the authority's. Raises ValueError for an invalid
        host.

        Args:
            name: The server's name; at most 64 characters.
            hosts: Its host names (`*.` matches one label) and addresses.
            key: The server's.
            now: With a time zone.
        """
        authority_id = x509.SubjectKeyIdentifier.from_public_key(self.key.public_key())
        ends = min(now + lifetime, self.certificate.not_valid_after_utc)
        certificate = (
            _builder(_name(name), self.certificate.subject, key, now, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(authority_id), critical=False)
            .sign(self.key, hashes.SHA256())
        )
        return ServerCertificate(certificate=certificate, key=key)


def new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def server_from_pem(data: bytes, authority: bytes) -> ServerCertificate:
    """Load a server's `private_pem`. Raises ValueError if invalid, or not signed by `authority` (public PEM)."""
    certificate = x509.load_pem_x509_certificate(data)
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (TypeError, InvalidSignature) as error:
        raise ValueError("the certificate is not signed by this authority") from error
    return ServerCertificate(certificate=certificate, key=_key_of(certificate, data))


def server_context(file: Path) -> ssl.SSLContext:
    """A server's TLS settings (1.2 or later, HTTP/1.1 only) from a file with `ServerCertificate.private_pem`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    context.load_cert_chain(file)
    return context


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_of(certificate: x509.Certificate, data: bytes) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except TypeError as error:
        raise ValueError("the key is protected by a password") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ValueError("the key does not match the certificate")
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime.datetime,
    ends: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(ends)
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
