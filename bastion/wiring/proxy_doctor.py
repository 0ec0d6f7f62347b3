"""The checks of `bastion proxy doctor`: the environment of storage clients, their proxy, and its keys.

A connection counts only if its certificate comes from the proxy's own authority: through any other proxy a storage
host's certificate verifies too, but nothing is encrypted.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from bastion.core.encryption import client_environment, sidecar_contract
from bastion.core.errors import BastionError
from bastion.proxy.service.intercepted import is_storage
from bastion.proxy.serving.authority import AUTHORITY_NAME

_STORAGE_HOST = "storage.googleapis.com"
_SECONDS = 5.0
_Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    what: str
    good: bool
    advice: str = ""  # what to do; empty if it is good


class _NoProxyError(Exception):
    """There is no usable proxy; the arguments are those of a finding."""

    def __init__(self, what: str, advice: str) -> None:
        super().__init__(what)
        self.finding = Finding(what, False, advice)


def examine(environment: Mapping[str, str]) -> list[Finding]:
    """Run all checks, in the order in which a client would fail."""
    findings = [*_proxy_variable(environment), *_exceptions(environment), *_clients(environment)]
    address = _address(environment)
    if address is not None:
        try:
            findings += _connection(address, environment)
        except _NoProxyError as error:
            findings.append(error.finding)
            address = None
    return [*findings, *_bundles(environment, address), *_keys(environment)]


def _address(environment: Mapping[str, str]) -> _Address | None:
    try:
        parts = urlsplit(environment.get("https_proxy", ""))
        return (parts.hostname, parts.port) if parts.hostname and parts.port else None
    except ValueError:
        return None


def _proxy_variable(environment: Mapping[str, str]) -> Iterator[Finding]:
    value = environment.get("https_proxy", "")
    if not value:
        yield Finding("https_proxy is not set", False, "clients go to storage directly, and store plaintext; set it")
    elif _address(environment) is None:
        yield Finding(f"https_proxy is {value}", False, "use http://HOST:PORT, such as http://127.0.0.1:9080")
    else:
        yield Finding(f"https_proxy is {value}", True)
    upper = environment.get("HTTPS_PROXY", value)
    if upper != value:
        yield Finding(
            "HTTPS_PROXY differs from https_proxy", False, "some clients read one, some the other; make them equal"
        )


def _exceptions(environment: Mapping[str, str]) -> Iterator[Finding]:
    names: list[str] = []
    for variable in ("no_proxy", "NO_PROXY"):
        entries = client_environment.split_exemptions(environment.get(variable, ""))
        names += [entry.lstrip(".").lower() for entry in entries]
        if led := [entry for entry in entries if client_environment.is_storage_exempt(entry)]:
            yield Finding(
                f"{variable} is {environment[variable]}",
                False,
                f"clients store plaintext: {', '.join(led)} bypasses the proxy; remove it",
            )
    missing = [host for host in client_environment.METADATA_HOSTS if host not in names]
    if missing:
        what = f"no_proxy does not name {' and '.join(missing)}"
        yield Finding(what, False, "clients on a VM get their credentials there; add them")


def _clients(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Settings that only some clients read."""
    for name in client_environment.ELSEWHERE:
        value = environment.get(name, "")
        if value and not _is_storage_url(value):
            yield Finding(f"{name} is {value}", False, "clients connect to it directly, without the proxy; unset it")
    if not client_environment.uses_proxy(environment.get(client_environment.FSSPEC, "")):
        advice = (
            """gcsfs ignores https_proxy, and stores plaintext; set it to {"session_kwargs": {"trust_env": true}}"""
        )
        yield Finding(f"{client_environment.FSSPEC} does not set trust_env", False, advice)
    if environment.get(client_environment.GCSFS_GRPC, "true").lower() in ("true", "1"):
        advice = "gcsfs asks for the type of a bucket over gRPC, and waits 90 s for an answer; set it to false"
        yield Finding(f"{client_environment.GCSFS_GRPC} is not false", False, advice)


def _is_storage_url(value: str) -> bool:
    try:
        return is_storage(urlsplit(value if "://" in value else f"//{value}").hostname or "")
    except ValueError:
        return False


