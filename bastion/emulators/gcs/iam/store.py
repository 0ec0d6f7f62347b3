"""The rules of a bucket on disk: `.objects/iam/rules.json` in its folder. They survive a restart."""

from __future__ import annotations

import os

from bastion.core.errors import StoreError
from bastion.emulators.gcs import sidecars
from bastion.emulators.gcs.iam.rules import Rules
from bastion.emulators.gcs.opened_bucket import OpenedBucket
from bastion.folder_format import files
from bastion.folder_format.keys import HIDDEN_FOLDER

_FOLDER = "iam"
_FILE = "rules.json"
_MAX_BYTES = 64 * 1024 * 1024
_NO_RULES = Rules()


def read(opened: OpenedBucket) -> Rules:
    """Read the rules. Raises StoreError if the file is broken: nobody gets rights by that."""
    try:
        folder = files.open_folder(opened.root, (HIDDEN_FOLDER, _FOLDER))
    except OSError as error:
        if error.errno not in files.ABSENT:
            raise
        return _NO_RULES
    try:
        file = os.open(_FILE, os.O_RDONLY | files.FILE, dir_fd=folder)
    except FileNotFoundError:
        return _NO_RULES
    finally:
        os.close(folder)
    with os.fdopen(file, "rb") as opened_file:
        data = opened_file.read(_MAX_BYTES)
    try:
        return Rules.decoded(data)
    except ValueError as error:
        raise StoreError(f"the bucket's {HIDDEN_FOLDER}/{_FOLDER}/{_FILE} is broken ({error}); remove it") from error


def write(opened: OpenedBucket, rules: Rules, *, sync: bool) -> None:
    """Replace the rules; the caller holds a lock."""
    folder = files.open_folder(opened.hidden, (_FOLDER,), create=True, sync=sync)
    try:
        sidecars.replace(opened.hidden, folder, _FILE, rules.encoded(), sync=sync)
    finally:
        os.close(folder)
