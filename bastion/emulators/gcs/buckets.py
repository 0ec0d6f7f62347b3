"""Folders as buckets: every direct subfolder with a valid bucket name.

Creating or removing a folder creates or removes a bucket; only checksums are cached.
"""

from __future__ import annotations

import contextlib
import copy
import os
import secrets
import shutil
import stat
import time
from pathlib import Path

from bastion.core.errors import StoreError
from bastion.emulators.gcs.checksums import KnownChecksums
from bastion.emulators.gcs.iam.access import Access, Gate
from bastion.emulators.gcs.iam.defaults import policy_of_new_bucket
from bastion.emulators.gcs.iam.permissions import Action
from bastion.emulators.gcs.iam.rules import Rules
from bastion.emulators.gcs.names import check_bucket_name, is_bucket_name
from bastion.emulators.gcs.objects import BeforeChange, Bucket, Source
from bastion.emulators.gcs.one_at_a_time import OneAtATime
from bastion.emulators.gcs.opened_bucket import explained
from bastion.emulators.gcs.reading import OpenObject
from bastion.emulators.gcs.resources import BucketExists, BucketNotEmpty, NoSuchBucket
from bastion.folder_format import files
from bastion.folder_format.keys import HIDDEN_FOLDER, KEY_SUFFIX

__all__ = ["Bucket", "Buckets", "OpenObject", "Source"]

# The name of a bucket's folder during deletion; no bucket can have it.
_DELETED_PREFIX = ".deleted-"
_ORPHAN_NS = 3600 * 1_000_000_000


class Buckets:
    """The buckets in a folder; thread-safe and process-safe.

    Args:
        folder: Created if missing.
        fsync: Whether a mutation survives a power cut.
        before_change: Called with bucket and object before a change whose preconditions hold; may raise to prevent it.
        access: Who may do what, for `as_caller`; None: everybody everything.
    """

    def __init__(
        self,
        folder: Path,
        *,
        fsync: bool = False,
        before_change: BeforeChange = lambda _bucket, _name: None,
        access: Access | None = None,
    ) -> None:
        self._folder = folder.absolute()
        self.access = access
        self._gate: Gate | None = None
        self._fsync = fsync
        self._before_change = before_change
        self._checksums = KnownChecksums()
        self._writers = OneAtATime(taken=not fsync)
        with explained("creating", str(folder), "write permission on the folder above it"):
            self._folder.mkdir(mode=files.FOLDER_MODE, parents=True, exist_ok=True)
        self.sweep()

    def as_caller(self, caller: str) -> Buckets:
        """The buckets as a principal has them ("": an anonymous caller); without `access`, these buckets."""
        if self.access is None:
            return self
        seen = copy.copy(self)
        seen._gate = Gate(self.access, caller)
        return seen

    def need(self, action: Action) -> None:
        """Raise NotPermitted unless the caller may do that in the project."""
        if self._gate is not None:
            self._gate.check(action)

    def names(self) -> list[str]:
        self.need(Action.LIST_BUCKETS)
        folder = str(self._folder)
        with explained("listing", folder, "read permission on it"), os.scandir(folder) as entries:
            return sorted(
                entry.name for entry in entries if is_bucket_name(entry.name) and entry.is_dir(follow_symlinks=False)
            )

    def open(self, name: str) -> Bucket:
        """Open a bucket. Raises NoSuchBucket."""
        path = self._folder / name
        try:
            is_there = is_bucket_name(name) and stat.S_ISDIR(path.lstat().st_mode)
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise NoSuchBucket(f"there is no bucket {name[:80]!r}")
        return Bucket(
            path,
            name,
            checksums=self._checksums,
            fsync=self._fsync,
            before_change=self._before_change,
            writers=self._writers,
            gate=self._gate,
        )

    def create(self, name: str, *, project: str = "") -> Bucket:
        """Create a bucket. Raises BucketExists if the name is taken, InvalidRequest if it is not valid.

        With a project, the bucket's policy is that of new buckets; else it is empty.
        """
        check_bucket_name(name)
        self.need(Action.CREATE_BUCKET)
        with explained("creating", str(self._folder / name), "write permission on the folder above it"):
            try:
                (self._folder / name).mkdir(mode=files.FOLDER_MODE)
            except FileExistsError as error:
                raise BucketExists(f"the bucket {name} already exists") from error
        bucket = self.open(name)
        if project:
            bucket.change_rules(lambda _: Rules(policy=policy_of_new_bucket(project)))
        return bucket

    def delete(self, name: str) -> None:
        """Delete a bucket. Raises NoSuchBucket or BucketNotEmpty."""
        bucket = self.open(name)
        bucket.need(Action.DELETE_BUCKET)
        if bucket.rules().folders:
            raise BucketNotEmpty(f"the bucket {name} contains managed folders")
        aside = self._folder / f"{_DELETED_PREFIX}{secrets.token_hex(8)}"
        with bucket.locked_wholly():
            stranger = _first_file(bucket.path)
            if stranger:
                raise BucketNotEmpty(f"the bucket {name} contains {stranger!r}")
            # The rename deletes the bucket atomically; the next start finishes an interrupted deletion.
            bucket.path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)

    def sweep(self) -> None:
        """Remove temporary files of writers that died, and sidecars of objects that others replaced."""
        for orphan in self._folder.glob(f"{_DELETED_PREFIX}*"):
            shutil.rmtree(orphan, ignore_errors=True)
        for name in self.names():
            # Without write access, leave them.
            with contextlib.suppress(StoreError, NoSuchBucket, OSError):
                self.open(name).sweep(before_ns=time.time_ns() - _ORPHAN_NS)


def _first_file(root: Path) -> str:
    """A file in a bucket's folder that is not ours, or an empty string."""
    for above, folders, names in os.walk(root):
        if Path(above) == root and HIDDEN_FOLDER in folders:
            folders.remove(HIDDEN_FOLDER)
            # Objects that cannot be files are here, between our folders.
            hidden = (root / HIDDEN_FOLDER).iterdir()
            names += [path.name for path in hidden if path.is_file() and path.suffix != KEY_SUFFIX]
        names += [folder for folder in folders if (Path(above) / folder).is_symlink()]
        if names:
            return names[0]
    return ""
