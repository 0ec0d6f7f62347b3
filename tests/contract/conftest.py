"""An empty bucket of every adapter in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bastion.ports import ObjectStore
from tests.contract.gcs_storage import ALL_FAULTS, Storage
from tests.contract.object_stores import BACKENDS, Bucket, Site


@pytest.fixture(scope="session")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[bool], Storage]]:
    """Endpoints, each begun when it is first asked for."""
    running: dict[bool, Storage] = {}

    def running_one(faulty: bool) -> Storage:
        if faulty not in running:
            storage = Storage(tmp_path_factory.mktemp("storage"), rules=ALL_FAULTS if faulty else ())
            storage.open()
            running[faulty] = storage
        return running[faulty]

    yield running_one
    for storage in running.values():
        storage.close()


@pytest.fixture(params=sorted(BACKENDS))
def bucket(request: pytest.FixtureRequest, tmp_path: Path, storage: Callable[[bool], Storage]) -> Bucket:
    return BACKENDS[request.param](Site(folder=tmp_path, storage=storage))


@pytest.fixture
def store(bucket: Bucket) -> ObjectStore:
    return bucket.open()
