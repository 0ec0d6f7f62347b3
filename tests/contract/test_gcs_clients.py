"""The client libraries that people use, unmodified, against the storage endpoint over a real socket."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

# The class that speaks HTTP alone: the other one asks over gRPC which kind of bucket it has, and this endpoint speaks
# no gRPC (docs/reference/storage-endpoint.md says how a user switches that off).
from gcsfs.core import GCSFileSystem
from google.api_core import exceptions
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage
from google.cloud.storage import transfer_manager

from bastion.emulators.gcs.api import handler
from bastion.emulators.gcs.buckets import Buckets
from bastion.emulators.gcs.server import StorageEndpoint
from bastion.emulators.gcs.serving import instructions
from bastion.emulators.gcs.uploads import Uploads
from bastion.net.http1 import HttpServer

QUANTUM = 256 * 1024
MIB = 1024 * 1024
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an endpoint with one bucket, `lake`."""
    buckets = Buckets(tmp_path_factory.mktemp("buckets"))
    buckets.create("lake")
    server = HttpServer(handler(buckets, Uploads(buckets)))
    server.open()
    yield f"http://127.0.0.1:{server.port}"
    server.close()


def make_client(endpoint: str) -> storage.Client:
    return storage.Client(project="any", credentials=AnonymousCredentials(), client_options={"api_endpoint": endpoint})


@pytest.fixture(scope="module")
def client(endpoint: str) -> Iterator[storage.Client]:
    client = make_client(endpoint)
    yield client
    client.close()


@pytest.fixture
def bucket(client: storage.Client) -> Iterator[storage.Bucket]:
    """An empty bucket."""
    bucket = client.create_bucket("pond")
    yield bucket
    bucket.delete(force=True)


