"""What unmodified clients do to an encrypted bucket: `proxied_session.py PART FOLDER`.

A process of its own, because clients read proxies and authorities from their environment when they are loaded. The
bucket is `vault`; what is stored in it begins with MARK, which whoever looks into the bucket must not find.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

MARK = b"THE PLAINTEXT OF A JOB "
QUANTUM = 256 * 1024
MIB = 1024 * 1024


def _data(size: int) -> bytes:
    """Of that size, MARK all through it."""
    return (MARK * (size // len(MARK) + 1))[:size]


def google_cloud_storage() -> None:
    from google.api_core import exceptions
    from google.auth.credentials import AnonymousCredentials
    from google.cloud import storage
    from google.cloud.storage import transfer_manager

    client = storage.Client(project="any", credentials=AnonymousCredentials())
    bucket = client.bucket("vault")

    for name, data in (("a/ü b+c%2F", MARK + b"\r\n--data--\x00"), ("empty", b"")):
        bucket.blob(name).upload_from_string(data, content_type="text/x")
        assert bucket.blob(name).download_as_bytes() == data
        found = bucket.get_blob(name)
        assert found is not None
        assert (found.size, found.content_type, found.metadata, found.md5_hash) == (len(data), "text/x", None, None)

    # One session in one piece, one in many, one that does not know its size.
    large = _data(9 * MIB + 77)
    folder = Path(sys.argv[2])
    source, back = folder / "source", folder / "back"
    source.write_bytes(large)
    # Of chunks, an MD5 comes with the last one, when the others are gone.
    for name, chunk_size, checksum in (("one", None, "md5"), ("one", None, "crc32c"), ("many", 5 * QUANTUM, "crc32c")):
        bucket.blob(name, chunk_size=chunk_size).upload_from_filename(source, checksum=checksum)
        bucket.blob(name, chunk_size=chunk_size).download_to_filename(back, checksum="crc32c")
        assert back.read_bytes() == large
    with bucket.blob("stream").open("wb", chunk_size=QUANTUM) as writer:
        for start in range(0, 900_000, 100_000):
            writer.write(large[start : start + 100_000])
    with bucket.blob("stream").open("rb", chunk_size=QUANTUM) as reader:
        reader.seek(100)
        assert reader.read() == large[100:900_000]

    blob = bucket.blob("many")
    assert blob.download_as_bytes(start=262_000, end=262_999) == large[262_000:263_000]
    assert blob.download_as_bytes(start=len(large) - 5) == large[-5:]
    try:
        blob.download_as_bytes(start=len(large))
        raise AssertionError("nothing lies past the end")
    except exceptions.RequestRangeNotSatisfiable:
        pass
    transfer_manager.download_chunks_concurrently(
        bucket.blob("many"), folder / "parts", chunk_size=3 * MIB, max_workers=3, worker_type=transfer_manager.THREAD
    )
    assert (folder / "parts").read_bytes() == large

    wrong = bucket.blob("wrong")
    wrong.crc32c = "AAAAAA=="
    try:
        wrong.upload_from_string(MARK, checksum=None)
        raise AssertionError("a wrong checksum was taken")
    except exceptions.BadRequest:
        assert bucket.get_blob("wrong") is None

    sizes = {found.name: found.size for found in client.list_blobs("vault")}
    assert (sizes["one"], sizes["many"], sizes["empty"], sizes["stream"]) == (len(large), len(large), 0, 900_000)

    blob = bucket.get_blob("many")
    blob.metadata = {"colour": "blue"}
    blob.patch()
    copy = bucket.copy_blob(blob, bucket, "copy")
    assert (copy.size, copy.metadata) == (len(large), {"colour": "blue"})
    assert bucket.blob("copy").download_as_bytes() == large
    assert bucket.rename_blob(bucket.blob("copy"), "renamed").size == len(large)
    rewritten = bucket.blob("rewritten")
    token, done, total = rewritten.rewrite(bucket.blob("renamed"))
    assert (token, done, total) == (None, len(large), len(large))
    blob.metadata = None
    blob.update()
    assert bucket.blob("many").download_as_bytes() == large
    with client.batch():
        for name in ("renamed", "rewritten"):
            bucket.blob(name).patch()
    try:
        bucket.blob("composed").compose([bucket.blob("one"), bucket.blob("many")])
        raise AssertionError("ciphertexts were composed")
    except exceptions.MethodNotImplemented:
        pass
    first = bucket.blob("guarded")
    first.upload_from_string(MARK, if_generation_match=0)
    try:
        bucket.blob("guarded").upload_from_string(b"other", if_generation_match=0)
        raise AssertionError("a condition was lost")
    except exceptions.PreconditionFailed:
        pass
    bucket.blob("guarded").delete(if_generation_match=first.generation)
    assert bucket.get_blob("guarded") is None

    # A bucket that is not mapped is none of the proxy's business.
    public = client.bucket("lake")
    public.blob("open").upload_from_string(MARK)
    assert public.blob("open").download_as_bytes() == MARK
    assert public.get_blob("open").md5_hash is not None


def tensorstore() -> None:
    import numpy as np
    import tensorstore as ts

    store = ts.KvStore.open("gs://vault/conditional/").result()
    first = store.write("a", MARK + b"1").result().generation
    assert store.read("a").result().stamp.generation == first
    second = store.write("a", MARK + b"2", if_equal=first).result().generation
    refused = store.write("a", b"3", if_equal=first).result().generation
    assert second not in (first, refused)
    assert store.read("a").result().value == MARK + b"2"
    assert store.read("a", if_not_equal=second).result().state == "unspecified"
    assert store.read("none").result().state == "missing"
    assert store.list().result() == [b"a"]
    big = _data(20 * MIB)
    store.write("big", big).result()
    assert store.read("big").result().value == big
    values = np.arange(600 * 500, dtype=np.float32).reshape(600, 500)
    for driver in ("zarr3", "n5"):
        place = {"driver": driver, "kvstore": f"gs://vault/{driver}/"}
        array = ts.open(place, create=True, dtype=ts.float32, shape=values.shape).result()
        array[...] = values
        again = ts.open(place, context=ts.Context()).result()
        assert np.array_equal(again[5:90, 60:70].read().result(), values[5:90, 60:70])
        assert np.array_equal(again.read().result(), values)


def gcsfs() -> None:
    import time

    from gcsfs import GCSFileSystem

    files = GCSFileSystem(project="any", skip_instance_cache=True, use_listings_cache=False)
    began = time.monotonic()
    assert not files.exists("vault/g/none")
    # It waits 90 s for an answer to gRPC where it asks for one.
    assert time.monotonic() - began < 60
    large = _data(12 * MIB + 5)
    files.pipe("vault/g/small", MARK)
    files.pipe("vault/g/large", large)
    with files.open("vault/g/stream", "wb", block_size=MIB) as writer:
        writer.write(large)
    assert files.cat("vault/g/small") == MARK
    assert files.cat("vault/g/large") == large
    assert files.cat_file("vault/g/stream", start=300_000, end=300_100) == large[300_000:300_100]
    assert (files.info("vault/g/large")["size"], files.du("vault/g")) == (len(large), len(MARK) + 2 * len(large))
    files.copy("vault/g/small", "vault/g/copied")
    assert files.cat("vault/g/copied") == MARK
    assert sorted(files.find("vault/g")) == [f"vault/g/{name}" for name in ("copied", "large", "small", "stream")]
    files.rm("vault/g", recursive=True)
    assert files.find("vault/g") == []


def orbax() -> None:
    import jax.numpy as jnp
    import numpy as np
    import orbax.checkpoint as ocp

    state = {"weights": jnp.arange(1 << 18, dtype=jnp.float32), "step": jnp.array(3)}
    with ocp.CheckpointManager("gs://vault/orbax") as manager:
        manager.save(7, args=ocp.args.StandardSave(state))
        manager.wait_until_finished()
    with ocp.CheckpointManager("gs://vault/orbax") as manager:
        back = manager.restore(manager.latest_step(), args=ocp.args.StandardRestore(state))
    assert np.array_equal(back["weights"], state["weights"])


def tensorflow() -> None:
    import tensorflow as tf

    large = _data(20 * MIB)
    for name, data in (("small", MARK), ("large", large), ("empty", b"")):
        with tf.io.gfile.GFile(f"gs://vault/tf/{name}", "wb") as writer:
            writer.write(data)
        with tf.io.gfile.GFile(f"gs://vault/tf/{name}", "rb") as reader:
            assert reader.read() == data
        assert tf.io.gfile.stat(f"gs://vault/tf/{name}").length == len(data)
    tf.io.gfile.copy("gs://vault/tf/small", "gs://vault/tf/copied")
    tf.io.gfile.rename("gs://vault/tf/copied", "gs://vault/tf/renamed")
    assert sorted(tf.io.gfile.listdir("gs://vault/tf")) == ["empty", "large", "renamed", "small"]
    checkpoint = tf.train.Checkpoint(weights=tf.Variable(tf.range(100_000)))
    checkpoint.write("gs://vault/tf/checkpoint")
    again = tf.train.Checkpoint(weights=tf.Variable(tf.zeros([100_000], tf.int32)))
    again.read("gs://vault/tf/checkpoint").assert_consumed()
    assert int(again.weights[77]) == 77


def xml() -> None:
    import requests

    session = requests.Session()
    url = "https://storage.googleapis.com/vault/x/ü y"
    put = session.put(url, data=io.BytesIO(MARK), headers={"x-goog-meta-colour": "blue", "Content-Type": "text/x"})
    assert put.status_code == 200, put.text
    got = session.get("https://vault.storage.googleapis.com/x/ü y")
    assert (got.content, got.headers["x-goog-meta-colour"], got.headers["Content-Type"]) == (MARK, "blue", "text/x")
    assert not [name for name in got.headers if "gcsproxy" in name.lower()]
    assert session.get(url, headers={"Range": "bytes=4-12"}).content == MARK[4:13]
    assert session.head(url).headers["Content-Length"] == str(len(MARK))
    assert session.post(f"{url}?uploads").status_code == 501
    assert session.delete(url).status_code == 204
    assert session.get(url).status_code == 404


if __name__ == "__main__":
    parts: dict[str, Callable[[], None]] = {
        part.__name__: part for part in (google_cloud_storage, tensorstore, gcsfs, orbax, tensorflow, xml)
    }
    if proxy := os.environ.get("https_proxy"):
        print(json.dumps({"proxy": proxy}))
    parts[sys.argv[1]]()