def _connection(address: _Address, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Connect through the proxy to the storage host, and check its certificate. Raises _NoProxyError."""
    where = f"{address[0]}:{address[1]}"
    unverified = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    unverified.check_hostname = False
    unverified.verify_mode = ssl.CERT_NONE
    try:
        leaf = x509.load_der_x509_certificate(_shown(address, unverified))
    except (OSError, ValueError) as error:
        raise _NoProxyError(f"nothing answers TLS through {where}", f"{error}; start `bastion proxy run`") from error
    yield Finding(f"a proxy answers on {where}", True)
    issuer = leaf.issuer.rfc4514_string()
    if any(_vouches(authority, leaf) for authority in _own_authorities(environment)):
        yield Finding(f"it shows a certificate for {_STORAGE_HOST} by {issuer}", True)
    elif AUTHORITY_NAME in issuer:
        yield Finding(
            f"it shows a certificate for {_STORAGE_HOST} by another proxy's authority of the same name ({issuer})",
            False,
            "the bundles belong to another or an earlier proxy; use those in PROXY_CERT_PATH",
        )
    else:
        yield Finding(
            f"it shows a certificate for {_STORAGE_HOST} by {issuer}, which is not the encrypting proxy's authority",
            False,
            "this proxy forwards data without encryption; start `bastion proxy run`",
        )


def _shown(address: _Address, context: ssl.SSLContext) -> bytes:
    """Return the certificate that a client sees for the storage host, in DER.

    Raises _NoProxyError if the listener is not a proxy, or refuses everyone; OSError if nothing listens; ssl.SSLError
    if the certificate does not verify.
    """
    where = f"{address[0]}:{address[1]}"
    try:
        connection = socket.create_connection(address, _SECONDS)
    except OSError as error:
        raise _NoProxyError(f"nothing answers on {where}", f"{error}; start `bastion proxy run`") from error
    with connection as plain:
        answer = b""
        with contextlib.suppress(ConnectionError):
            plain.sendall(f"CONNECT {_STORAGE_HOST}:443 HTTP/1.1\r\nHost: {_STORAGE_HOST}:443\r\n\r\n".encode())
            answer = plain.recv(4096)
        if not answer:
            advice = "if it is a proxy that another user runs, its GCS_PROXY_USERS must name yours (`id -u`)"
            raise _NoProxyError(f"the listener on {where} closes the connection at once", advice)
        if b" 200 " not in answer.split(b"\r\n", 1)[0] + b" ":
            raise _NoProxyError(f"the listener on {where} is not a proxy", "start `bastion proxy run` there")
        with context.wrap_socket(plain, server_hostname=_STORAGE_HOST) as secure:
            return secure.getpeercert(binary_form=True) or b""


def _own_authorities(environment: Mapping[str, str]) -> list[x509.Certificate]:
    """Return the authorities with the proxy's name that this environment trusts, and the published one if named."""
    published = environment.get(sidecar_contract.CERT_PATH, "")
    files = [str(Path(published) / sidecar_contract.CA_FILE)] if published else []
    if not files:
        files = [environment[name] for name in client_environment.BUNDLES if environment.get(name)]
    found = []
    for file in dict.fromkeys(files):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        with contextlib.suppress(OSError):
            context.load_verify_locations(cafile=file)
        found += [data for data in context.get_ca_certs(binary_form=True) if AUTHORITY_NAME.encode() in data]
    return [x509.load_der_x509_certificate(data) for data in dict.fromkeys(found)]


def _vouches(authority: x509.Certificate, leaf: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError):
        return False
    return True


def _bundles(environment: Mapping[str, str], address: _Address | None) -> Iterator[Finding]:
    """Yield a finding for each bundle of authorities: whether its client can connect to `address`, if given."""
    for name, client in client_environment.BUNDLES.items():
        if environment.get(name):
            yield _bundle(name, client, environment[name], address)
        elif name not in client_environment.BUNDLES_OF_TOOLS:
            yield Finding(
                f"{name} is not set", False, f"{client} will not trust the proxy; set it to the proxy's bundle"
            )


def _bundle(name: str, client: str, file: str, address: _Address | None) -> Finding:
    what = f"{name} is {file}"
    try:
        context = ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        return Finding(what, False, f"it cannot be read as certificates: {error}")
    if address is None:
        return Finding(what, True)
    try:
        _shown(address, context)
    except ssl.SSLError as error:
        advice = f"{client} cannot connect ({error.reason}); set it to the proxy's bundle, which PROXY_CERT_PATH has"
        return Finding(f"{what}, which does not contain the proxy's authority", False, advice)
    except _NoProxyError as error:
        return error.finding
    except OSError as error:
        return Finding(what, False, f"{client} cannot connect ({error})")
    return Finding(f"{what}, and {client} can connect with it", True)


def _keys(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Check keys only if the proxy's own environment is present."""
    from bastion.proxy.settings import MAPPING, ProxySettings
    from bastion.wiring import proxy as proxy_setup

    if MAPPING not in environment:
        return
    try:
        settings = ProxySettings.from_environment(environment)
    except BastionError as error:
        yield Finding("the proxy's environment is malformed", False, str(error))
        return
    for key in settings.mapping.keys:
        try:
            proxy_setup.try_key(proxy_setup.kms_of(settings), key)
        except BastionError as error:  # noqa: PERF203 - one finding per key
            yield Finding(f"{key} cannot be used", False, str(error))
        else:
            yield Finding(f"{key} wraps and unwraps", True)
