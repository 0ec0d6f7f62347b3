"""Callers with tokens at a real endpoint: clients as they are, the program with `--identities`, Bastion's own store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gcsfs.core import GCSFileSystem
from google.api_core.exceptions import Forbidden
from google.auth.credentials import AnonymousCredentials
from google.cloud.storage import Client
from google.oauth2.credentials import Credentials

from bastion.adapters.gcs.client import shared_client
from bastion.adapters.gcs.store import GcsStore
from bastion.core.errors import AccessDenied
from bastion.emulators.gcs.iam import identities
from bastion.emulators.gcs.server import StorageEndpoint
from tests.support.storage_process import StorageProcess

TABLE = """
[tokens]
owner = "user:owner@example.com"
reader = "user:reader@example.com"
writer = "serviceAccount:writer@example.iam.gserviceaccount.com"

[project]
"roles/storage.admin" = ["user:owner@example.com"]
"roles/storage.bucketViewer" = ["allUsers"]
"""
MIB = 1024 * 1024


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "identities.toml"
    path.write_text(TABLE)
    return path


@pytest.fixture
def endpoint(tmp_path: Path, table: Path) -> Iterator[StorageEndpoint]:
    with StorageEndpoint(tmp_path / "buckets", buckets=["lake"], identities=identities.read(table)) as endpoint:
        grant(endpoint.url)
        yield endpoint


def client(url: str, token: str) -> Client:
    credentials = Credentials(token=token) if token else AnonymousCredentials()  # type: ignore[no-untyped-call]
    return Client(project="any", credentials=credentials, client_options={"api_endpoint": url})


def grant(url: str) -> None:
    """The reader may read, the writer everything with objects."""
    bucket = client(url, "owner").bucket("lake")
    policy = bucket.get_iam_policy(requested_policy_version=3)
    policy.bindings.append({"role": "roles/storage.objectViewer", "members": {"user:reader@example.com"}})
    members = {"serviceAccount:writer@example.iam.gserviceaccount.com"}
    policy.bindings.append({"role": "roles/storage.objectUser", "members": members})
    bucket.set_iam_policy(policy)


def test_google_cloud_storage_does_what_its_token_allows(endpoint: StorageEndpoint) -> None:
    writer, reader = (client(endpoint.url, token).bucket("lake") for token in ("writer", "reader"))
    large = writer.blob("large", chunk_size=MIB)
    large.upload_from_string(b"x" * (2 * MIB + 1))  # a resumable session
    writer.blob("both").compose([large, large])
    writer.copy_blob(large, writer, "copy")
    assert reader.blob("both").download_as_bytes() == b"x" * (4 * MIB + 2)
    assert [blob.name for blob in reader.list_blobs()] == ["both", "copy", "large"]
    assert reader.test_iam_permissions(["storage.objects.get", "storage.objects.delete"]) == ["storage.objects.get"]
    denied = reader.blob("new", chunk_size=MIB)
    for call in (
        lambda: denied.upload_from_string(b"x" * (2 * MIB + 1)),
        lambda: denied.upload_from_string(b"x"),
        lambda: denied.compose([large]),
        lambda: reader.copy_blob(large, reader, "new"),
        lambda: reader.blob("copy").delete(),
        lambda: reader.get_iam_policy(),
    ):
        with pytest.raises(Forbidden, match="does not have storage"):
            call()


def test_calls_of_a_batch_have_its_token(endpoint: StorageEndpoint) -> None:
    writer, reader = (client(endpoint.url, token) for token in ("writer", "reader"))
    for name in ("a", "b"):
        writer.bucket("lake").blob(name).upload_from_string(b"x")
    with pytest.raises(Forbidden), reader.batch():
        reader.bucket("lake").blob("a").delete()
    with writer.batch():
        writer.bucket("lake").blob("a").delete()
        writer.bucket("lake").blob("b").delete()
    assert list(writer.list_blobs("lake")) == []


def test_gcsfs_does_what_its_token_allows(endpoint: StorageEndpoint) -> None:
    writer, reader = (
        GCSFileSystem(
            token=Credentials(token=token),  # type: ignore[no-untyped-call]
            endpoint_url=endpoint.url,
            skip_instance_cache=True,
        )
        for token in ("writer", "reader")
    )
    writer.pipe("lake/a", b"data")
    assert reader.cat("lake/a") == b"data"
    assert reader.ls("lake") == ["lake/a"]
    with pytest.raises(OSError, match=r"does not have storage\.objects\.create access"):
        reader.pipe("lake/b", b"data")


def test_the_program_enforces_policies_also_after_a_crash(tmp_path: Path, table: Path) -> None:
    process = StorageProcess(tmp_path / "buckets", bucket="lake", options=[f"--identities={table}"])
    process.start()
    try:
        grant(process.url)
        process.kill()
        process.start()
        client(process.url, "writer").bucket("lake").blob("a").upload_from_string(b"data")
        with pytest.raises(Forbidden):
            client(process.url, "reader").bucket("lake").blob("a").delete()
    finally:
        process.stop()


def test_the_store_of_a_bastion_has_the_token_of_its_environment(
    endpoint: StorageEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint.url)
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "writer")
    GcsStore("lake", client=shared_client()).put("key", b"data", generation=0)
    monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", "reader")
    reader = GcsStore("lake", client=shared_client())
    assert reader.get("key").data == b"data"
    with pytest.raises(AccessDenied, match=r"reader@example\.com.*storage\.objects\.create"):
        reader.put("new", b"data", generation=0)
    for token in ("", "nobody"):
        monkeypatch.setenv("GOOGLE_AUTH_TOKEN_FOR_TESTING", token)
        with pytest.raises(AccessDenied):
            GcsStore("lake", client=shared_client()).get("key")
