"""Find a folder's code: in a git repository the files that git tracks or does not ignore."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bastion.core.bucket import bundles
from bastion.core.errors import Refused


@dataclass(slots=True)
class CodeFiles:
    """A folder's content: relative paths with `/`, in the order of their bytes.

    Attributes:
        files: Plain files.
        links: Symbolic links and their targets; each stays inside of the folder.
        left_out: What cannot be packed, for people: links that point outside, sockets.
    """

    files: dict[str, os.stat_result] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)


def git_top(folder: Path) -> Path | None:
    """The top of the folder's git repository; None if it is in none. Starts no process."""
    for candidate in (folder, *folder.parents):
        if (candidate / ".git").exists():
            return candidate
    return None


def commit_of(folder: Path) -> str:
    """The commit of the folder's git repository, with `-dirty` if files of the folder differ; empty if unknown."""
    if git_top(folder) is None:
        return ""
    commit = _git(folder, "rev-parse", "HEAD")
    return f"{commit}-dirty" if commit and _git(folder, "status", "--porcelain", "--", ".") else commit


def _git(folder: Path, *arguments: str) -> str:
    """Return what git prints; empty if it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env=_environment(),
        )
    except OSError:
        return ""
    return done.stdout.decode("utf-8", "replace").strip() if done.returncode == 0 else ""


def find(folder: Path, *, exclude: Sequence[str] = ()) -> CodeFiles:
    """Find the files to pack: git's if there is a repository, else all.

    Args:
        exclude: Patterns of files to leave out; see `bastion.core.bucket.bundles.matches`.

    Raises:
        Refused: the folder cannot be read, or git fails.
    """
    paths = _git_files(folder) if git_top(folder) else _all_files(folder)
    return _look(folder, sorted({path for path in paths if not bundles.matches(path, exclude)}, key=os.fsencode))


def _git_files(folder: Path) -> Iterator[str]:
    """The files that git tracks or does not ignore, including those of nested repositories."""
    command = ["git", "-C", str(folder), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL, env=_environment())
    except OSError as error:
        raise Refused(
            f"{folder} is in a git repository, but git cannot be started ({error}); install it, or use --bundle=none"
        ) from error
    if listed.returncode:
        said = listed.stderr.decode("utf-8", "replace").strip()
        raise Refused(f"git cannot list {folder}: {said}; correct that, or use --bundle=none")
    for name in filter(None, listed.stdout.split(b"\0")):
        path = os.fsdecode(name).rstrip("/")
        inner = folder / path
        if not inner.is_symlink() and inner.is_dir():
            # A submodule or an untracked repository; it is empty if not checked out.
            if (inner / ".git").exists():
                yield from (f"{path}/{below}" for below in _git_files(inner))
        else:
            yield path


def _environment() -> dict[str, str]:
    """The environment without git's own variables, which in a hook name another repository."""
    named = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
    return {name: value for name, value in os.environ.items() if name not in named}


def _all_files(folder: Path) -> Iterator[str]:
    def stop(error: OSError) -> None:
        raise Refused(f"cannot read {folder}: {error}") from error

    for place, folders, names in os.walk(folder, onerror=stop):
        base = Path(place)
        folders[:] = [name for name in folders if name != ".git"]
        linked = [name for name in folders if (base / name).is_symlink()]
        for name in (*names, *linked):
            yield (base / name).relative_to(folder).as_posix()


def _look(folder: Path, paths: Sequence[str]) -> CodeFiles:
    found = CodeFiles()
    for path in paths:
        status = _status(folder / path)
        if status is None:
            continue  # tracked, but deleted
        if stat.S_ISREG(status.st_mode):
            found.files[path] = status
        elif not stat.S_ISLNK(status.st_mode):
            found.left_out.append(f"{path} (not a file)")
        else:
            target = os.readlink(folder / path)  # noqa: PTH115 - a path would normalize it
            problem = _link_problem(folder, path, target)
            if problem:
                found.left_out.append(f"{path} ({problem})")
            else:
                found.links[path] = target
    return found


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Refused(f"cannot read {path}: {error.strerror}; leave it out with --bundle_exclude=PATTERN") from error


def _link_problem(folder: Path, path: str, target: str) -> str:
    try:
        bundles.check_link(path, target)
    except bundles.UnsafePath as error:
        return f"the link {error}"
    top = os.path.realpath(folder)
    end = os.path.realpath(folder / path)
    return "" if end == top or end.startswith(top + "/") else "the link points outside of the folder"
