"""From URLs to adapters: which adapter serves which URL.

Functions import heavy libraries themselves, so that `bastion --help` stays quick.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import AccessDenied, NotFound, Refused, StoreUnavailable
from bastion.core.model.inputs import path_of
from bastion.ports import ObjectStore
from bastion.wiring.buckets import BUCKET_NAME, open_bucket, storage_emulator

# `append` uploads here and then composes; only a crash in between leaves objects behind.
_APPEND_PARTS = "append-parts/"
# The bastion on this machine.
LOCAL_BASTION = "local-bastion"
_CLOUDS = ("gs", "s3")
# Keys that a daemon makes and deletes when it opens a ROOT on S3.
_SCRATCH = "conditions/"
# A typo of a URL, rather than a folder of that name.
_HALF_A_SCHEME = re.compile(r"(gs|s3|file):", re.IGNORECASE)
# Where users put files; in a folder bucket these exist even if empty.
_FOLDERS_OF_USERS = ("jobs/active", "jobs/user_states", "project-quotas")


@dataclass(frozen=True, slots=True, kw_only=True)
class Root:
    """A bastion's place: `<bucket>/<bastion name>`."""

    bucket: str  # a directory's absolute path, or `gs://BUCKET[/folder]`, or `s3://BUCKET[/folder]`
    bastion: str  # the name; ends in `-bastion`

    @property
    def url(self) -> str:
        """The canonical spelling; uids derive from it."""
        return f"{self.bucket}/{self.bastion}"

    @property
    def local(self) -> bool:
        return not self.scheme

    @property
    def scheme(self) -> str:
        """`gs` or `s3`; empty for a folder."""
        return next((scheme for scheme in _CLOUDS if self.bucket.startswith(f"{scheme}://")), "")


def parse_root(url: str) -> Root:
    """Parse `--root`: a folder, `file://...`, or `gs://BUCKET/NAME-bastion`, or `s3://BUCKET/NAME-bastion`.

    Raises Refused with the expected form.
    """
    scheme = next((scheme for scheme in _CLOUDS if url.startswith(f"{scheme}://")), "")
    if scheme:
        bucket, _, bastion = url.rstrip("/").rpartition("/")
        parts = bucket.removeprefix(f"{scheme}://").split("/")
        if bucket == f"{scheme}:/" or any(part in ("", ".", "..") for part in parts) or not url.isprintable():
            raise Refused(f"{url} does not name a bastion; use {scheme}://BUCKET/NAME-bastion")
        if not BUCKET_NAME.fullmatch(parts[0]):
            raise Refused(f"{url}: {parts[0]!r} is not a valid bucket name; use {scheme}://BUCKET/NAME-bastion")
    else:
        path = path_of(url)
        if "://" in path or _HALF_A_SCHEME.match(path) or (path != url and not path.startswith("/")):
            raise Refused(f"{url} is not a folder, a gs:// URL or an s3:// URL")
        absolute = Path(os.path.abspath(Path(path).expanduser()))  # noqa: PTH100 - keeps symlinks as the user wrote them
        bucket, bastion = str(absolute.parent), absolute.name
    if not bastion.endswith("-bastion") or bastion == "-bastion":
        raise Refused(f"the bastion's name {bastion!r} must end in -bastion; it is the last part of {url}")
    return Root(bucket=bucket, bastion=bastion)


def local_root(home: Path) -> Root:
    """The ROOT of the bastion on this machine; `home` is $BASTION_HOME."""
    return parse_root(str(home / "buckets" / "permanent" / LOCAL_BASTION))


def s3_endpoint() -> str:
    """The endpoint that replaces Amazon S3 for `s3://` buckets, by the environment; empty: none."""
    return os.environ.get("AWS_ENDPOINT_URL_S3", "") or os.environ.get("AWS_ENDPOINT_URL", "")


def is_near(root: Root) -> bool:
    """Whether the bucket is on this machine, so that a request takes milliseconds and costs nothing."""
    match root.scheme:
        case "gs":
            return bool(storage_emulator())
        case "s3":
            return urlsplit(s3_endpoint()).hostname in ("127.0.0.1", "localhost", "::1")
        case _:
            return True


def open_root(url: str, *, proves: bool = False) -> ObjectStore:
    """Open the store whose keys are relative to a bastion's ROOT.

    Args:
        proves: Try the conditions of a service that speaks S3. A daemon does; everybody else works on a ROOT that has
            one.

    Raises Refused if it is not the URL of a bastion, or a service ignores a condition; StoreError if the folder cannot
    be opened, or the bucket's credentials are missing.
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
            proved_below=f"{prefix}{keys.INBOX}",
            may_use_reserve=lambda key: key.startswith(prefix) and keys.is_vital(key.removeprefix(prefix)),
        )
        return PrefixedStore(store, prefix)
    bucket, _, folder = root.url.removeprefix(f"{root.scheme}://").partition("/")
    if root.scheme == "s3":
        from bastion.adapters.s3.store import S3Store

        s3 = S3Store(bucket)
        if proves:
            s3.prove_conditions(f"{folder}/{_SCRATCH}")
        return PrefixedStore(s3, f"{folder}/")
    from bastion.adapters.gcs.store import GcsStore

    # The emulator takes any number of writes to one object in a second; the service takes one.
    interval = 0.0 if storage_emulator() else 1.0
    gcs = GcsStore(bucket, parts_prefix=f"{folder}/{_APPEND_PARTS}", write_interval_seconds=interval)
    return PrefixedStore(gcs, f"{folder}/")


def is_versioned(root: Root) -> bool:
    """Whether the bucket of a ROOT on S3 keeps versions; first tries the service's conditions, as a daemon does.

    Raises Refused for a service that ignores one; StoreError.
    """
    from bastion.adapters.s3.store import S3Store

    bucket, _, folder = root.url.removeprefix("s3://").partition("/")
    s3 = S3Store(bucket)
    s3.prove_conditions(f"{folder}/{_SCRATCH}")
    return s3.keeps_versions()


def fetch_asset(url: str) -> bytes:
    """Read a file that a job's spec names (`code_asset_path`): `gs://BUCKET/KEY`, `s3://...`, `file://...`, or a path.

    Raises NotFound, AccessDenied, StoreError (try again); Refused if the URL has another form, or the file is too large
    for a bundle.
    """
    if not url.startswith(("gs://", "s3://")):
        return _fetch_file(path_of(url))
    if not re.fullmatch(rf"[a-z0-9]+://{BUCKET_NAME.pattern}/.+", url, re.DOTALL):
        raise Refused(f"{url} does not name an object; use gs://BUCKET/KEY or s3://BUCKET/KEY")
    store, key = open_bucket(url)
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
        raise Refused(f"{path} is not a gs:// or s3:// URL, or an absolute path")
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
    # An earlier version, or a user, may have made them readable for everyone.
    for name in (root.bastion, HIDDEN_FOLDER):
        with contextlib.suppress(OSError):
            files.close_to_others(f"{root.bucket}/{name}")


@contextlib.contextmanager
def secrets_folder(root: Root) -> Iterator[None]:
    """Keep the daemon's secrets in a folder bucket to its own user: make their folder before, and close them after."""
    if not root.local:
        yield
        return
    path = Path(root.url, keys.SECRETS)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.chmod(0o700)
        yield
        for name in path.iterdir():
            name.chmod(0o600)
    except OSError as error:
        raise StoreUnavailable(f"{path} cannot be closed to others: {error}; it must be the daemon's user's") from error
