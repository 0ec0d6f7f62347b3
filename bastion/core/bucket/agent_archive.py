"""The worker agent as nodes fetch it: one tar file, named by its own digest.

It holds `manifest.json` and `wheels/`: bastion and every package that the agent needs, for one or several Pythons.
Imports only the standard library, because nodes read it before they have any package.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from bastion.core.bucket import wheel_tags

MANIFEST = "manifest.json"
WHEELS = "wheels"
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """One wheel. `name` is lower case with hyphens; `file` is in `wheels/`; `tags` may exceed those of `file`."""

    name: str
    version: str
    file: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """The content of the archive. `needs` lists required packages; `wheels` may have one of each per Python."""

    version: str
    needs: tuple[str, ...]
    wheels: tuple[Wheel, ...]

    @property
    def minors(self) -> tuple[int, ...]:
        """Return the minor versions of Python 3 that it serves, on the platforms of its wheels."""
        minors = range(wheel_tags.OLDEST_MINOR, wheel_tags.NEWEST_MINOR + 1)
        return tuple(minor for minor in minors if not self.lacks(minor))

    def lacks(self, minor: int, platform: wheel_tags.Platform | None = None) -> tuple[str, ...]:
        """Return required packages without a wheel for that Python (and platform, if given)."""
        there = {wheel.name for wheel in self.wheels if _suits(wheel, minor, platform)}
        return tuple(name for name in self.needs if name not in there)

    def choose(self, minor: int, platform: wheel_tags.Platform) -> tuple[Wheel, ...]:
        """Return one wheel of each package that has one for that Python."""
        chosen = {wheel.name: wheel for wheel in reversed(self.wheels) if _suits(wheel, minor, platform)}
        return tuple(chosen[name] for name in sorted(chosen))

    def to_bytes(self) -> bytes:
        pythons = [f"3.{minor}" for minor in self.minors]
        document = {"format": FORMAT, "pythons": pythons, **asdict(self)}
        return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"

    @staticmethod
    def read(data: bytes) -> Manifest:
        """Raises ValueError."""
        try:
            document = json.loads(data)
            wheels = tuple(Wheel(**{**wheel, "tags": tuple(wheel["tags"])}) for wheel in document["wheels"])
            manifest = Manifest(version=document["version"], needs=tuple(document["needs"]), wheels=wheels)
        except (LookupError, TypeError, RecursionError) as error:
            raise ValueError(f"not the manifest of an agent: {error!r}") from error
        texts = [manifest.version, *manifest.needs]
        texts += [text for wheel in wheels for text in (wheel.name, wheel.version, wheel.file, *wheel.tags)]
        if not all(isinstance(text, str) for text in texts) or any(
            tag.count("-") != 2 for wheel in wheels for tag in wheel.tags
        ):
            raise ValueError("not the manifest of an agent")
        return manifest


def _suits(wheel: Wheel, minor: int, platform: wheel_tags.Platform | None) -> bool:
    return any(
        wheel_tags.suits_python(tag, minor) and (platform is None or wheel_tags.suits_platform(tag, platform))
        for tag in wheel.tags
    )


def pythons(minors: Sequence[int]) -> str:
    return "Python " + ", ".join(f"3.{minor}" for minor in minors) if minors else "no Python"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedAgent:
    """The archive and its manifest; `sha256` is the digest of `archive`."""

    sha256: str
    archive: bytes
    manifest: Manifest
