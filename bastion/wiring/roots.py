"""From URLs to adapters: which adapter serves which URL.

Functions import heavy libraries themselves, so that `bastion --help` stays quick.
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
# `append` uploads here and then composes; only a crash in between leaves objects behind.
_APPEND_PARTS = "append-parts/"
# Where users put files; in a folder bucket these exist even if empty.
_FOLDERS_OF_USERS = ("jobs/active", "jobs/user_states", "project-quotas")


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A bastion's place: `<bucket>/<bastion name>`."""

    bucket: str  # a directory's absolute path, or `gs://BUCKET[/folder]`
    bastion: str  # the name; ends in `-bastion`

    @property
    def url(self) -> str:
        """The canonical spelling; uids derive from it."""
        return f"{self.bucket}/{self.bastion}"

    @property
    def local(self) -> bool:
        return not self.bucket.startswith("gs://")


def parse_root(url: str) -> Root:
    """Parse `--root`: a folder, `file://...`, or `gs://BUCKET/NAME-bastion`. Raises Refused with the expected form."""
    if url.startswith("gs://"):
        bucket, _, bastion = url.rstrip("/").rpartition("/")
        parts = bucket.removeprefix("gs://").split("/")
        if bucket == "gs:/" or not all(parts):
            raise Refused(f"{url} does not name a bastion; use gs://BUCKET/NAME-bastion")
        if not _BUCKET_NAME.fullmatch(parts[0]):
            raise Refused(f"{url}: {parts[0]!r} is not a valid bucket name; use gs://BUCKET/NAME-bastion")
    else:
        path = unquote(urlsplit(url).path) if url.startswith("file://") else url
        if "://" in path:
            raise Refused(f"{url} is not a folder or a gs:// URL")
        absolute = Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100 - keeps symlinks as the user wrote them
        bucket, bastion = str(absolute.parent), absolute.name
    if not bastion.endswith("-bastion") or bastion == "-bastion":
        raise Refused(f"the bastion's name {bastion!r} must end in -bastion; it is the last part of {url}")
    return Root(bucket=bucket, bastion=bastion)


def storage_emulator() -> str:
    """The endpoint that replaces Cloud Storage for `gs://` buckets; empty: none."""
    return os.environ.get("STORAGE_EMULATOR_HOST", "")


def open_root(url: str) -> ObjectStore:
    """Open the store whose keys are relative to a bastion's ROOT.

    Raises Refused if it is not the URL of a bastion; StoreError if the folder cannot be opened, or the bucket's
    credentials are missing.
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
    """Read a file that a job's spec names (`code_asset_path`): `gs://BUCKET/KEY`, `file://...`, or an absolute path.

    Raises NotFound, AccessDenied, StoreError (try again); Refused if the URL has another form, or the file is too large
    for a bundle.
    """
    if not url.startswith("gs://"):
        return _fetch_file(unquote(urlsplit(url).path) if url.startswith("file://") else url)
    from bastion.adapters.gcs.store import GcsStore

    bucket, _, key = url.removeprefix("gs://").partition("/")
    if not _BUCKET_NAME.fullmatch(bucket) or not key:
        raise Refused(f"{url} does not name an object; use gs://BUCKET/KEY")
    store = GcsStore(bucket)
    try:
        meta = store.head(key)
        if meta is None:
            raise NotFound(f"{url} does not exist")
        _check_asset_size(url, meta.size)
        return store.get(key, max_bytes=limits.BUNDLE_MAX_BYTES).data
    except ValueError as error:
        raise Refused(f"{url}: {error}") from error


def _fetch_file(path: str) -> bytes:
    if not path.startswith("/"):
        raise Refused(f"{path} is not a gs:// URL or an absolute path")
    try:
        # Does not block on a pipe.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise Refused(f"{path} is not a file")
            _check_asset_size(path, status.st_size)
            return file.read(limits.BUNDLE_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotFound(f"{path} does not exist") from error
    except PermissionError as error:
        raise AccessDenied(f"permission denied: {path}") from error
    except IsADirectoryError as error:
        raise Refused(f"{path} is a folder; use a tar file") from error
    except (OSError, ValueError) as error:
        raise StoreUnavailable(f"{path} cannot be read: {error}") from error


def _check_asset_size(url: str, size: int) -> None:
    if size > limits.BUNDLE_MAX_BYTES:
        raise Refused(f"{url} is {size} bytes long; the maximum is {limits.BUNDLE_MAX_BYTES}")


def make_folders(root: Root) -> None:
    """In a folder bucket, create the folders for users' files, and close the bastion's folder to other users."""
    if not root.local:
        return
    from bastion.folder_format import files
    from bastion.folder_format.keys import HIDDEN_FOLDER

    for folder in _FOLDERS_OF_USERS:
        path = Path(root.url)
        for name in ("", *folder.split("/")):
            path = path / name
            path.mkdir(mode=files.FOLDER_MODE, parents=True, exist_ok=True)
    # An earlier version, or a user, may have made them readable for everybody.
    for name in (root.bastion, HIDDEN_FOLDER):
        with contextlib.suppress(OSError):
            files.close_to_others(f"{root.bucket}/{name}")
