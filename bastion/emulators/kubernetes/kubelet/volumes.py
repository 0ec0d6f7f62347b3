"""Volumes of an emulated pod: an emptyDir is a folder, and a mount path in a value becomes that folder's path. A
projected volume of optional Secrets is a folder with the keys that exist when the pod starts.

Pods share this machine's file system, so a container does not find its volumes under their mount paths. Instead, each
value of its environment and each part of its command that is a mount path, or begins with one and `/`, is rewritten.
"""

from __future__ import annotations

import base64
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bastion.emulators.kubernetes.kubelet.environment import Fetch, Obj

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
    """The folder of each volume of a pod: below `folder`, or the node's own that the pod wants created."""
    return {
        volume["name"]: _host_path(volume) or folder / volume["name"] for volume in pod["spec"].get("volumes") or ()
    }


def _host_path(volume: dict[str, Any]) -> Path | None:
    """A host's folders are this machine's; those that real nodes bring, such as a driver's, do not exist here."""
    source = volume.get("hostPath") or {}
    return Path(source["path"]) if source.get("type") == "DirectoryOrCreate" else None


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


def project_secrets(pod: Obj, volumes: dict[str, Path], fetch: Fetch) -> None:
    """Write the keys of Secrets in projected volumes, without those that are missing: all are optional here.

    As MakePayload of pkg/volume/secret/secret.go; the real files are links, which follow later changes.
    """
    for volume in pod["spec"].get("volumes") or ():
        projected = volume.get("projected") or {}
        for source in projected.get("sources") or ():
            secret = fetch("secret", source["secret"]["name"]) or {}
            data = secret.get("data") or {}
            items = source["secret"].get("items")
            if items is None:
                items = [{"key": key, "path": key} for key in data]
            for item in items:
                if item["key"] in data:
                    mode = item.get("mode") or projected.get("defaultMode") or 0o644
                    _write(volumes[volume["name"]] / item["path"], base64.b64decode(data[item["key"]]), mode)


def _write(path: Path, data: bytes, mode: int) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)


def _clean(path: str) -> str:
    return path.rstrip("/") or "/"
