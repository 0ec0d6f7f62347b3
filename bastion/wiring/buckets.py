"""From a bucket's URL to its store: inputs, outputs in a user's own bucket, and code.

Functions import heavy libraries themselves, so that `bastion --help` stays quick.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from bastion.core.errors import Refused
from bastion.core.model.inputs import path_of
from bastion.ports import ObjectStore

BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
_SCHEMES = ("gs", "s3")


def storage_emulator() -> str:
    """The endpoint that replaces Cloud Storage for `gs://` buckets; empty: none."""
    return os.environ.get("STORAGE_EMULATOR_HOST", "")


def open_bucket(url: str, *, create: bool = False) -> tuple[ObjectStore, str]:
    """Open `gs://BUCKET[/PREFIX]`, `s3://BUCKET[/PREFIX]`, `file:///PATH` or an absolute path.

    Args:
        url: For a path of a file, the store is the folder above it.
        create: Whether to create a missing folder; a bucket is never created.

    Returns:
        The store of the bucket or folder, and the key or prefix that the URL names in it, which may be empty.

    Raises:
        Refused: The URL has another form.
        AccessDenied: There are no credentials, or the folder may not be opened.
        StoreError: The folder does not exist.
    """
    scheme, mark, rest = url.partition("://")
    if mark and scheme in _SCHEMES:
        bucket, _, prefix = rest.partition("/")
        if not BUCKET_NAME.fullmatch(bucket):
            raise Refused(f"{url}: {bucket[:80]!r} is not a valid bucket name; use {scheme}://BUCKET/PREFIX")
        return (_open_s3(bucket) if scheme == "s3" else _open_gcs(bucket)), prefix
    path = path_of(url)
    if not path.startswith("/"):
        raise Refused(f"{url} is not a bucket; use gs://BUCKET/PREFIX, s3://BUCKET/PREFIX or an absolute path")
    return _open_folder(Path(path), create=create)


def open_place(url: str) -> ObjectStore:
    """Open the store whose keys are relative to a URL of `open_bucket`, which raises the same."""
    from bastion.adapters.prefixed_store import PrefixedStore

    store, prefix = open_bucket(url)
    return PrefixedStore(store, f"{prefix.rstrip('/')}/") if prefix else store


def _open_gcs(bucket: str) -> ObjectStore:
    from bastion.adapters.gcs.store import GcsStore

    # The emulator takes any number of writes to one object in a second; the service takes one.
    return GcsStore(bucket, write_interval_seconds=0.0 if storage_emulator() else 1.0)


def _open_s3(bucket: str) -> ObjectStore:
    try:
        from bastion.adapters.s3.store import S3Store
    except ModuleNotFoundError as error:
        raise Refused(
            f"s3://{bucket} needs the package {error.name}, which is not installed here; install bastion[s3] where the "
            "daemon is: the agents of its hosts then have it, too"
        ) from error
    return S3Store(bucket)


def _open_folder(path: Path, *, create: bool) -> tuple[ObjectStore, str]:
    from bastion.adapters.folder.store import DirectoryStore

    if path.is_file():
        return DirectoryStore(path.parent, create=False), path.name
    # Half an input would look like all of it.
    return DirectoryStore(path, create=create, lists_whole=True), ""
