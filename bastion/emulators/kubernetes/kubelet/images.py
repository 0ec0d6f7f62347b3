"""Images: every image is this machine, but for names that show a fault, in any folder of their path:

* `missing/...`: the registry does not have it.
* `private/...`: the registry denies access.
* `bare/...`: an image without a single program; starting a command fails.
* `nopython/...`: an image without Python, in a mount namespace; a container fails where that is not allowed.

References are parsed as github.com/distribution/reference does it; messages follow containerd and
pkg/kubelet/images/image_manager.go.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_PATH = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*")
_LABEL = r"[a-zA-Z0-9](?:[a-zA-Z0-9-]*[a-zA-Z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*(?::[0-9]+)?")
_TAG = re.compile(r"\w[\w.-]{0,127}", re.ASCII)
_DIGEST = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:[-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}")


class InvalidReference(ValueError):
    """The name is not a reference to an image."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """A parsed reference."""

    domain: str
    path: str
    tag: str
    digest: str

    @property
    def full_name(self) -> str:
        """As containerd names it, `docker.io/library/python:3.12`."""
        name = f"{self.domain}/{self.path}"
        return name + (f":{self.tag}" if self.tag else "") + (f"@{self.digest}" if self.digest else "")

    @property
    def image_id(self) -> str:
        digest = self.digest or f"sha256:{hashlib.sha256(self.full_name.encode()).hexdigest()}"
        return f"{self.domain}/{self.path}@{digest}"

    @property
    def has_programs(self) -> bool:
        return not self._is("bare")

    @property
    def has_python(self) -> bool:
        return not self._is("nopython")

    @property
    def pull_error(self) -> str:
        """Why it cannot be pulled; empty if it can."""
        failed = f'failed to pull and unpack image "{self.full_name}": failed to resolve reference "{self.full_name}"'
        if self._is("missing"):
            return f"rpc error: code = NotFound desc = {failed}: {self.full_name}: not found"
        if self._is("private"):
            return (
                f"{failed}: pull access denied, repository does not exist or may require authorization: "
                "server message: insufficient_scope: authorization failed"
            )
        return ""

    def _is(self, word: str) -> bool:
        return word in self.path.split("/")[:-1]


def parse(name: str) -> Image:
    """Parse a reference; the default tag is `latest`. Raises InvalidReference."""
    rest, _, digest = name.partition("@")
    first, slash, after = rest.partition("/")
    is_domain = slash and (any(c in first for c in ".:") or first == "localhost" or first.lower() != first)
    domain, path = (first, after) if is_domain else ("docker.io", rest)
    path, colon, tag = path.partition(":")
    if domain in ("docker.io", "index.docker.io"):
        domain, path = "docker.io", path if "/" in path else f"library/{path}"
    if path.lower() != path and _PATH.fullmatch(path.lower()):
        raise InvalidReference(f"invalid reference format: repository name ({path}) must be lowercase")
    valid = (
        _PATH.fullmatch(path)
        and _DOMAIN.fullmatch(domain)
        and (_TAG.fullmatch(tag) if colon else True)
        and (_DIGEST.fullmatch(digest) if "@" in name else True)
    )
    if not valid:
        raise InvalidReference("invalid reference format")
    return Image(domain=domain, path=path, tag=tag if colon or digest else "latest", digest=digest)


def invalid_message(name: str, error: InvalidReference) -> str:
    """The message of a container that waits with InvalidImageName."""
    return f'Failed to apply default image tag "{name}": couldn\'t parse image reference "{name}": {error}'


def no_file(program: str) -> str:
    return f"stat {program}: no such file or directory"


def start_error(program: str, problem: str) -> str:
    """The message of runc and containerd for a command that cannot be executed."""
    return (
        "failed to create containerd task: failed to create shim task: OCI runtime create failed: runc create failed: "
        f'unable to start container process: error during container init: exec: "{program}": {problem}'
    )
