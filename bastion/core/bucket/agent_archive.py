"""The worker agent as nodes fetch it: one tar file, named by its own digest.

In the file lie `manifest.json` and `wheels/`: bastion's own, and every package that the agent needs,
for one Python or for several. Read by interpreters that have nothing but this package on their path, so it imports
only the standard library.
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
    """One wheel of the folder.

    Attributes:
        name: Of the package, in lower case and with hyphens.
        file: In `wheels/`.
        tags: What it can be used by; a wheel of the daemon's own install may have more than its file's name says.
    """

    name: str
    version: str
    file: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What is in the file.

    Attributes:
        version: Of bastion.
        needs: Names of the packages without which the agent does not run; further wheels are used if they fit.
        wheels: Possibly several of one package, for different Pythons.
    """

    version: str
    needs: tuple[str, ...]
    wheels: tuple[Wheel, ...]

    @property
    def minors(self) -> tuple[int, ...]:
        """The minor versions of Python 3 that it serves, on the platforms that its wheels are for."""
        minors = range(wheel_tags.OLDEST_MINOR, wheel_tags.NEWEST_MINOR + 1)
        return tuple(minor for minor in minors if not self.lacks(minor))

    def lacks(self, minor: int, platform: wheel_tags.Platform | None = None) -> tuple[str, ...]:
        """What is needed and not there for that Python, on that platform if one is given."""
        there = {wheel.name for wheel in self.wheels if _suits(wheel, minor, platform)}
        return tuple(name for name in self.needs if name not in there)

    def choose(self, minor: int, platform: wheel_tags.Platform) -> tuple[Wheel, ...]:
        """One wheel of each package that has one for that Python."""
        chosen = {wheel.name: wheel for wheel in reversed(self.wheels) if _suits(wheel, minor, platform)}
        return tuple(chosen[name] for name in sorted(chosen))

    def to_bytes(self) -> bytes:
        pythons = [f"3.{minor}" for minor in self.minors]
        document = {"format": FORMAT, "pythons": pythons, **asdict(self)}
        return json.dumps(document, indent=1, sort_keys=True).encode() + b"\n"

    @staticmethod
    def read(data: bytes) -> Manifest:
        """Reads what `to_bytes` wrote; the digest of the file has already proved that it did."""
        document = json.loads(data)
        wheels = tuple(Wheel(**{**wheel, "tags": tuple(wheel["tags"])}) for wheel in document["wheels"])
        return Manifest(version=document["version"], needs=tuple(document["needs"]), wheels=wheels)


def _suits(wheel: Wheel, minor: int, platform: wheel_tags.Platform | None) -> bool:
    return any(
        wheel_tags.suits_python(tag, minor) and (platform is None or wheel_tags.suits_platform(tag, platform))
        for tag in wheel.tags
    )


def pythons(minors: Sequence[int]) -> str:
    """For people: `Python 3.10, 3.11`."""
    return "Python " + ", ".join(f"3.{minor}" for minor in minors) if minors else "no Python"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedAgent:
    """The file and what is in it.

    Attributes:
        sha256: Digest of `archive`.
    """

    sha256: str
    archive: bytes
    manifest: Manifest
