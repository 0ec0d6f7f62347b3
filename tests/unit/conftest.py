"""The storage half of the endpoint, with the bucket `lake`."""

from __future__ import annotations

from pathlib import Path

import pytest

from bastion.emulators.gcs.buckets import Bucket, Buckets


@pytest.fixture
def buckets(tmp_path: Path) -> Buckets:
    return Buckets(tmp_path)


@pytest.fixture
def bucket(buckets: Buckets) -> Bucket:
    return buckets.create("lake")
