"""What `bastion proxy doctor` looks at: the environment of storage clients, the proxy that it names, and its keys.

Layer: wiring.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from cryptography import x509

from bastion.core.errors import BastionError

_STORAGE_HOST = "storage.googleapis.com"
_SECONDS = 5.0
# Which client reads which variable.
_AUTHORITIES = {
    "REQUESTS_CA_BUNDLE": "google-cloud-storage",
    "SSL_CERT_FILE": "gcsfs and most others",
    "CURL_CA_BUNDLE": "TensorFlow",
    "TENSORSTORE_CA_BUNDLE": "tensorstore",
}
_METADATA_HOSTS = ("metadata.google.internal", "169.254.169.254")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        advice: What to do; empty if it is good.
    """

    what: str
    good: bool
    advice: str = ""


def examine(environment: Mapping[str, str]) -> list[Finding]:
    """Everything, in the order in which a client would stumble."""
    findings = [*_proxy_variable(environment), *_authorities(environment), *_exceptions(environment)]
    address = _address(environment)
    if address is not None:
        findings += _connection(address, environment)
    return [*findings, *_keys(environment)]


def _address(environment: Mapping[str, str]) -> tuple[str, int] | None:
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
        yield Finding(f"https_proxy is {value}", False, "write http://HOST:PORT, such as http://127.0.0.1:9080")
    else:
        yield Finding(f"https_proxy is {value}", True)
    upper = environment.get("HTTPS_PROXY", value)
    if upper != value:
        yield Finding(
            "HTTPS_PROXY differs from https_proxy", False, "some clients read one, some the other; make them equal"
        )


def _authorities(environment: Mapping[str, str]) -> Iterator[Finding]:
    for name, client in _AUTHORITIES.items():
        file = environment.get(name, "")
        if not file:
            yield Finding(
                f"{name} is not set", False, f"{client} will not trust the proxy; set it to the proxy's bundle"
            )
            continue
        try:
            ssl.create_default_context(cafile=file)
        except (OSError, ssl.SSLError) as error:
            yield Finding(f"{name} is {file}", False, f"it cannot be read as certificates: {error}")
        else:
            yield Finding(f"{name} is {file}", True)


def _exceptions(environment: Mapping[str, str]) -> Iterator[Finding]:
    text = environment.get("no_proxy", environment.get("NO_PROXY", ""))
    names = [name.strip().lstrip(".").lower() for name in text.split(",") if name.strip()]
    if any(name == "*" or name == _STORAGE_HOST or _STORAGE_HOST.endswith(f".{name}") for name in names):
        yield Finding(
            f"no_proxy is {text}", False, f"it lets clients reach {_STORAGE_HOST} past the proxy; take that out"
        )
    missing = [host for host in _METADATA_HOSTS if host not in names]
    if missing:
        what = f"no_proxy does not name {' and '.join(missing)}"
        yield Finding(what, False, "on a VM clients ask there for credentials; add them")


def _connection(address: tuple[str, int], environment: Mapping[str, str]) -> Iterator[Finding]:
    """Through the proxy to the storage host, as far as its certificate."""
    where = f"{address[0]}:{address[1]}"
    try:
        with socket.create_connection(address, _SECONDS) as plain:
            answer = b""
            with contextlib.suppress(ConnectionError):
                plain.sendall(f"CONNECT {_STORAGE_HOST}:443 HTTP/1.1\r\nHost: {_STORAGE_HOST}:443\r\n\r\n".encode())
                answer = plain.recv(4096)
            if not answer:
                advice = "if it is a proxy that another user runs, its GCS_PROXY_USERS must name yours (`id -u`)"
                yield Finding(f"what listens on {where} ends the connection at once", False, advice)
                return
            if b" 200 " not in answer.split(b"\r\n", 1)[0] + b" ":
                yield Finding(f"what listens on {where} is no proxy", False, "start `bastion proxy run` there")
                return
            yield Finding(f"a proxy answers on {where}", True)
            context = ssl.create_default_context(cafile=environment.get("SSL_CERT_FILE") or None)
            with context.wrap_socket(plain, server_hostname=_STORAGE_HOST) as secure:
                shown = secure.getpeercert(binary_form=True) or b""
                issuer = x509.load_der_x509_certificate(shown).issuer.rfc4514_string()
                yield Finding(f"it shows a certificate for {_STORAGE_HOST} by {issuer}", True)
    except ssl.SSLError as error:
        advice = f"the bundle is not this proxy's ({error.reason}); it is published where PROXY_CERT_PATH says"
        yield Finding(f"the certificate for {_STORAGE_HOST} cannot be verified", False, advice)
    except (OSError, ValueError) as error:
        yield Finding(f"nothing answers on {where}", False, f"{error}; start `bastion proxy run`")


def _keys(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Only where the proxy's own environment is here as well."""
    from bastion import proxy_setup
    from bastion.proxy.settings import MAPPING, ProxySettings

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
        except BastionError as error:  # noqa: PERF203 - each key is told of
            yield Finding(f"{key} cannot be used", False, str(error))
        else:
            yield Finding(f"{key} wraps and unwraps", True)
