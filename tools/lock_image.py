"""Name the Dockerfile's base image by its digest: `python tools/lock_image.py sha256:DIGITS`, or `--check`.

A tag such as `python:3.12-slim` is another image every few weeks; a digest is one image forever.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

DOCKERFILE = Path(__file__).resolve().parents[1] / "Dockerfile"
_FROM = re.compile(r"^FROM (?P<image>[^\s@]+)(?:@(?P<digest>\S+))?$", re.MULTILINE)
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_HOW = (
    "find the digest of the image that you trust with\n"
    "  docker buildx imagetools inspect {image}\n"
    "and run: make lock-image DIGEST=sha256:..."
)


def locked(text: str, digest: str) -> str:
    """Return the Dockerfile with the digest behind each base image; raises ValueError."""
    if not _DIGEST.fullmatch(digest):
        raise ValueError(f"{digest!r} is not a digest; it must be sha256: and 64 hexadecimal digits")
    return _FROM.sub(lambda match: f"FROM {match['image']}@{digest}", text)


def problem(text: str) -> str | None:
    """Return why the Dockerfile cannot be built into a release, if so."""
    images = list(_FROM.finditer(text))
    if not images:
        return "the Dockerfile has no line FROM IMAGE"
    for match in images:
        if not _DIGEST.fullmatch(match["digest"] or ""):
            image = match["image"]
            return f"the Dockerfile's base image {image} has no digest, so a build may get another one; " + _HOW.format(
                image=image
            )
    return None


def main(argv: Sequence[str], dockerfile: Path = DOCKERFILE) -> int:
    text = dockerfile.read_text("utf-8")
    if list(argv) == ["--check"]:
        wrong = problem(text)
        if wrong:
            sys.stderr.write(wrong + "\n")
        return bool(wrong)
    try:
        dockerfile.write_text(locked(text, argv[0] if argv else ""), "utf-8")
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
