"""The local folder that outputs are fetched to.

    DIR/.bastion-outputs/lock            held while a fetch runs
    DIR/.bastion-outputs/<uid>.jsonl     what was written here for that job
    DIR/.bastion-outputs/partial/<name>  files that are not whole yet

Invariants:
* Nothing outside of the folder is read or written: below it no link is followed, and every path is checked.
* A file appears under its name once it is whole.
* After `close`, threads that are still at work touch nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from bastion.core.bucket import bundles
from bastion.core.errors import Refused

OWN_FOLDER = ".bastion-outputs"
_PARTIAL = "partial"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe in the place of a file would block


class Blocked(Exception):
    """Something else is in the place of a file or of its folder; the text is for users."""


class Closed(Exception):
    """The fetch has ended, by Ctrl-C."""


@dataclass(slots=True)
class Written:
    """What earlier fetches of the job wrote: by path the version and the file's identity; by partial file its parts."""

    files: dict[str, tuple[str, int, int, int]] = field(default_factory=dict)
    parts: dict[str, dict[str, str]] = field(default_factory=dict)


def check_local_path(path: str) -> str:
    """Say why no file can have that path below the folder; empty if one can."""
    try:
        clean = bundles.check_path(path)
    except bundles.UnsafePath as error:
        return f"its name {error}"
    if not path or clean != path or any(ord(character) < 32 for character in path):
        return "its name is not a path below a folder"
    if path.partition("/")[0].casefold() == OWN_FOLDER:
        return f"its name is that of the record of what was fetched ({OWN_FOLDER})"
    return ""


