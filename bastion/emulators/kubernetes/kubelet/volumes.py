"""Volumes of an emulated pod: an emptyDir is a folder, and a mount path in a value becomes that folder's path.

Pods share this machine's file system, so a container does not find its volumes under their mount paths. Instead, each
value of its environment and each part of its command that is a mount path, or begins with one and `/`, is rewritten.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

TERMINATION_LOG = "/dev/termination-log"


@dataclass(frozen=True, slots=True)
class Mounts:
    """Pairs of a path in the container and its path on this machine, longest first."""

    paths: tuple[tuple[str, str], ...]

    def rewrite(self, value: str) -> str:
        for inside, outside in self.paths:
            if value == inside:
                return outside
            if value.startswith(inside + "/"):
                return outside + value[len(inside) :]
        return value


def volume_folders(pod: dict[str, Any], folder: Path) -> dict[str, Path]:
    """The folder of each volume of a pod, below `folder`."""
    return {volume["name"]: folder / volume["name"] for volume in pod["spec"].get("volumes") or ()}


def mounts(container: dict[str, Any], volumes: dict[str, Path], termination_log: Path) -> Mounts:
    """The mounts of one container, with its termination message."""
    found = {container.get("terminationMessagePath") or TERMINATION_LOG: str(termination_log)}
    for mount in container.get("volumeMounts") or ():
        source = volumes[mount["name"]] / (mount.get("subPath") or "")
        found[_clean(mount["mountPath"])] = str(source)
    return Mounts(tuple(sorted(found.items(), key=lambda pair: (-len(pair[0]), pair[0]))))


def make_folders(container: dict[str, Any], volumes: dict[str, Path]) -> None:
    """Create the volumes that a container mounts, and their `subPath` folders."""
    for mount in container.get("volumeMounts") or ():
        (volumes[mount["name"]] / (mount.get("subPath") or "")).mkdir(mode=0o700, parents=True, exist_ok=True)


def _clean(path: str) -> str:
    return path.rstrip("/") or "/"
