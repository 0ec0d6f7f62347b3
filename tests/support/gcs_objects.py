"""Objects in a bucket of the storage endpoint, written and read as its tests do."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bastion.emulators.gcs.buckets import Bucket, Buckets
from bastion.emulators.gcs.resources import Attributes, ObjectResource, Preconditions
from bastion.storage_wire.declared_sums import Declared

ANY = Preconditions()
NONE = Attributes()
TEXT = Attributes(content_type="text/plain", cache_control="no-store", metadata={"Key": "välue", "other": ""})


@pytest.fixture
def buckets(tmp_path: Path) -> Buckets:
    return Buckets(tmp_path)


@pytest.fixture
def bucket(buckets: Buckets) -> Bucket:
    return buckets.create("lake")


def put(
    bucket: Bucket,
    name: str,
    data: bytes = b"x",
    attributes: Attributes = NONE,
    preconditions: Preconditions = ANY,
    declared: Declared | None = None,
) -> ObjectResource:
    with bucket.stage() as staging:
        staging.write(data)
        return bucket.commit(name, staging, attributes, preconditions, declared=declared or Declared())


def read(bucket: Bucket, name: str) -> bytes:
    with bucket.open(name) as opened:
        return os.pread(opened.fileno(), opened.resource.size, 0)
