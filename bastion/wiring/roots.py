"""Wiring: from URLs and settings to adapters. The one place that knows which adapter serves which URL.

Layer: above adapters and programs, below the CLI. Heavy libraries are imported inside the functions that need them, so
that `bastion --help` stays quick.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import AccessDenied, NotFound, Refused, StoreUnavailable
from bastion.ports import ObjectStore

_BUCKET_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")
# What `append` uploads before it is composed into its object; left behind only by a crash in between.
_APPEND_PARTS = "append-parts/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """Where a bastion lives: `<bucket>/<bastion name>`.

    Attributes:
        bucket: Of a directory, its absolute path; of Cloud Storage, `gs://BUCKET[/folder]`.
        bastion: The name; ends in `-bastion`.
    """

    bucket: str
    bastion: str

    @property
    def url(self) -> str:
        """The canonical spelling; uids are drawn from it."""
        return f"{self.bucket}/{self.bastion}"

    @property
    def local(self) -> bool:
        return not self.bucket.startswith("gs://")


def parse_root(url: str) -> Root:
    """Reads `--root`: a folder, `file://...`, or `gs://BUCKET/NAME-bastion`.

    Raises:
        Refused: with the form that is expected.
    """
    if url.startswith("gs://"):
        bucket, _, bastion = url.rstrip("/").rpartition("/")
        parts = bucket.removeprefix("gs://").split("/")
        if bucket == "gs:/" or not all(parts):
            raise Refused(f"{url} names no bastion in its bucket; write gs://BUCKET/NAME-bastion")
        if not _BUCKET_NAME.fullmatch(parts[0]):
            raise Refused(f"{url}: {parts[0]!r} cannot be the name of a bucket; write gs://BUCKET/NAME-bastion")
    else:
        path = unquote(urlsplit(url).path) if url.startswith("file://") else url
        if "://" in path:
            raise Refused(f"{url} is neither a folder nor a gs:// URL")
        absolute = Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100 - keeps symlinks as the user wrote them
        bucket, bastion = str(absolute.parent), absolute.name
    if not bastion.endswith("-bastion") or bastion == "-bastion":
        raise Refused(f"the bastion's name {bastion!r} must end in -bastion; it is the last part of {url}")
    return Root(bucket=bucket, bastion=bastion)


# Where people put files by hand; in a folder as bucket these exist even while they are empty.
_FOLDERS_OF_USERS = ("jobs/active", "jobs/user_states", "project-quotas")


def storage_emulator() -> str:
    """Where `gs://` buckets are looked for instead of in the cloud; empty: in the cloud."""
    return os.environ.get("STORAGE_EMULATOR_HOST", "")


def open_root(url: str) -> ObjectStore:
    """The store whose keys are relative to a bastion's ROOT.

    Raises:
        Refused: it is not the URL of a bastion.
        StoreError: the folder cannot be opened, or there are no credentials for the bucket.
    """
    from bastion.adapters.prefixed_store import PrefixedStore

    root = parse_root(url)
    if root.local:
        from bastion.adapters.folder.store import DirectoryStore

        kept = [f"{root.bastion}/{folder}" for folder in _FOLDERS_OF_USERS]
        prefix = f"{root.bastion}/"
        store: ObjectStore = DirectoryStore(
            Path(root.bucket),
            kept_folders=kept,
            may_use_reserve=lambda key: key.startswith(prefix) and keys.is_vital(key.removeprefix(prefix)),
        )
        return PrefixedStore(store, prefix)
    from bastion.adapters.gcs.store import GcsStore

    bucket, _, folder = root.url.removeprefix("gs://").partition("/")
    # The emulator takes any number of writes to one object in a second; the service takes one.
    interval = 0.0 if storage_emulator() else 1.0
    gcs = GcsStore(bucket, parts_prefix=f"{folder}/{_APPEND_PARTS}", write_interval_seconds=interval)
    return PrefixedStore(gcs, f"{folder}/")


def fetch_asset(url: str) -> bytes:
    """A file that a job's spec names (`code_asset_path`): `gs://BUCKET/KEY`, `file://...`, or an absolute path.

    Raises:
        NotFound: there is none.
        AccessDenied: it may not be read.
        Refused: the URL is of another form, or the file is larger than any bundle.
        StoreError: try again.
    """
    if not url.startswith("gs://"):
        return _fetch_file(unquote(urlsplit(url).path) if url.startswith("file://") else url)
    from bastion.adapters.gcs.store import GcsStore

    bucket, _, key = url.removeprefix("gs://").partition("/")
    if not _BUCKET_NAME.fullmatch(bucket) or not key:
        raise Refused(f"{url} names no object; write gs://BUCKET/KEY")
    store = GcsStore(bucket)
    try:
        meta = store.head(key)
        if meta is None:
            raise NotFound(f"there is no {url}")
        _check_asset_size(url, meta.size)
        return store.get(key, max_bytes=limits.BUNDLE_MAX_BYTES).data
    except ValueError as error:
        raise Refused(f"{url}: {error}") from error


def _fetch_file(path: str) -> bytes:
    if not path.startswith("/"):
        raise Refused(f"{path} is neither a gs:// URL nor an absolute path")
    try:
        # Never waits: a pipe has no other end here.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Refused(f"{path} is no file")
            _check_asset_size(path, status.st_size)
            return file.read(limits.BUNDLE_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"there is no {path}") from error
    except PermissionError as error:
        raise AccessDenied(f"{path} may not be read") from error
    except IsADirectoryError as error:
        raise Refused(f"{path} is a folder; a tar file is needed") from error
    except (OSError, ValueError) as error:
        raise StoreUnavailable(f"{path} cannot be read: {error}") from error


def _check_asset_size(url: str, size: int) -> None:
    if size > limits.BUNDLE_MAX_BYTES:
        raise Refused(f"{url} has {size} bytes; {limits.BUNDLE_MAX_BYTES} are the most of a bundle")


def make_folders(root: Root) -> None:
    """Makes the folders that people copy files into, in a folder as bucket, and closes a bastion's folder to others."""
    if not root.local:
        return
    from bastion.folder_format import files
    from bastion.folder_format.keys import HIDDEN_FOLDER

    for folder in _FOLDERS_OF_USERS:
        path = Path(root.url)
        for name in ("", *folder.split("/")):
            path = path / name
            path.mkdir(mode=files.FOLDER_MODE, parents=True, exist_ok=True)
    # An earlier version, or a hand, may have made them for everybody.
    for name in (root.bastion, HIDDEN_FOLDER):
        with contextlib.suppress(OSError):
            files.close_to_others(f"{root.bucket}/{name}")
