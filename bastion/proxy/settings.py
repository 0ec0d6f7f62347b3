"""What the environment tells the proxy: which objects are encrypted under which key, and where everything is.

Layer: proxy, pure. What is malformed is refused, never guessed at: a proxy that misreads its mapping would store
plaintext. An empty variable counts as unset.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal
from urllib.parse import urlsplit

from bastion.core.errors import Refused
from bastion.core.kms_keys import FORM, check_key_name

MAPPING = "GCP_KMS_BUCKET_KEY_MAPPING"
CERT_PATH = "PROXY_CERT_PATH"
DEBUG = "DEBUG_LEVEL"
DISABLE = "GCS_PROXY_DISABLE_ENCRYPTION"
ALLOW_PLAINTEXT = "GCS_PROXY_ALLOW_PLAINTEXT"
LISTEN = "GCS_PROXY_LISTEN"
KMS = "GCS_PROXY_KMS"
KEYRING = "GCS_PROXY_KEYRING"
FORMER_KEYS = "GCS_PROXY_FORMER_KEYS"
UPSTREAM = "GCS_PROXY_UPSTREAM"

DEFAULT_LISTEN = "127.0.0.1:9080"

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_PORT_MAX = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedPrefix:
    """Objects that share a key: those of a bucket whose name begins with a prefix.

    Attributes:
        prefix: As Cloud Storage has prefixes: `ckpt` begins `ckpt2/x`, too, `ckpt/` does not. Empty: the whole bucket.
        key: Full name of the key in the key service.
    """

    bucket: str
    prefix: str
    key: str


@dataclass(frozen=True, slots=True)
class KeyMapping:
    """Which key encrypts which object.

    Attributes:
        entries: Longer prefixes first; no two of the same bucket and prefix.
    """

    entries: tuple[MappedPrefix, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that is named, once, in order of name."""
        return tuple(sorted({entry.key for entry in self.entries}))

    @property
    def buckets(self) -> tuple[str, ...]:
        """Every bucket of which something is encrypted, in order of name."""
        return tuple(sorted({entry.bucket for entry in self.entries}))

    def covers(self, bucket: str) -> bool:
        """Whether anything in the bucket is encrypted."""
        return any(entry.bucket == bucket for entry in self.entries)

    def key_for(self, bucket: str, name: str) -> str | None:
        """The key of an object, by the longest prefix that its name begins with; None: it is stored as it is."""
        for entry in self.entries:
            if entry.bucket == bucket and name.startswith(entry.prefix):
                return entry.key
        return None

    @classmethod
    def parse(cls, text: str) -> KeyMapping:
        """From `bucket[/prefix]:KEY,...`; a prefix may hold colons, but no comma.

        Raises:
            Refused: an entry is none of that form, or two have one bucket and prefix.
        """
        entries: list[MappedPrefix] = []
        seen: set[tuple[str, str]] = set()
        for part in text.split(","):
            entry = _entry(part.strip())
            if (entry.bucket, entry.prefix) in seen:
                raise Refused(f"{MAPPING} names {entry.bucket}/{entry.prefix} twice; leave one of them out")
            seen.add((entry.bucket, entry.prefix))
            entries.append(entry)
        return cls(tuple(sorted(entries, key=lambda entry: -len(entry.prefix))))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxySettings:
    """All that the environment tells.

    Attributes:
        mapping: What is encrypted, and under which keys.
        former_keys: Keys that objects may still be under although the mapping names them no more.
        encrypt: Whether new objects are encrypted; ciphertext that exists is decrypted in any case.
        allow_plaintext: Whether plaintext that lies where ciphertext belongs is shown; always if `encrypt` is off.
        cert_path: The folder where the public certificate is published; None: not set.
        debug: Whether more is logged; never bodies, tokens or signed URLs.
        listen: Host and port; port 0: any.
        kms: Where the keys lie.
        keyring: The file with the keys; set exactly if `kms` is `local`.
        upstream: `http://` or `https://` and host and port, in place of the storage hosts; None: the real ones.
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
    upstream: str | None = None

    @property
    def trusted_keys(self) -> tuple[str, ...]:
        """Every key that an object may be under."""
        return tuple(dict.fromkeys((*self.mapping.keys, *self.former_keys)))

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> ProxySettings:
        """Reads what is set.

        Raises:
            Refused: a variable is malformed, the mapping is missing, or two variables contradict each other.
        """
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
            upstream=_upstream(given[UPSTREAM]) if UPSTREAM in given else None,
        )


def _entry(text: str) -> MappedPrefix:
    # The last `:projects/` begins the key: a prefix may hold anything, a key's name cannot hold a second one.
    place, colon, key = text.rpartition(":projects/")
    if not colon:
        raise Refused(f"{MAPPING}: {text[:300]!r} is not BUCKET[/PREFIX]:KEY with a KEY like {FORM}")
    bucket, _, prefix = place.partition("/")
    if not _BUCKET.fullmatch(bucket):
        hint = "; leave out gs://" if place.startswith("gs:") else ""
        raise Refused(f"{MAPPING}: {bucket[:300]!r} is not the name of a bucket{hint}")
    try:
        return MappedPrefix(bucket=bucket, prefix=prefix, key=check_key_name(f"projects/{key}"))
    except Refused as error:
        raise Refused(f"{MAPPING}, of {bucket}: {error}") from error


def _former_keys(text: str) -> tuple[str, ...]:
    try:
        return tuple(check_key_name(name.strip()) for name in text.split(","))
    except Refused as error:
        raise Refused(f"{FORMER_KEYS}: {error}") from error


def _switch(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false")
    value = _WORDS.get(text.lower())
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


def _listen(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (colon and host and port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        raise Refused(f"{LISTEN}={text[:100]!r}: write HOST:PORT, for example {DEFAULT_LISTEN}")
    return host, int(port)


def _upstream(text: str) -> str:
    # The text is not repeated: it may hold a password.
    problem = Refused(f"{UPSTREAM} is not well formed; write http://HOST:PORT or https://HOST:PORT, and nothing else")
    try:
        parts = urlsplit(text)
        named = parts.hostname and parts.scheme in ("http", "https") and (parts.port is None or parts.port > 0)
    except ValueError as error:
        raise problem from error
    if not named or parts.username is not None or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise problem
    return f"{parts.scheme}://{parts.netloc}"
