"""Inputs from a real S3 server: listings and answers agree about generations."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from bastion.adapters.s3.store import S3Store
from bastion.agent.inputs import parts
from bastion.agent.inputs.problems import InputProblem
from bastion.core.bucket import host_errors
from bastion.core.errors import StoreError
from tests.support.input_stage import Stage
from tests.support.s3_server import S3Server

LARGE = os.urandom(12 * 1024 * 1024)
FILES = {"a": b"small", "deep/large": LARGE, "empty": b"", "a name+with %20 ü": b"x"}


@pytest.fixture(name="stage")
def _stage(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stage:
    monkeypatch.setattr(parts, "RANGE_BYTES", 1024 * 1024)
    bucket, client = s3_server.new_bucket(), s3_server.client()
    for path, data in FILES.items():
        # Large ones in several parts, whose ETag is no MD5.
        client.upload_fileobj(io.BytesIO(data), bucket, f"tokens/{path}")
    stage = Stage(tmp_path)
    stage.store = S3Store(bucket, client=client)
    return stage


def test_an_input_on_s3_is_fetched_and_kept(stage: Stage) -> None:
    for name in ("first", "second"):
        cache = stage.cache()
        agent = stage.agent(name, cache=cache)
        agent.run()
        cache.close()
        assert agent.files() == FILES
    assert agent.progress.fetched == 0


def test_a_changed_byte_on_s3_is_noticed(stage: Stage) -> None:
    stage.agent("first").run()  # the listing
    meta = stage.store.head("tokens/deep/large")
    assert meta is not None
    stage.store.put("tokens/deep/large", bytes([LARGE[0] ^ 1]) + LARGE[1:], generation=meta.generation)
    with pytest.raises(InputProblem, match="deep/large was replaced") as caught:
        stage.agent("second").run()
    assert caught.value.error == host_errors.INPUT_CHANGED


def test_a_bucket_that_is_not_there_is_told(s3_server: S3Server, tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.store = S3Store("no-such-bucket-here", client=s3_server.client())
    with pytest.raises(StoreError, match="no-such-bucket-here"):
        stage.agent().run()
