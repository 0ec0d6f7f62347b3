"""A bucket that is a folder, and what the tests ask of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from bastion.adapters.folder.store import DirectoryStore

HOUR_NS = 3_600_000_000_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "bucket"


@pytest.fixture
def store(folder: Path) -> DirectoryStore:
    return DirectoryStore(folder, fsync=False)


def keys(store: DirectoryStore, prefix: str = "") -> list[str]:
    return [meta.key for meta in store.list(prefix)]


def generation(store: DirectoryStore, key: str) -> int:
    meta = store.head(key)
    assert meta is not None
    return meta.generation
