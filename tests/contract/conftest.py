"""An empty bucket of every adapter in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bastion.ports import ObjectStore
from tests.support.gcs_storage import Storage
from tests.support.object_stores import BACKENDS, STORAGES, Bucket, Site


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Storage]]:
    """Endpoints, each begun when it is first asked for."""
    running: dict[str, Storage] = {}

    def running_one(kind: str) -> Storage:
        if kind not in running:
            storage = STORAGES[kind](tmp_path_factory.mktemp("storage"))
            storage.open()
            running[kind] = storage
        return running[kind]

    yield running_one
    for storage in running.values():
        storage.close()


@pytest.fixture(params=sorted(BACKENDS))
def bucket(request: pytest.FixtureRequest, tmp_path: Path, storage: Callable[[str], Storage]) -> Bucket:
    return BACKENDS[request.param](Site(folder=tmp_path, storage=storage))


@pytest.fixture
def store(bucket: Bucket) -> ObjectStore:
    return bucket.open()
