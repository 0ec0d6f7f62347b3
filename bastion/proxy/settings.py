"""The proxy's settings from the environment: which objects are encrypted under which key, addresses, folders. Pure.

Malformed values are refused: a proxy that misreads its mapping would store plaintext. An empty variable is unset.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from bastion.core.encryption.key_mapping import MAPPING, KeyMapping, MappedPrefix
from bastion.core.encryption.key_names import FORM, check_key_name
from bastion.core.encryption.sidecar_contract import (
    CERT_PATH,
    DEBUG,
    LISTEN,
    LOOPBACK,
    PORT,
    STATE_PATH,
    UPSTREAM,
    USERS,
)
from bastion.core.errors import Refused

__all__ = ["LISTEN", "MAPPING", "KeyMapping", "MappedPrefix", "ProxySettings"]

DISABLE = "GCS_PROXY_DISABLE_ENCRYPTION"
ALLOW_PLAINTEXT = "GCS_PROXY_ALLOW_PLAINTEXT"
KMS = "GCS_PROXY_KMS"
KEYRING = "GCS_PROXY_KEYRING"
FORMER_KEYS = "GCS_PROXY_FORMER_KEYS"
PROCESSES = "GCS_PROXY_PROCESSES"
PROCESSES_MAX = 64

DEFAULT_LISTEN = f"{LOOPBACK}:{PORT}"

_BOOLEANS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_PORT_MAX = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """The proxy's settings; None: not set.

    Attributes:
        former_keys: Keys of existing objects that the mapping no longer names.
        encrypt: Whether to encrypt new objects; existing ciphertext is always decrypted.
        allow_plaintext: Whether to show plaintext where ciphertext belongs; always if `encrypt` is off.
        cert_path: Folder for the public certificate.
        debug: Whether to log more; never bodies, tokens or signed URLs.
        listen: Host and port; port 0: any.
        keyring: The file with the keys; set exactly if `kms` is `local`.
        state_path: The private folder for the authority's key and unfinished uploads.
        users: User ids that may use it, besides its own user and root; None: every local user.
        upstream: `http(s)://host:port` instead of the storage hosts.
    """

    mapping: KeyMapping
    former_keys: tuple[str, ...] = ()
    encrypt: bool = True
    allow_plaintext: bool = False
    cert_path: Path | None = None
    debug: bool = False
    listen: tuple[str, int] = ("127.0.0.1", 9080)
    kms: Literal["gcp", "local"] = "gcp"
    keyring: Path | None = None
    state_path: Path | None = None
    users: frozenset[int] | None = frozenset()
    processes: int | None = None
    upstream: str | None = None

    @property
    def trusted_keys(self) -> tuple[str, ...]:
        """Every key that an object may be under."""
        return tuple(dict.fromkeys((*self.mapping.keys, *self.former_keys)))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ProxySettings:
        """Read the settings. Raises Refused if a variable is malformed, missing or contradicts another."""
        given = {name: value.strip() for name, value in environment.items() if value.strip()}
        if MAPPING not in given:
            raise Refused(f"{MAPPING} is not set; write {MAPPING}=BUCKET:{FORM}")
        mapping = KeyMapping.parse(given[MAPPING])
        encrypt = not _switch(given, DISABLE)
        kms, keyring = _key_service(given)
        return cls(
            mapping=mapping,
            former_keys=_former_keys(given[FORMER_KEYS]) if FORMER_KEYS in given else (),
            encrypt=encrypt,
            allow_plaintext=_switch(given, ALLOW_PLAINTEXT) or not encrypt,
            cert_path=Path(given[CERT_PATH]) if CERT_PATH in given else None,
            debug=_debug(given.get(DEBUG, "0")),
            listen=_listen(given.get(LISTEN, DEFAULT_LISTEN)),
            kms=kms,
            keyring=keyring,
            state_path=Path(given[STATE_PATH]) if STATE_PATH in given else None,
            users=_users(given[USERS]) if USERS in given else frozenset(),
            processes=_processes(given[PROCESSES]) if PROCESSES in given else None,
            upstream=_upstream(given[UPSTREAM]) if UPSTREAM in given else None,
        )


def _former_keys(text: str) -> tuple[str, ...]:
    try:
        return tuple(check_key_name(name.strip()) for name in text.split(","))
    except Refused as error:
        raise Refused(f"{FORMER_KEYS}: {error}") from error


def _switch(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false")
    value = _BOOLEANS.get(text.lower())
    if value is None:
        raise Refused(f"{name}={text[:100]!r}: write true or false")
    return value


def _debug(text: str) -> bool:
    if text not in ("0", "1"):
        raise Refused(f"{DEBUG}={text[:100]!r}: write 0 (info) or 1 (debug)")
    return text == "1"


def _key_service(given: Mapping[str, str]) -> tuple[Literal["gcp", "local"], Path | None]:
    kms = given.get(KMS, "local" if KEYRING in given else "gcp")
    if kms not in ("gcp", "local"):
        raise Refused(f"{KMS}={kms[:100]!r}: write gcp (Cloud KMS) or local (a keyring file)")
    if kms == "gcp":
        if KEYRING in given:
            raise Refused(f"{KMS}=gcp and {KEYRING} contradict each other; unset one of them")
        return "gcp", None
    if KEYRING not in given:
        raise Refused(f"{KMS}=local needs {KEYRING}=FILE; `bastion proxy keyring create` makes the file")
    return "local", Path(given[KEYRING])


def _users(text: str) -> frozenset[int] | None:
    if text == "any":
        return None
    numbers = [number.strip() for number in text.split(",")]
    if not all(number.isascii() and number.isdigit() for number in numbers):
        raise Refused(f"{USERS}={text[:100]!r}: use user ids (`id -u`) separated by commas, or `any`")
    return frozenset(map(int, numbers))


def _processes(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= PROCESSES_MAX):
        raise Refused(f"{PROCESSES}={text[:100]!r}: write a number from 1 to {PROCESSES_MAX}")
    return int(text)


def _listen(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        raise Refused(f"{LISTEN}={text[:100]!r}: write HOST:PORT, for example {DEFAULT_LISTEN}")
    return host, int(port)


def _upstream(text: str) -> str:
    # The message omits the text, which may hold a password.
    problem = Refused(f"{UPSTREAM} is malformed; use http://HOST:PORT or https://HOST:PORT")
    try:
        parts = urlsplit(text)
        named = parts.hostname and parts.scheme in ("http", "https") and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise problem from error
    if not named or parts.username is not None or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise problem
    return f"{parts.scheme}://{parts.netloc}"