class TestGoogleCloudStorage:
    """google-cloud-storage."""

    def test_small_and_empty_objects_come_back(self, bucket: storage.Bucket) -> None:
        for name, data in (("a/ü b+c%2F", b"\r\n--data--\x00"), ("empty", b"")):
            blob = bucket.blob(name)
            blob.upload_from_string(data, content_type="text/x")

            assert bucket.blob(name).download_as_bytes() == data
            found = bucket.get_blob(name)
            assert found is not None
            assert (found.size, found.content_type, found.generation) == (len(data), "text/x", blob.generation)

    @pytest.mark.parametrize("checksum", ["md5", "crc32c", None])
    @pytest.mark.parametrize("chunk_size", [None, QUANTUM])
    def test_uploads_with_checksums_come_back_with_checksums(
        self, bucket: storage.Bucket, tmp_path: Path, checksum: str | None, chunk_size: int | None
    ) -> None:
        data = os.urandom(3 * QUANTUM + 77)
        source = tmp_path / "source"
        source.write_bytes(data)

        bucket.blob("a", chunk_size=chunk_size).upload_from_filename(source, checksum=checksum)

        blob = bucket.blob("a", chunk_size=chunk_size)
        blob.download_to_filename(tmp_path / "back", checksum=checksum)
        assert (tmp_path / "back").read_bytes() == data

    def test_a_large_object_goes_through_a_session(self, bucket: storage.Bucket) -> None:
        data = os.urandom(9 * MIB)

        bucket.blob("a").upload_from_string(data)

        assert bucket.blob("a").download_as_bytes() == data

    def test_a_stream_of_unknown_size_is_written_and_read(self, bucket: storage.Bucket) -> None:
        data = os.urandom(3 * QUANTUM + 5)

        with bucket.blob("a").open("wb", chunk_size=QUANTUM) as writer:
            for start in range(0, len(data), 100_000):
                writer.write(data[start : start + 100_000])

        with bucket.blob("a").open("rb", chunk_size=QUANTUM) as reader:
            reader.seek(100)
            assert reader.read() == data[100:]

    def test_a_session_can_be_begun_here_and_used_elsewhere(self, bucket: storage.Bucket) -> None:
        used = bucket.blob("a").create_resumable_upload_session(content_type="text/x", size=4)
        cancelled = bucket.blob("b").create_resumable_upload_session()

        assert requests.put(used, data=b"data", timeout=10).status_code == 200
        assert requests.delete(cancelled, timeout=10).status_code == 499
        assert requests.put(cancelled, data=b"data", timeout=10).status_code == 404
        assert bucket.blob("a").download_as_bytes() == b"data"
        assert bucket.get_blob("b") is None

    def test_ranges_are_read(self, bucket: storage.Bucket) -> None:
        bucket.blob("a").upload_from_string(b"0123456789")
        blob = bucket.blob("a")

        assert blob.download_as_bytes(start=2, end=4) == b"234"
        assert blob.download_as_bytes(start=7) == b"789"
        assert blob.download_as_bytes(start=8, end=99) == b"89"
        with pytest.raises(exceptions.RequestRangeNotSatisfiable):
            blob.download_as_bytes(start=10)

    def test_a_changed_byte_on_the_way_is_noticed(self, bucket: storage.Bucket) -> None:
        blob = bucket.blob("a")
        blob.crc32c = "AAAAAA=="

        with pytest.raises(exceptions.BadRequest):
            blob.upload_from_string(b"data", checksum=None)

        assert bucket.get_blob("a") is None

    def test_a_gzipped_object_is_what_it_was(self, bucket: storage.Bucket) -> None:
        blob = bucket.blob("a")
        blob.content_encoding = "gzip"
        stored = gzip.compress(b"what it is" * 1000)
        blob.upload_from_string(stored, content_type="text/plain")

        assert bucket.blob("a").download_as_bytes() == b"what it is" * 1000
        assert bucket.blob("a").download_as_bytes(raw_download=True) == stored

    def test_preconditions_hold(self, bucket: storage.Bucket) -> None:
        blob = bucket.blob("a")
        blob.upload_from_string(b"1", if_generation_match=0)
        first = blob.generation

        with pytest.raises(exceptions.PreconditionFailed):
            bucket.blob("a").upload_from_string(b"2", if_generation_match=0)
        with pytest.raises(exceptions.PreconditionFailed):
            bucket.blob("a").upload_from_string(os.urandom(9 * MIB), if_generation_match=0)
        with pytest.raises(exceptions.PreconditionFailed):
            bucket.blob("a").delete(if_generation_match=first + 1)
        bucket.blob("a").upload_from_string(b"3", if_generation_match=first)
        assert bucket.blob("a").download_as_bytes() == b"3"
        with pytest.raises(exceptions.NotFound):
            bucket.blob("a", generation=first).download_as_bytes()

    def test_metadata_is_set_patched_and_cleared(self, bucket: storage.Bucket) -> None:
        blob = bucket.blob("a")
        blob.metadata = {"k": "1", "l": "ü"}
        blob.upload_from_string(b"data", content_type="text/x")

        blob.cache_control = "no-store"
        blob.metadata = {"k": None, "m": "2"}
        blob.patch()

        found = bucket.get_blob("a")
        assert found is not None
        assert (found.metadata, found.cache_control, found.content_type) == (
            {"l": "ü", "m": "2"},
            "no-store",
            "text/x",
        )
        assert (found.metageneration, found.generation) == (2, blob.generation)
        with pytest.raises(exceptions.PreconditionFailed):
            blob.patch(if_metageneration_match=1)

    def test_composing_copying_and_rewriting(self, client: storage.Client, bucket: storage.Bucket) -> None:
        pieces = [bucket.blob(f"piece-{number}") for number in range(3)]
        for number, piece in enumerate(pieces):
            piece.upload_from_string(f"{number};", content_type="text/x")
        whole = bucket.blob("whole")
        whole.content_type = "text/y"

        whole.compose(pieces, if_generation_match=0)
        copied = bucket.copy_blob(whole, client.bucket("lake"), "copied", if_generation_match=0)
        rewritten = bucket.blob("rewritten")
        token, done, total = rewritten.rewrite(whole)

        assert whole.download_as_bytes() == b"0;1;2;"
        assert (whole.component_count, whole.md5_hash) == (3, None)
        assert (copied.download_as_bytes(), copied.content_type) == (b"0;1;2;", "text/y")
        assert (token, done, total, rewritten.content_type) == (None, 6, 6, "text/y")
        copied.delete()

    def test_listing_folds_and_pages(self, client: storage.Client, bucket: storage.Bucket) -> None:
        names = ["a", "b/1", "b/2", "c/d/1", "e"]
        for name in names:
            bucket.blob(name).upload_from_string(b"x")

        folded = client.list_blobs(bucket, delimiter="/", page_size=2)

        assert [blob.name for blob in folded] == ["a", "e"]
        assert folded.prefixes == {"b/", "c/"}
        assert [blob.name for blob in client.list_blobs(bucket, page_size=2)] == names
        assert [blob.name for blob in client.list_blobs(bucket, max_results=3)] == names[:3]
        fields = client.list_blobs(bucket, prefix="b/", fields="items(name,generation),nextPageToken")
        assert [(blob.name, blob.generation is not None, blob.size) for blob in fields] == [
            ("b/1", True, None),
            ("b/2", True, None),
        ]
        between = client.list_blobs(bucket, start_offset="b/2", end_offset="e")
        assert [blob.name for blob in between] == ["b/2", "c/d/1"]
        assert [blob.name for blob in client.list_blobs(bucket, match_glob="**/1")] == ["b/1", "c/d/1"]

    def test_a_batch_changes_and_deletes(self, client: storage.Client, bucket: storage.Bucket) -> None:
        blobs = [bucket.blob(f"a/{number}") for number in range(5)]
        for blob in blobs:
            blob.upload_from_string(b"x")
        with client.batch():
            for blob in blobs:
                blob.metadata = {"k": "1"}
                blob.patch()
        assert [blob.metadata for blob in client.list_blobs(bucket)] == [{"k": "1"}] * 5

        with pytest.raises(exceptions.NotFound), client.batch():
            bucket.blob("none").delete()
            for blob in blobs:
                blob.delete()

        assert list(client.list_blobs(bucket)) == []

    def test_what_is_not_there_is_not_found(self, client: storage.Client, bucket: storage.Bucket) -> None:
        assert client.lookup_bucket("none") is None
        assert not bucket.blob("none").exists()
        with pytest.raises(exceptions.NotFound):
            bucket.blob("none").download_as_bytes()
        with pytest.raises(exceptions.NotFound):
            list(client.list_blobs("none"))
        with pytest.raises(exceptions.Conflict):
            client.create_bucket("pond")

    def test_a_bucket_s_side_questions_are_answered(self, client: storage.Client, bucket: storage.Bucket) -> None:
        bucket.labels = {"team": "x"}
        bucket.patch()

        assert bucket.test_iam_permissions(["storage.objects.get"]) == ["storage.objects.get"]
        assert "roles/storage.legacyBucketOwner" in bucket.get_iam_policy()
        assert "pond" in [found.name for found in client.list_buckets()]
        assert "@" in client.get_service_account_email()

    def test_parts_go_up_and_come_down_at_the_same_time(self, bucket: storage.Bucket, tmp_path: Path) -> None:
        data = os.urandom(11 * MIB + 3)
        (tmp_path / "source").write_bytes(data)
        blob = bucket.blob("a b/ü")

        transfer_manager.upload_chunks_concurrently(
            str(tmp_path / "source"),
            blob,
            content_type="text/x",
            chunk_size=5 * MIB,
            max_workers=3,
            worker_type=transfer_manager.THREAD,
        )
        transfer_manager.download_chunks_concurrently(
            blob,
            str(tmp_path / "back"),
            chunk_size=4 * MIB,
            max_workers=3,
            worker_type=transfer_manager.THREAD,
            crc32c_checksum=True,
        )

        assert (tmp_path / "back").read_bytes() == data
        found = bucket.get_blob("a b/ü")
        assert found is not None
        assert (found.size, found.content_type) == (len(data), "text/x")

    def test_many_files_go_up_and_come_down(self, bucket: storage.Bucket, tmp_path: Path) -> None:
        source, back = tmp_path / "source", tmp_path / "back"
        names = [f"{number}.bin" for number in range(8)]
        source.mkdir()
        for name in names:
            (source / name).write_bytes(name.encode() * 1000)

        up = transfer_manager.upload_many_from_filenames(
            bucket, names, source_directory=str(source), worker_type=transfer_manager.THREAD
        )
        down = transfer_manager.download_many_to_path(
            bucket, names, destination_directory=str(back), worker_type=transfer_manager.THREAD
        )

        assert [result for result in (*up, *down) if isinstance(result, Exception)] == []
        assert [(back / name).read_bytes() for name in names] == [name.encode() * 1000 for name in names]

    def test_writers_that_race_on_one_object_lose_no_update(self, endpoint: str, bucket: storage.Bucket) -> None:
        bucket.blob("sum").upload_from_string(b"0")
        refused = threading.Semaphore(0)
        # All have read before one writes: this is a race on any machine.
        read_once = threading.Barrier(4)

        def add(times: int) -> None:
            own = make_client(endpoint).bucket("pond")
            first = True
            for _ in range(times):
                while True:
                    present = own.get_blob("sum")
                    assert present is not None
                    if first:
                        first = False
                        read_once.wait(60)
                    try:
                        value = int(present.download_as_bytes()) + 1
                        own.blob("sum").upload_from_string(str(value).encode(), if_generation_match=present.generation)
                        break
                    except (exceptions.PreconditionFailed, exceptions.NotFound):
                        refused.release()

        with ThreadPoolExecutor(4) as writers:
            list(writers.map(add, [10] * 4))

        assert bucket.blob("sum").download_as_bytes() == b"40"
        assert refused.acquire(blocking=False), "nobody ever came second: this was no race"


