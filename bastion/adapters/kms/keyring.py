"""The `Kms` port on a file: keys with Cloud KMS names, each with its versions.

The file is as secret as the data: mode 0600 or less, owned by this user or root. Writers lock the folder and replace
the file atomically; every call reads it again, so a rotation needs no restart. Messages never contain the file's
content.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Literal

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from bastion.core.encryption.key_names import check_key_name, is_key_name, is_version
from bastion.core.errors import KmsRefused, KmsUnavailable, Refused
from bastion.ports import WrappedKey

_KEY_BYTES = 32
_NONCE_BYTES = 12
_FILE_MAX_BYTES = 4 * 1024 * 1024


def _holding(rule: Callable[[str], bool]) -> Callable[[str], str]:
    def check(text: str) -> str:
        if not rule(text):
            raise ValueError("it is not valid")
        return text

    return check


def _is_key(text: str) -> bool:
    try:
        return len(base64.b64decode(text, validate=True)) == _KEY_BYTES
    except (binascii.Error, ValueError):
        return False


_Version = Annotated[str, AfterValidator(_holding(is_version))]
_Name = Annotated[str, AfterValidator(_holding(is_key_name))]
_Secret = Annotated[str, AfterValidator(_holding(_is_key))]


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", hide_input_in_errors=True)


class _Key(_Table):
    primary: _Version
    versions: dict[_Version, _Secret] = Field(repr=False)

    def rotated(self) -> _Key:
        version = str(max(map(int, self.versions), default=0) + 1)
        return _Key(primary=version, versions={**self.versions, version: _fresh()})


class _Keyring(_Table):
    format: Literal["bastion keyring"] = "bastion keyring"
    version: Literal[1] = 1
    keys: dict[_Name, _Key] = Field(repr=False)


class KeyringKms:
    """The keys in one file, behind the `Kms` port; thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def wrap(self, key: str, data: bytes, *, associated: bytes) -> WrappedKey:
        found = self._key(key)
        nonce = os.urandom(_NONCE_BYTES)
        sealed = _cipher(found, found.primary).encrypt(nonce, data, associated)
        return WrappedKey(version=found.primary, data=nonce + sealed)

    def unwrap(self, key: str, version: str, data: bytes, *, associated: bytes) -> bytes:
        found = self._key(key)
        if version not in found.versions:
            raise KmsRefused(
                f"{self._path} has no version {version!r} of {key}; restore the keyring that has it; no other "
                "key opens what was stored under it"
            )
        with contextlib.suppress(InvalidTag, ValueError):
            return _cipher(found, version).decrypt(data[:_NONCE_BYTES], data[_NONCE_BYTES:], associated)
        raise KmsRefused(
            f"version {version} of {key} in {self._path} did not wrap this; either another keyring's key of that "
            "name did, or the wrapped key was changed"
        )

    def primary(self, key: str) -> str:
        return self._key(key).primary

    def _key(self, name: str) -> _Key:
        keys = _read(self._path).keys
        if name not in keys:
            raise KmsRefused(
                f"{self._path} has no key {name}; run `bastion proxy keyring create --key={name} {self._path}`"
            )
        return keys[name]


def create(path: Path, key: str) -> str:
    """Add a key to the keyring, which is created if missing; return the key's primary version.

    Raises Refused if the name is invalid or the key exists; KmsRefused if the file is not a keyring of this user;
    KmsUnavailable if it cannot be written.
    """
    check_key_name(key)
    with _locked(path):
        # Only a missing file means a new keyring.
        keyring = _read(path) if os.path.lexists(path) else _Keyring(keys={})
        if key in keyring.keys:
            raise Refused(f"{path} already has the key {key}; `bastion proxy keyring rotate` makes a new version")
        made = _Key(primary="1", versions={"1": _fresh()})
        _write(path, _Keyring(keys={**keyring.keys, key: made}))
    return made.primary


def rotate(path: Path, key: str) -> str:
    """Give a key a new primary version and return it; older versions still open what they wrapped.

    Raises like `create`; Refused if there is no such key.
    """
    check_key_name(key)
    with _locked(path):
        keyring = _read(path)
        if key not in keyring.keys:
            raise Refused(f"{path} has no key {key}; it has {', '.join(sorted(keyring.keys)) or 'none'}")
        rotated = keyring.keys[key].rotated()
        _write(path, _Keyring(keys={**keyring.keys, key: rotated}))
    return rotated.primary


def _fresh() -> str:
    return base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode("ascii")


def _cipher(key: _Key, version: str) -> AESGCM:
    return AESGCM(base64.b64decode(key.versions[version]))


def _read(path: Path) -> _Keyring:
    try:
        data = _content(path)
    except FileNotFoundError as error:
        raise KmsRefused(f"keyring {path} does not exist; `bastion proxy keyring create` makes one") from error
    except PermissionError as error:
        raise KmsRefused(f"the keyring {path} is not readable by this user; run as its owner") from error
    except OSError as error:
        raise KmsUnavailable(f"the keyring {path} cannot be read: {error.strerror}") from error
    problem = ""
    try:
        keyring = _Keyring.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_context=False, include_url=False)[0]
        # Positions and names of fields; key names are not secret.
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}".lstrip(": ")
    else:
        lost = [name for name, key in keyring.keys.items() if key.primary not in key.versions]
        if not lost:
            return keyring
        problem = f"{lost[0]} has no version with the number of its primary"
    # Outside of the handler: the error with the file's content must not be chained.
    raise KmsRefused(f"{path} is not a valid keyring ({problem}); restore a copy of it")


def _content(path: Path) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(file, "rb") as stream:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode):
            raise KmsRefused(f"the keyring {path} is not a file")
        if stat.S_IMODE(status.st_mode) & 0o077:
            raise KmsRefused(f"other users may use the keyring {path}; run: chmod 600 {path}")
        if status.st_uid not in (0, os.geteuid()):
            raise KmsRefused(f"the keyring {path} belongs to another user, who could replace the keys; run chown")
        if status.st_size > _FILE_MAX_BYTES:
            raise KmsRefused(f"{path} is too large to be a keyring")
        return stream.read(_FILE_MAX_BYTES)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise KmsRefused(f"the folder {path.parent} cannot hold a keyring: {error.strerror}") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _write(path: Path, keyring: _Keyring) -> None:
    # Follow a link, so that the keyring and not the link is replaced.
    target = Path(os.path.realpath(path))
    scratch = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    try:
        try:
            file = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(file, "wb") as stream:
                stream.write(keyring.model_dump_json(indent=2).encode("ascii") + b"\n")
                stream.flush()
                os.fsync(file)
            scratch.replace(target)
        except OSError:
            scratch.unlink(missing_ok=True)
            raise
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise KmsUnavailable(f"the keyring {path} cannot be written: {error.strerror}") from error