class Destination:
    """An open folder; close it in the end. Raises Refused, OSError."""

    def __init__(self, path: Path, uid: str) -> None:
        try:
            path.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise Refused(f"{path} is not a folder; choose another --to") from error
        except OSError as error:
            raise Refused(f"{path} cannot be created: {error.strerror}; choose another --to") from error
        self.path = Path(os.path.realpath(path))
        self._uses = threading.Condition()
        self._in_use = 0
        self._closed = False
        self._descriptors: list[int] = []
        try:
            self._root = self._kept(os.open(self.path, _FOLDER))
            own = self._kept(self._make_folder(self._root, OWN_FOLDER))
            self._lock(own)
            self.partial = self._kept(self._make_folder(own, _PARTIAL))
            journal = os.O_RDWR | os.O_CREAT | os.O_APPEND | _FILE
            self._journal = self._kept(os.open(f"{uid}.jsonl", journal, 0o600, dir_fd=own))
            self.written = self._read_journal()
            self.folds_case = self._folds(own)
        except OSError as error:
            self.close()
            raise Refused(
                f"cannot write below {self.path}: {error.strerror}; choose another --to, or free it"
            ) from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Wait for what is being written now, and release the folder."""
        with self._uses:
            self._closed = True
            self._uses.wait_for(lambda: not self._in_use, timeout=60.0)
            while self._descriptors:
                os.close(self._descriptors.pop())

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """The folder does not close meanwhile; raises Closed."""
        with self._uses:
            if self._closed:
                raise Closed
            self._in_use += 1
        try:
            yield
        finally:
            with self._uses:
                self._in_use -= 1
                self._uses.notify_all()

    @property
    def free_bytes(self) -> int:
        found = os.fstatvfs(self._root)
        return found.f_bavail * found.f_frsize

    def find(self, path: str) -> os.stat_result | None:
        """What is there, a link itself; None if nothing. Raises Blocked."""
        folder, _, name = path.rpartition("/")
        try:
            with self.folder(folder, create=False) as opened:
                return os.stat(name, dir_fd=opened, follow_symlinks=False)
        except FileNotFoundError:
            return None

    @contextlib.contextmanager
    def folder(self, path: str, *, create: bool = True) -> Iterator[int]:
        """Open a folder below, through no link. Raises Blocked, FileNotFoundError without `create`, OSError."""
        opened = os.dup(self._root)
        try:
            for number, name in enumerate(path.split("/") if path else (), 1):
                try:
                    inner = (self._make_folder if create else _open_folder)(opened, name)
                except (NotADirectoryError, OSError) as error:
                    if isinstance(error, FileNotFoundError) or not _is_other(opened, name):
                        raise
                    so_far = "/".join(path.split("/")[:number])
                    raise Blocked(f"{so_far} is a link or a file, and a folder is needed; move it away") from error
                os.close(opened)
                opened = inner
            yield opened
        finally:
            os.close(opened)

    def open_file(self, path: str) -> int:
        """Open a regular file for reading. Raises OSError, Blocked."""
        folder, _, name = path.rpartition("/")
        with self.folder(folder, create=False) as opened:
            return os.open(name, os.O_RDONLY | _FILE, dir_fd=opened)

    def open_partial(self, name: str) -> int:
        return os.open(name, os.O_RDWR | os.O_CREAT | _FILE, 0o600, dir_fd=self.partial)

    def place(self, partial: str, path: str) -> None:
        """Move a whole file, or a link, to its name. Raises Blocked, OSError."""
        folder, _, name = path.rpartition("/")
        with self.folder(folder) as opened:
            try:
                os.rename(partial, name, src_dir_fd=self.partial, dst_dir_fd=opened)
            except IsADirectoryError as error:
                raise Blocked(f"{path} is a folder; move it away") from error

    def note(self, **entry: object) -> None:
        """Append to the record of what was written."""
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        if os.write(self._journal, line) != len(line):
            raise OSError("the record of what was fetched could not be written")

    def keep_partial(self, names: set[str]) -> None:
        """Delete what is left of other fetches."""
        for name in os.listdir(self.partial):  # noqa: PTH208 - a descriptor
            if name not in names:
                os.unlink(name, dir_fd=self.partial)

    def _kept(self, descriptor: int) -> int:
        self._descriptors.append(descriptor)
        return descriptor

    def _lock(self, own: int) -> None:
        lock = self._kept(os.open("lock", os.O_RDWR | os.O_CREAT | _FILE, 0o600, dir_fd=own))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise Refused(
                f"another bastion outputs writes to {self.path} now; wait until it ends, or choose another --to"
            ) from error

    def _make_folder(self, above: int, name: str) -> int:
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o777, dir_fd=above)
        return _open_folder(above, name)

    def _read_journal(self) -> Written:
        """A line that a kill tore is passed over."""
        found = Written()
        with os.fdopen(os.dup(self._journal), "rb") as journal:
            journal.seek(0)
            data = journal.read()
        if data and not data.endswith(b"\n"):
            os.write(self._journal, b"\n")
        for line in data.splitlines():
            try:
                entry = json.loads(line)
                if "part" in entry:
                    found.parts.setdefault(entry["partial"], {})[entry["part"]] = entry["sha256"]
                else:
                    identity = tuple(int(entry[key]) for key in ("size", "mtime_ns", "inode"))
                    found.files[entry["path"]] = (str(entry["version"]), identity[0], identity[1], identity[2])
            except (ValueError, KeyError, TypeError):  # noqa: PERF203 - each line on its own
                continue
        return found

    @staticmethod
    def _folds(own: int) -> bool:
        """Whether names that differ in case only are one file here, as on macOS."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open("Case", os.O_CREAT | os.O_EXCL | os.O_WRONLY | _FILE, 0o600, dir_fd=own))
        try:
            os.stat("cASE", dir_fd=own, follow_symlinks=False)
        except FileNotFoundError:
            return False
        finally:
            os.unlink("Case", dir_fd=own)
        return True


def _open_folder(above: int, name: str) -> int:
    return os.open(name, _FOLDER, dir_fd=above)


def _is_other(above: int, name: str) -> bool:
    try:
        return not stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)
    except OSError:
        return False