def test_google_cloud_storage_and_tensorstore_over_tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with StorageEndpoint(tmp_path, https_port=0, buckets=["lake"]) as endpoint:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", endpoint.address.ca_file)
        monkeypatch.setenv("TENSORSTORE_CA_BUNDLE", endpoint.address.ca_file)
        bucket = make_client(endpoint.address.https_url).bucket("lake")
        data = os.urandom(9 * MIB)

        bucket.blob("a").upload_from_string(data)

        assert bucket.blob("a").download_as_bytes() == data
        assert bucket.blob("a").download_as_bytes(start=MIB, end=MIB + 9) == data[MIB : MIB + 10]
        found = bucket.get_blob("a")
        assert found is not None
        assert found.self_link.startswith(endpoint.address.https_url)
        run_tensorstore(endpoint.address.https_url, "zarr3")


@pytest.mark.parametrize("part", ["conditional_writes", "counting_together", "listing", "ocdbt", "zarr", "zarr3"])
def test_tensorstore(endpoint: str, part: str) -> None:
    run_tensorstore(endpoint, part)


def run_tensorstore(url: str, part: str) -> None:
    ended = subprocess.run(
        [sys.executable, str(HERE / "tensorstore_session.py"), url, part],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr


def run_with_exports(tmp_path: Path, *command: str) -> None:
    """Runs a client that has read what an endpoint prints, and nothing else."""
    with StorageEndpoint(tmp_path / "buckets", buckets=["vault"]) as endpoint:
        lines = instructions(endpoint.address)
        exported = [line.removeprefix("export ") for line in lines if line.startswith("export")]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("GCSFS_")}
        environment.update(pair.split("=", 1) for pair in exported)
        environment.update({"GOOGLE_AUTH_TOKEN_FOR_TESTING": "any", "FSSPEC_GS": '{"token": "anon"}'})
        ended = subprocess.run(
            [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    assert ended.returncode == 0, ended.stderr[-3000:]


def test_gcsfs_needs_nothing_but_what_the_endpoint_prints(tmp_path: Path) -> None:
    script = (
        "import gcsfs; files = gcsfs.GCSFileSystem(token='anon'); files.pipe('vault/a', b'data'); "
        "assert files.cat('vault/a') == b'data'; assert files.ls('vault') == ['vault/a']"
    )
    run_with_exports(tmp_path, "-c", script)


def test_orbax_saves_and_restores_a_checkpoint(tmp_path: Path) -> None:
    run_with_exports(tmp_path, str(HERE.parent / "e2e" / "proxied_session.py"), "orbax", str(tmp_path))


class TestGcsfs:
    """gcsfs."""

    @pytest.fixture
    def files(self, endpoint: str, bucket: storage.Bucket) -> GCSFileSystem:
        return GCSFileSystem(
            project="any",
            token="anon",
            endpoint_url=endpoint,
            skip_instance_cache=True,
            use_listings_cache=False,
        )

    def test_files_are_written_listed_moved_and_removed(self, files: GCSFileSystem) -> None:
        for name in ("a", "b/1", "b/2"):
            files.pipe(f"pond/{name}", name.encode())

        assert sorted(files.ls("pond", detail=False)) == ["pond/a", "pond/b"]
        assert sorted(files.find("pond")) == ["pond/a", "pond/b/1", "pond/b/2"]
        assert (files.info("pond/b/1")["size"], files.isdir("pond/b"), files.exists("pond/none")) == (3, True, False)
        files.mv("pond/b/1", "pond/c/1")
        assert files.cat("pond/c/1") == b"b/1"
        files.rm("pond/b", recursive=True)
        assert sorted(files.find("pond")) == ["pond/a", "pond/c/1"]
        with pytest.raises(FileNotFoundError):
            files.cat("pond/b/2")

    def test_a_big_file_goes_up_in_chunks_and_is_read_in_ranges(self, files: GCSFileSystem) -> None:
        data = os.urandom(6 * MIB + 77)
        with files.open("pond/big", "wb", block_size=MIB, consistency="md5") as writer:
            for start in range(0, len(data), 700_000):
                writer.write(data[start : start + 700_000])

        starts, ends = [0, 5 * MIB, len(data) - 3], [5, 5 * MIB + 100_000, len(data)]

        assert files.info("pond/big")["size"] == len(data)
        ranges = files.cat_ranges(["pond/big"] * 3, starts, ends)
        assert ranges == [data[start:end] for start, end in zip(starts, ends, strict=True)]
        with files.open("pond/big", "rb", block_size=MIB) as reader:
            reader.seek(3 * MIB - 5)
            assert reader.read(MIB) == data[3 * MIB - 5 : 4 * MIB - 5]
        assert files.cat("pond/big") == data

    def test_a_file_that_is_discarded_never_was(self, files: GCSFileSystem) -> None:
        writer = files.open("pond/big", "wb", block_size=MIB, autocommit=False)
        writer.write(os.urandom(3 * MIB))
        writer.close()
        writer.discard()

        assert not files.exists("pond/big")

    def test_a_file_is_created_only_once(self, files: GCSFileSystem) -> None:
        with files.open("pond/a", "xb") as writer:
            writer.write(b"first")

        with pytest.raises(FileExistsError), files.open("pond/a", "xb") as writer:
            writer.write(b"second")

        assert files.cat("pond/a") == b"first"

    def test_metadata_and_copies(self, files: GCSFileSystem) -> None:
        files.pipe("pond/a", b"data")

        files.setxattrs("pond/a", content_type="text/x", k="1")
        files.cp("pond/a", "pond/b")
        files.merge("pond/c", ["pond/a", "pond/b"])

        assert files.getxattr("pond/b", "k") == "1"
        assert files.info("pond/b")["contentType"] == "text/x"
        assert files.cat("pond/c") == b"datadata"
