"""Projected Secrets of emulated pods."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from bastion.emulators.kubernetes.kubelet.volumes import project_secrets, volume_folders

SECRETS = {"wandb": {"data": {"key": base64.b64encode(b"a\n").decode(), "other": base64.b64encode(b"b").decode()}}}


def projected(tmp_path: Path, **secret: Any) -> dict[str, tuple[bytes, int]]:
    """The files of a pod with one such source, by path, each with its mode."""
    source = {"name": "wandb", "optional": True, **secret}
    pod = {"spec": {"volumes": [{"name": "s", "projected": {"defaultMode": 0o400, "sources": [{"secret": source}]}}]}}
    project_secrets(pod, volume_folders(pod, tmp_path), lambda _, name: SECRETS.get(name))
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    return {str(path.relative_to(tmp_path / "s")): (path.read_bytes(), path.stat().st_mode & 0o777) for path in files}


def test_a_projected_secret_has_exactly_the_keys_that_are_named(tmp_path: Path) -> None:
    items = [{"key": "key", "path": "wandb/key"}, {"key": "absent", "path": "wandb/absent"}]
    assert projected(tmp_path, items=items) == {"wandb/key": (b"a\n", 0o400)}


def test_without_items_it_has_all_keys(tmp_path: Path) -> None:
    assert projected(tmp_path) == {"key": (b"a\n", 0o400), "other": (b"b", 0o400)}


def test_a_missing_secret_has_no_files(tmp_path: Path) -> None:
    assert projected(tmp_path, name="none") == {}
