"""Bundles: a user's code as one tar file, named by its own digest, and its allowed content.

Secrets are detected by name here, and by content in `bastion.core.secret_signs`.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from bastion.core import limits

# Larger files are not scanned: secrets are small.
SECRET_SCAN_BYTES = 1024 * 1024

_URL_OF_BUNDLE = re.compile(r".*/bundles/([0-9a-f]{64})\.tar\.gz")

_KEY_NAMES = "named like a private key"
_LOGIN_NAMES = "named like a file of passwords or tokens"
# Lower case; a pattern with a slash matches the last two parts of the path.
_SECRET_NAMES = {
    "id_rsa": _KEY_NAMES,
    "id_dsa": _KEY_NAMES,
    "id_ecdsa": _KEY_NAMES,
    "id_ed25519": _KEY_NAMES,
    "*.p12": _KEY_NAMES,
    "*.pfx": _KEY_NAMES,
    "*.jks": _KEY_NAMES,
    "*.ppk": _KEY_NAMES,
    "*.key": _KEY_NAMES,
    ".env": _LOGIN_NAMES,
    ".env.*": _LOGIN_NAMES,
    ".netrc": _LOGIN_NAMES,
    "_netrc": _LOGIN_NAMES,
    ".pgpass": _LOGIN_NAMES,
    ".pypirc": _LOGIN_NAMES,
    ".htpasswd": _LOGIN_NAMES,
    ".git-credentials": _LOGIN_NAMES,
    "credentials.json": _LOGIN_NAMES,
    "application_default_credentials.json": _LOGIN_NAMES,
    "client_secret*.json": _LOGIN_NAMES,
    "kaggle.json": _LOGIN_NAMES,
    "secrets.json": _LOGIN_NAMES,
    "secrets.toml": _LOGIN_NAMES,
    "secrets.yaml": _LOGIN_NAMES,
    "secrets.yml": _LOGIN_NAMES,
    ".aws/credentials": _LOGIN_NAMES,
    ".docker/config.json": _LOGIN_NAMES,
    ".kube/config": _LOGIN_NAMES,
    ".huggingface/token": _LOGIN_NAMES,
}
# Examples, meant to be published.
_HARMLESS_NAMES = (".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults")


class UnsafePath(ValueError):
    """A path of an archive that would leave the folder it is unpacked into."""


def digest_in(url: str) -> str:
    """Return the SHA-256 in a bundle's URL; empty if the URL has another form."""
    match = _URL_OF_BUNDLE.fullmatch(url)
    return match[1] if match else ""


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern matches a file or one of its folders.

    A pattern without a slash matches any part of the path, one with a slash the path from its beginning. `*` also
    matches slashes.
    """
    parts = path.split("/")
    prefixes = ["/".join(parts[: count + 1]) for count in range(len(parts))]
    for pattern in patterns:
        anchored = pattern.removeprefix("./").strip("/")
        candidates = prefixes if "/" in pattern.rstrip("/") else parts
        if any(fnmatchcase(candidate, anchored) for candidate in candidates):
            return True
    return False


def secret_by_name(path: str) -> str:
    """Return the type of secret that a file's path suggests; empty: none."""
    parts = path.lower().split("/")
    if parts[-1] in _HARMLESS_NAMES:
        return ""
    last_two = "/".join(parts[-2:])
    for pattern, secret_type in _SECRET_NAMES.items():
        if fnmatchcase(last_two if "/" in pattern else parts[-1], pattern):
            return secret_type
    return ""


def check_path(path: str) -> str:
    """Return the path of an archive's entry without `.` and doubled slashes; empty: the folder itself.

    Raises UnsafePath if it is absolute, contains `..`, or no file system could hold it.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/"):
        raise UnsafePath("is absolute")
    if ".." in parts:
        raise UnsafePath("contains ..")
    if "\0" in path or any(len(part.encode("utf-8", "surrogateescape")) > 255 for part in parts):
        raise UnsafePath("is not a valid file name")
    if len(path.encode("utf-8", "surrogateescape")) > limits.OBJECT_KEY_MAX_BYTES:
        raise UnsafePath("is too long")
    return "/".join(parts)


def check_link(path: str, target: str) -> None:
    """Refuse a symbolic link whose target, as written, is empty or not below the unpacked folder; raises UnsafePath.

    A link through another link may still lead out; the caller checks the real target.
    """
    if not target or "\0" in target:
        raise UnsafePath("has no target")
    if target.startswith("/"):
        raise UnsafePath("points to an absolute path")
    end = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if end == ".." or end.startswith("../"):
        raise UnsafePath("points out of the folder")
