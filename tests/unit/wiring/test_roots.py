"""Fetching what a job's spec names as its code: files of this machine and objects of any bucket."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bastion.adapters.gcs import store as gcs_store
from bastion.core import limits
from bastion.core.errors import NotFound, Refused
from bastion.testing.memory_store import MemoryStore
from bastion.wiring.roots import fetch_asset


def test_a_file_is_fetched_by_its_path_or_its_url(tmp_path: Path) -> None:
    path = tmp_path / "my code.tar"
    path.write_bytes(b"code")
    assert fetch_asset(str(path)) == fetch_asset(path.as_uri()) == b"code"


def test_what_is_no_file_is_told_apart_and_never_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"12345")
    for name in ("missing", "file/below"):
        with pytest.raises(NotFound):
            fetch_asset(str(tmp_path / name))
    for path in (tmp_path / "pipe", tmp_path, "code.tar", "s3://bucket/code.tar"):
        with pytest.raises(Refused):
            fetch_asset(str(path))
    monkeypatch.setattr(limits, "BUNDLE_MAX_BYTES", 4)
    with pytest.raises(Refused, match="is 5 bytes long; the maximum is 4"):
        fetch_asset(str(tmp_path / "file"))


def test_an_object_of_any_bucket_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    buckets = {"team": MemoryStore(), "other": MemoryStore()}
    buckets["other"].put("a/code.tar.gz", b"code", generation=0)
    monkeypatch.setattr(gcs_store, "GcsStore", lambda bucket: buckets[bucket])
    assert fetch_asset("gs://other/a/code.tar.gz") == b"code"
    with pytest.raises(NotFound, match="gs://team/a/code"):
        fetch_asset("gs://team/a/code.tar.gz")
    monkeypatch.setattr(limits, "BUNDLE_MAX_BYTES", 3)
    with pytest.raises(Refused, match="the maximum is 3"):
        fetch_asset("gs://other/a/code.tar.gz")


@pytest.mark.parametrize("url", ["gs://", "gs://team", "gs://team/", "gs:///a", "gs://UPPER/a"])
def test_a_url_that_names_no_object_is_refused(url: str) -> None:
    with pytest.raises(Refused, match="does not name an object"):
        fetch_asset(url)
