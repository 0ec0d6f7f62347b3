from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.s3_stub import S3Stub


@pytest.fixture
def stub() -> Iterator[S3Stub]:
    stub = S3Stub()
    stub.open()
    yield stub
    stub.close()
