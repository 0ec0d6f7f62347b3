"""Wiring: from URLs and settings to adapters. The one place that knows which adapter serves which URL.

Layer: above adapters and programs, below the CLI. Heavy libraries are imported inside the functions that need them, so
that `bastion --help` stays quick.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from bastion.core.errors import Refused
from bastion.ports import ObjectStore


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
        if not bucket.startswith("gs://") or not bucket.removeprefix("gs://").strip("/"):
            raise Refused(f"{url} names no bastion in its bucket; write gs://BUCKET/NAME-bastion")
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


def open_bucket(bucket: str, *, kept_folders: Collection[str] = ()) -> ObjectStore:
    """The store of a whole bucket.

    Args:
        kept_folders: Folders that stay when they are empty; nothing to a store that knows no folders.

    Raises:
        Refused: no adapter serves such a URL.
    """
    if bucket.startswith("gs://"):
        raise Refused(
            f"{bucket}: Cloud Storage buckets are not supported by this version; use a folder, for example "
            "--root=/srv/buckets/team-bastion"
        )
    from bastion.adapters.directory_store import DirectoryStore

    return DirectoryStore(Path(bucket), kept_folders=kept_folders)


def open_root(url: str) -> ObjectStore:
    """The store whose keys are relative to a bastion's ROOT."""
    from bastion.adapters.prefixed_store import PrefixedStore

    root = parse_root(url)
    kept = [f"{root.bastion}/{folder}" for folder in _FOLDERS_OF_USERS]
    return PrefixedStore(open_bucket(root.bucket, kept_folders=kept), f"{root.bastion}/")


def make_folders(root: Root) -> None:
    """Makes the folders that people copy files into, in a folder as bucket."""
    for folder in _FOLDERS_OF_USERS if root.local else ():
        (Path(root.url) / folder).mkdir(parents=True, exist_ok=True)
