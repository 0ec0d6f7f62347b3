"""A bucket's open folder: its hidden folders, its locks, and explained system errors."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from bastion.core.errors import StoreError
from bastion.emulators.gcs import sidecars
from bastion.emulators.gcs.resources import NoSuchBucket
from bastion.folder_format import files
from bastion.folder_format.keys import HIDDEN_FOLDER
from bastion.folder_format.lock import HighWaterMark, locked

_LOCK_TIMEOUT_SECONDS = 30.0


class OpenedBucket:
    """Descriptors of a bucket's folder and hidden folders, opened on first use. Raises NoSuchBucket.

    With `fsync`, created folders are durable.
    """

    __slots__ = ("_hidden", "_path", "_sidecars", "_sync", "root")

    def __init__(self, path: Path, *, fsync: bool) -> None:
        self._path = path
        self._sync = fsync
        self._hidden = self._sidecars = -1
        try:
            self.root = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NoSuchBucket(f"there is no folder {path}") from error

    @property
    def hidden(self) -> int:
        """The hidden folder, created if missing. Raises StoreError if something else has its name."""
        if self._hidden < 0:
            try:
                self._hidden = files.open_folder(self.root, (HIDDEN_FOLDER,), create=True, sync=self._sync)
            except OSError as error:
                if error.errno not in files.BARRED:
                    raise
                raise StoreError(
                    f"{self._path}/{HIDDEN_FOLDER} is not a folder; move it away, because the bucket needs this name"
                ) from error
        return self._hidden

    @property
    def sidecars(self) -> int:
        """The folder of the sidecars, created if missing."""
        if self._sidecars < 0:
            self._sidecars = files.open_folder(self.hidden, (sidecars.FOLDER,), create=True, sync=self._sync)
        return self._sidecars

    @property
    def sidecars_if_any(self) -> int | None:
        """The folder of the sidecars, or None."""
        if self._sidecars < 0:
            try:
                self._sidecars = files.open_folder(self.root, (HIDDEN_FOLDER, sidecars.FOLDER))
            except OSError as error:
                if error.errno not in files.ABSENT:
                    raise
                return None
        return self._sidecars

    @contextlib.contextmanager
    def locked(self, stripe: str) -> Iterator[HighWaterMark]:
        """Hold a lock file of the bucket. Raises NoSuchBucket if the bucket is deleted meanwhile."""
        path = f"{self._path}/{HIDDEN_FOLDER}"
        with contextlib.ExitStack() as stack:
            try:
                mark = stack.enter_context(
                    locked(self.hidden, stripe, path=path, timeout_seconds=_LOCK_TIMEOUT_SECONDS)
                )
            except FileNotFoundError:
                self._check_not_deleted()
                raise
            # A deletion takes all locks and moves the folder away.
            self._check_not_deleted()
            yield mark

    def _check_not_deleted(self) -> None:
        try:
            is_there = os.path.samestat(self._path.lstat(), os.fstat(self.root))
        except FileNotFoundError:
            is_there = False
        if not is_there:
            raise NoSuchBucket(f"the bucket {self._path} was deleted meanwhile")

    def close(self) -> None:
        for descriptor in (self.root, self._hidden, self._sidecars):
            if descriptor >= 0:
                os.close(descriptor)
        self.root = self._hidden = self._sidecars = -1

    def __enter__(self) -> OpenedBucket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def explained(doing: str, path: str, needs: str) -> Iterator[None]:
    """Translate system errors into ours; see `files.explain`."""
    try:
        yield
    except OSError as error:
        shown = path if path.isprintable() else ascii(path)
        raise files.explain(error, doing=doing, path=shown, needs=needs) from error
