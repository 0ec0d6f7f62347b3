"""Recorded ticks as files on the daemon's machine: the last N, readable by their owner only."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

_ENDING = ".json.gz"


class TickFiles:
    """Keeps the newest files of one folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def keep(self, name: str, make: Callable[[], bytes], *, most: int) -> str:
        """Write one file and remove the oldest, so that `most` are left; return why it failed, or an empty text.

        Args:
            name: Without the ending; names sort by age.
            make: Makes the content, if any is wanted.
            most: With 0 nothing is written, and all files are removed.
        """
        try:
            if most:
                self._write(name, make())
            for path in [*self._files()[: -most or None], *self._drafts()]:
                path.unlink(missing_ok=True)
        except OSError as error:
            return f"ticks cannot be recorded in {self._folder}: {error.strerror}"
        return ""

    def _write(self, name: str, data: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / (name + _ENDING)
        draft = path.with_name(f".{path.name}")
        draft.unlink(missing_ok=True)
        try:
            with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
                stream.write(gzip.compress(data, 1, mtime=0))
            draft.replace(path)
        except OSError:
            draft.unlink(missing_ok=True)  # a full disk would get one with every tick
            raise

    def _files(self) -> list[Path]:
        return sorted(self._folder.glob(f"tick-*{_ENDING}"))

    def _drafts(self) -> list[Path]:
        """Of writers that were killed."""
        return list(self._folder.glob(f".tick-*{_ENDING}"))
