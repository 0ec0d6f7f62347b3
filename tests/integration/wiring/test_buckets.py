"""Which store serves a URL of a user's bucket or folder."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from bastion.core.errors import Refused, StoreError
from bastion.wiring.buckets import open_bucket, open_place
from tests.support.gcs_storage import Storage
from tests.support.s3_server import S3Server


def test_a_folder_and_a_file_are_opened_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "data" / "deep").mkdir(parents=True)
    (tmp_path / "data" / "deep" / "a").write_bytes(b"1")
    for url in (str(tmp_path / "data"), (tmp_path / "data").as_uri()):
        store, key = open_bucket(url)
        assert ([meta.key for meta in store.list("")], key) == (["deep/a"], "")
    store, key = open_bucket(str(tmp_path / "data" / "deep" / "a"))
    assert (store.get(key).data, key) == (b"1", "a")
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == ["deep"]


def test_a_missing_folder_is_created_only_for_writing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no folder"):
        open_bucket(str(tmp_path / "new" / "runs"))
    store, _ = open_bucket(str(tmp_path / "new" / "runs"), create=True)
    store.put("a", b"1", generation=0)
    assert (tmp_path / "new" / "runs" / "a").read_bytes() == b"1"


def test_a_bucket_of_cloud_storage_and_of_s3(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_server.env.items():
        monkeypatch.setenv(name, value)
    storage = Storage(tmp_path)
    storage.open()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
    try:
        for url in (f"gs://{storage.new_bucket()}/team/data/", f"s3://{s3_server.new_bucket()}/team/data/"):
            store, key = open_bucket(url)
            assert key == "team/data/"
            store.put("team/data/a", b"0123456789", generation=0)
            assert store.get_range("team/data/a", start=2, size=3).data == b"234"
            assert [meta.key for meta in open_place(url).list("")] == ["a"]
    finally:
        storage.close()


def test_s3_without_its_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "bastion.adapters.s3.store", raising=False)
    monkeypatch.delitem(sys.modules, "bastion.adapters.s3.api", raising=False)
    monkeypatch.delitem(sys.modules, "bastion.adapters.s3.client", raising=False)
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(Refused, match=r"needs the package boto3, which is not installed here; install bastion\[s3\]"):
        open_bucket("s3://data/tokens")


@pytest.mark.parametrize("url", ["", "data", "http://data/x", "gs://UPPER/x", "s3://", "./data"])
def test_what_is_no_bucket_is_refused(url: str) -> None:
    with pytest.raises(Refused):
        open_bucket(url)
