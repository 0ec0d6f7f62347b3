"""Pack a folder of code into a bundle, and store it in the bucket once.

Invariants:

* The same files give the same bytes on one machine: only names, contents, links and the right to execute count. So a
  bundle is uploaded only once.
* Nothing that looks like a secret is packed unless the user allows it.
* Every link in a bundle stays inside of it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shlex
import stat
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bastion.client.code import files as code_files
from bastion.client.code.files import CodeFiles
from bastion.core import limits, secret_signs
from bastion.core.bucket import bundles, keys
from bastion.core.errors import PreconditionFailed, Refused, StoreUnavailable
from bastion.ports import ObjectStore

# Higher levels take several times as long for a tenth less.
_GZIP_LEVEL = 4
_NAMED_MAX = 5


class NothingToPack(Refused):
    """The folder has no files to pack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A packed folder.

    Attributes:
        data: A compressed tar file.
        sha256: Of `data`.
        files: Number of files and links.
        left_out: What could not be packed, for people: links that point outside, sockets.
    """

    folder: Path
    data: bytes
    sha256: str
    files: int
    left_out: tuple[str, ...]

    @property
    def key(self) -> str:
        """Its key in the bucket."""
        return keys.bundle(self.sha256)


def pack(folder: Path, *, exclude: Sequence[str] = (), allow: Sequence[str] = ()) -> Bundle:
    """Pack a folder: in a git repository what git tracks or does not ignore, elsewhere everything.

    Args:
        exclude: Patterns of files to leave out; see `bastion.core.bucket.bundles.matches`.
        allow: Patterns of files to pack even if they look like secrets.

    Raises:
        Refused: something looks like a secret, is too large, or cannot be read.
    """
    folder = Path(os.path.abspath(folder))  # noqa: PTH100 - keeps symlinks as the user wrote them
    if not folder.is_dir():
        raise Refused(f"{folder} is not a folder; use --bundle=DIR or --bundle=none")
    found = code_files.find(folder, exclude=exclude)
    _check_size(folder, found)
    named = {path: bundles.secret_by_name(path) for path in (*found.files, *found.links)}
    secrets = {path: kind for path, kind in named.items() if kind and not bundles.matches(path, allow)}
    packed = io.BytesIO()
    try:
        # The header has no name or time, which would change the digest.
        with (
            gzip.GzipFile("", "wb", _GZIP_LEVEL, packed, mtime=0) as compressed,
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT, encoding="utf-8") as tar,
        ):
            for path in sorted((*found.files, *found.links), key=os.fsencode):
                _add(tar, folder, path, found)
                kind = "" if path in secrets or path in found.links else _secret_inside(folder, path, found)
                if kind and not bundles.matches(path, allow):
                    secrets[path] = kind
                if packed.tell() > limits.BUNDLE_MAX_BYTES:
                    raise _too_large(f"more than {_mib(limits.BUNDLE_MAX_BYTES)} MiB compressed", folder, found)
    except OSError as error:
        # tarfile raises it, too, if a file has become shorter.
        raise Refused(
            f"cannot read {folder}, or it changed while it was packed ({error}); launch again, or leave files out "
            "with --bundle_exclude=PATTERN"
        ) from error
    if secrets:
        raise _has_secrets(folder, secrets)
    data = packed.getvalue()
    return Bundle(
        folder=folder,
        data=data,
        sha256=hashlib.sha256(data).hexdigest(),
        files=len(found.files) + len(found.links),
        left_out=tuple(found.left_out),
    )


def upload(store: ObjectStore, bundle: Bundle) -> bool:
    """Store a bundle under its own digest.

    Returns:
        Whether it was written; False if the bucket had it.

    Raises:
        Refused: the bucket holds another file under its name.
        StoreError: the upload failed.
    """
    for last in (False, False, True):
        meta = store.head(bundle.key)
        if meta is not None and meta.size != len(bundle.data):
            raise Refused(
                f"{bundle.key} in the bucket does not match its digest; ask an administrator to delete it, or use "
                "--bundle=none to launch without code"
            )
        if meta is not None:
            return False
        try:
            store.put(bundle.key, bundle.data, generation=0)
        except PreconditionFailed:
            continue  # someone else uploaded the same, or our own upload succeeded after all
        except StoreUnavailable:
            if last:
                raise
            continue
        return True
    return False


def _check_size(folder: Path, found: CodeFiles) -> None:
    count = len(found.files) + len(found.links)
    if not count:
        raise NothingToPack(f"there is nothing to pack in {folder}; use --bundle=none, or another folder: --bundle=DIR")
    if count > limits.BUNDLE_ENTRIES_MAX:
        raise Refused(
            f"{folder} has {count} files; the maximum is {limits.BUNDLE_ENTRIES_MAX}; "
            "leave some out with --bundle_exclude"
        )
    total = sum(status.st_size for status in found.files.values())
    if total > limits.BUNDLE_UNPACKED_MAX_BYTES:
        raise _too_large(f"{_mib(total)} MiB, more than {_mib(limits.BUNDLE_UNPACKED_MAX_BYTES)}", folder, found)


def _too_large(what: str, folder: Path, found: CodeFiles) -> Refused:
    largest = sorted(found.files, key=lambda path: -found.files[path].st_size)[:_NAMED_MAX]
    names = ", ".join(f"{path} ({_mib(found.files[path].st_size)} MiB)" for path in largest)
    return Refused(
        f"{folder} is too large for a bundle: {what}. The largest files: {names}. Leave out what the job does not "
        "need with --bundle_exclude=PATTERN; data belongs in a bucket"
    )


def _has_secrets(folder: Path, secrets: dict[str, str]) -> Refused:
    names = "; ".join(f"{path} ({secrets[path]})" for path in sorted(secrets)[:_NAMED_MAX])
    more = f"; and {len(secrets) - _NAMED_MAX} more" if len(secrets) > _NAMED_MAX else ""
    named = sorted(secrets)[:_NAMED_MAX]
    leave = " ".join(f"--bundle_exclude={shlex.quote(path)}" for path in named)
    one = shlex.quote(named[0])
    return Refused(
        f"{folder} contains what looks like secrets, which everyone who reads the bucket could read: {names}{more}. "
        f"Leave them out with {leave}. Pack files that are not secret with --bundle_allow={one} and so on, or "
        "use --bundle=none to launch without code"
    )


def _add(tar: tarfile.TarFile, folder: Path, path: str, found: CodeFiles) -> None:
    entry = tarfile.TarInfo(path)
    if path in found.links:
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, found.links[path], 0o777
        tar.addfile(entry)
        return
    status = found.files[path]
    entry.size = status.st_size
    entry.mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
    with _opened(folder / path) as file:
        tar.addfile(entry, file)


def _secret_inside(folder: Path, path: str, found: CodeFiles) -> str:
    if found.files[path].st_size > bundles.SECRET_SCAN_BYTES:
        return ""
    with _opened(folder / path) as file:
        return secret_signs.secret_in(file.read(bundles.SECRET_SCAN_BYTES))


def _opened(path: Path) -> IO[bytes]:
    """Open without blocking or following a link, in case the file was replaced."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def _mib(size: int) -> int:
    return -(-size // (1024 * 1024))
