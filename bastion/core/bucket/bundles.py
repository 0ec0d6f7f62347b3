"""Bundles: a user's code as one tar file, named by its own digest. What may be in one, and what must not.

`bastion.client.code.bundle` packs, `bastion.agent.code.fetch` unpacks.

What looks like a secret is found by its name and by its content. Both are made to be right when they speak up, rather
than to find everything: whoever is stopped without reason twice looks for the way around it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from bastion.core import limits

# Larger files are not looked into: secrets are small.
SECRET_SCAN_BYTES = 1024 * 1024

_URL_OF_BUNDLE = re.compile(r".*/bundles/([0-9a-f]{64})\.tar\.gz")

_KEY_NAMES = "a private key by its name"
_LOGIN_NAMES = "a file of passwords or tokens by its name"
# Lower case; a pattern with a slash is about the last two parts of the path.
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
# Made to be shown.
_HARMLESS_NAMES = (".env.example", ".env.sample", ".env.template", ".env.dist", ".env.defaults")

# What is looked for first, since that is quick, and what it must be part of.
_SECRET_CONTENTS = (
    # With the first line of the key itself: a program that only looks for the header is no key.
    (
        "a private key",
        (b" PRIVATE KEY",),
        rb"-----BEGIN (?:[A-Z]{2,9} )?PRIVATE KEY(?: BLOCK)?-----\s*(?:\\n)?(?:[\w-]+: [^\n]*\s+)*[A-Za-z0-9+/]{60}",
    ),
    ("an access key of AWS", (b"AKIA", b"ASIA"), rb"(?<![A-Z0-9])(?:AKIA|ASIA)[A-Z2-7]{16}(?![A-Z0-9])"),
    (
        "a token of GitHub",
        (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_"),
        rb"(?<!\w)(?:gh[pousr]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{82})(?!\w)",
    ),
    ("a token of GitLab", (b"glpat-",), rb"(?<!\w)glpat-[\w-]{20}(?![\w-])"),
    ("a token of Hugging Face", (b"hf_",), rb"(?<!\w)hf_[A-Za-z]{34}(?!\w)"),
    ("a key of a Google API", (b"AIza",), rb"(?<!\w)AIza[\w-]{35}(?![\w-])"),
    ("a token of Slack", (b"xox",), rb"(?<!\w)xox[abprs]-[0-9]{10,13}-[\w-]{20,}"),
    ("a key of OpenAI", (b"T3BlbkFJ",), rb"(?<!\w)sk-(?:[a-z]+-)?[\w-]{20,74}T3BlbkFJ[\w-]{20}"),
    ("a key of Anthropic", (b"sk-ant-",), rb"(?<!\w)sk-ant-[a-z0-9]{5}-[\w-]{80}"),
)


class UnsafePath(ValueError):
    """A path of an archive that would not stay below the folder it is unpacked into."""


def digest_in(url: str) -> str:
    """The SHA-256 that a bundle's URL promises; empty if the URL is of another form."""
    match = _URL_OF_BUNDLE.fullmatch(url)
    return match[1] if match else ""


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether a file is meant by one of the patterns, by itself or by a folder that it is in.

    A pattern without a slash is compared with every part of the path, one with a slash with the path from its
    beginning. `*` stands for anything, slashes included.
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
    """What kind of secret a file's path speaks of; empty: none."""
    parts = path.lower().split("/")
    if parts[-1] in _HARMLESS_NAMES:
        return ""
    last_two = "/".join(parts[-2:])
    for pattern, kind in _SECRET_NAMES.items():
        if fnmatchcase(last_two if "/" in pattern else parts[-1], pattern):
            return kind
    return ""


def secret_in(data: bytes) -> str:
    """What kind of secret stands in a file's bytes; empty: none that is known here."""
    for kind, hints, pattern in _SECRET_CONTENTS:
        if any(hint in data for hint in hints) and re.search(pattern, data):
            return kind
    return ""


def check_path(path: str) -> str:
    """The path of an archive's entry without `.` and doubled slashes; empty: the folder itself.

    Raises:
        UnsafePath: it is absolute, climbs, or no file system could hold it.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/"):
        raise UnsafePath("is absolute")
    if ".." in parts:
        raise UnsafePath("climbs with ..")
    if "\0" in path or any(len(part.encode("utf-8", "surrogateescape")) > 255 for part in parts):
        raise UnsafePath("is no file's name")
    if len(path.encode("utf-8", "surrogateescape")) > limits.OBJECT_KEY_MAX_BYTES:
        raise UnsafePath("is too long")
    return "/".join(parts)


def check_link(path: str, target: str) -> None:
    """Refuses a symbolic link whose target, as written, is not below the folder that is unpacked.

    A link through another link may still lead out; who unpacks looks where it really ends.

    Raises:
        UnsafePath: it leads out, or nowhere.
    """
    if not target or "\0" in target:
        raise UnsafePath("leads nowhere")
    if target.startswith("/"):
        raise UnsafePath("leads to an absolute path")
    end = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    if end == ".." or end.startswith("../"):
        raise UnsafePath("leads out of the folder")
