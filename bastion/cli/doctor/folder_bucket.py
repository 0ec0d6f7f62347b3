"""Examine a ROOT in a folder: who owns it, and what its modes let others do."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from itertools import islice

from bastion.cli.doctor.finding import Report
from bastion.cli.doctor.grants import USERS_WRITE
from bastion.core.bucket import keys
from bastion.core.model.mode import Mode
from bastion.folder_format.keys import HIDDEN_FOLDER
from bastion.wiring.roots import Root

_FILES_MAX = 100_000
_NAMED = 3


def examine(report: Report, root: Root, mode: Mode) -> None:
    for path in (root.url, f"{root.bucket}/{HIDDEN_FOLDER}"):
        _others(report, path)
    _bucket(report, root.bucket)
    if mode is Mode.INBOX:
        _closed(report, root.url)


def _others(report: Report, path: str) -> None:
    try:
        mode = stat.S_IMODE(os.stat(path).st_mode)  # noqa: PTH116 - of a path as text, as everywhere in a folder bucket
    except OSError:
        return
    if not mode & stat.S_IRWXO:
        return
    remedy = f"chmod o-rwx {path}"
    if mode & stat.S_IWOTH:
        report.error(f"everybody on this machine may write {path}", why="he may run commands as jobs", remedy=remedy)
    else:
        report.warning(
            f"everybody on this machine gets into {path} (mode {mode:o})",
            why="specs hold environments, and logs the output of commands",
            remedy=remedy,
        )


def _bucket(report: Report, path: str) -> None:
    mode = os.stat(path).st_mode  # noqa: PTH116
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        report.error(
            f"everybody on this machine may rename what is in {path}",
            why="he may put a folder of his own in the place of the bastion's",
            remedy=f"chmod o-w {path}",
        )


def _closed(report: Report, root: str) -> None:
    """With inboxes: nobody but the owner of the ROOT may write what the daemon decides by."""
    owner = os.stat(root).st_uid  # noqa: PTH116
    writable, foreign, unread = [], [], False
    count = 0
    for path, status in islice(_below(root), _FILES_MAX):
        count += 1
        if status is None:
            unread = True
        elif stat.S_ISLNK(status.st_mode):
            continue
        elif status.st_uid not in (owner, 0):
            foreign.append(path)
        elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            writable.append(path)
    if unread:
        report.skip(f"some folders below {root}", "you may not read it; ask the user of the daemon")
    if count == _FILES_MAX:
        report.skip(f"more than {_FILES_MAX} files below {root}", "there are too many")
    if writable:
        report.error(
            f"others than its owner may write {_named(writable)}",
            why="this bastion takes jobs and requests from inbox/<user>/ only; the daemon decides by what is elsewhere",
            remedy=f"chmod go-w {writable[0]}" + (" and the others" if len(writable) > 1 else ""),
        )
    if foreign:
        report.error(
            f"{_named(foreign)} does not belong to the owner of {root}, the user {owner}",
            why="a file's owner may change it whenever he likes; the daemon decides by what is there",
            remedy=f"chown {owner} {foreign[0]}" + (" and the others" if len(foreign) > 1 else ""),
        )


def _below(root: str) -> Iterator[tuple[str, os.stat_result | None]]:
    """All files and folders but those that users write; None for a folder that cannot be read."""
    open_ones = {name.rstrip("/") for name in (*USERS_WRITE, keys.INBOX)}
    waiting = [root]
    while waiting:
        folder = waiting.pop()
        try:
            entries = list(os.scandir(folder))
        except FileNotFoundError:
            continue
        except OSError:
            yield folder, None
            continue
        for entry in entries:
            if folder == root and entry.name in open_ones:
                continue
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(status.st_mode):
                waiting.append(entry.path)
            yield entry.path, status


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return f"{', '.join(sorted(paths)[:_NAMED])}{more}"
