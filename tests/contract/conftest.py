"""An empty bucket of every adapter in turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bastion.ports import ObjectStore
from tests.support.gcs_storage import Storage
from tests.support.object_stores import BACKENDS, S3_STUBS, STORAGES, Bucket, Site
from tests.support.s3_stub import S3Stub


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


@pytest.fixture(scope="session")
def s3_stub() -> Iterator[Callable[[str], S3Stub]]:
    """Stubs of S3, each begun when it is first asked for."""
    running: dict[str, S3Stub] = {}

    def running_one(kind: str) -> S3Stub:
        if kind not in running:
            running[kind] = S3_STUBS[kind]()
            running[kind].open()
        return running[kind]

    yield running_one
    for stub in running.values():
        stub.close()


@pytest.fixture(params=sorted(BACKENDS))
def bucket(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    storage: Callable[[str], Storage],
    s3_stub: Callable[[str], S3Stub],
) -> Bucket:
    site = Site(folder=tmp_path, storage=storage, s3=lambda: request.getfixturevalue("s3_server"), s3_stub=s3_stub)
    return BACKENDS[request.param](site)


@pytest.fixture
def store(bucket: Bucket) -> ObjectStore:
    return bucket.open()
