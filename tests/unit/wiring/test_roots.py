"""Fetching what a job's spec names as its code: files of this machine and objects of any bucket."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bastion.adapters.gcs import store as gcs_store
from bastion.core import limits
from bastion.core.errors import NotFound, Refused
from bastion.testing.memory_store import MemoryStore
from bastion.wiring.roots import fetch_asset, is_near, parse_root


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
    for path in (tmp_path / "pipe", tmp_path, "code.tar", "s4://bucket/code.tar"):
        with pytest.raises(Refused):
            fetch_asset(str(path))
    monkeypatch.setattr(limits, "BUNDLE_MAX_BYTES", 4)
    with pytest.raises(Refused, match="is 5 bytes long; the maximum is 4"):
        fetch_asset(str(tmp_path / "file"))


def test_an_object_of_any_bucket_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    buckets = {"team": MemoryStore(), "other": MemoryStore()}
    buckets["other"].put("a/code.tar.gz", b"code", generation=0)
    monkeypatch.setattr(gcs_store, "GcsStore", lambda bucket, **_: buckets[bucket])
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


@pytest.mark.parametrize("scheme", ["gs", "s3"])
def test_a_root_in_the_cloud_is_a_bucket_and_a_name(scheme: str) -> None:
    root = parse_root(f"{scheme}://team/folder/alice-bastion/")
    assert (root.bucket, root.bastion, root.scheme, root.local) == (
        f"{scheme}://team/folder", "alice-bastion", scheme, False,
    )  # fmt: skip
    for wrong in (
        f"{scheme}://",
        f"{scheme}://alice-bastion",
        f"{scheme}://UPPER/a-bastion",
        f"{scheme}://team//x-bastion",
    ):
        with pytest.raises(Refused, match=f"use {scheme}://BUCKET/NAME-bastion"):
            parse_root(wrong)


def test_a_bucket_on_s3_is_near_if_its_endpoint_is_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    root = parse_root("s3://team/alice-bastion")
    for url, near in (("", False), ("http://127.0.0.1:8333", True), ("https://s3.example.com", False)):
        monkeypatch.setenv("AWS_ENDPOINT_URL", url)
        assert is_near(root) is near


@pytest.mark.parametrize(
    "url",
    ["s3:/team/a-bastion", "gs:team/a-bastion", "S3://team/a-bastion", "File:/team/a-bastion", "file://team/a-bastion"],
)
def test_a_mistyped_url_is_no_folder(url: str) -> None:
    with pytest.raises(Refused, match="is not a folder, a gs:// URL or an s3:// URL"):
        parse_root(url)


@pytest.mark.parametrize("url", ["s3://team/../a-bastion", "gs://team/./a-bastion", "s3://team/x\ny/a-bastion"])
def test_a_root_has_names_that_keys_may_have(url: str) -> None:
    with pytest.raises(Refused, match="does not name a bastion"):
        parse_root(url)


def test_a_folders_url_has_no_query(tmp_path: Path) -> None:
    assert parse_root(f"file://{tmp_path}/x%3F#1/a-bastion").bucket == f"{tmp_path}/x?#1"
