"""Certificates of our own: an authority, and what it signs for servers on this machine.

Layer: beside `bastion.net.http1`. All is made in memory; who writes what to which file is the caller's business, and
so is whether an authority's key outlives its first signature.
"""

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

# For machines whose clock is behind.
_BACKDATED = datetime.timedelta(days=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCertificate:
    """A certificate of a server, with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def private_pem(self) -> bytes:
        """The certificate and its key, as `ssl` loads them from a file."""
        return _pem(self.certificate) + _private_pem(self.key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """Who trusts its certificate trusts every server it signs for."""

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
        """A new one.

        Args:
            name: How it is called in lists of authorities.
            now: With a time zone.
            lifetime: From now.
            only_below: Domains; clients believe it about hosts in and below these only. Empty: about every host.
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
        """One that was kept as `private_pem`.

        Raises:
            ValueError: it is none.
        """
        certificate = x509.load_pem_x509_certificate(data)
        return cls(certificate=certificate, key=_key_of(certificate, data))

    @property
    def public_pem(self) -> bytes:
        """What clients are to trust."""
        return _pem(self.certificate)

    @property
    def private_pem(self) -> bytes:
        """Certificate and key."""
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
        """A server's certificate.

        Args:
            name: How the server is called; at most 64 characters.
            hosts: Names (`*.` in front stands for any one label) and addresses it is reached by.
            key: The server's.
            now: With a time zone.
            lifetime: From now; never longer than the authority's own.

        Raises:
            ValueError: a host is none.
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
    """A server's certificate that was kept as `private_pem`.

    Args:
        data: That.
        authority: The public PEM of the authority that must have signed it.

    Raises:
        ValueError: it is none, or another's.
    """
    certificate = x509.load_pem_x509_certificate(data)
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    except (TypeError, InvalidSignature) as error:
        raise ValueError("the certificate was signed by somebody else") from error
    return ServerCertificate(certificate=certificate, key=_key_of(certificate, data))


def server_context(file: Path) -> ssl.SSLContext:
    """A server's settings: TLS 1.2 or later, HTTP/1.1 and nothing newer.

    Args:
        file: Holds a `ServerCertificate.private_pem`; not needed any more afterwards.
    """
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
        raise ValueError("the key is locked by a password") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise ValueError("the key is not the certificate's")
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
