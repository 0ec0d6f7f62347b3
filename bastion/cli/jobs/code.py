"""The code of a launched job: `--bundle`, `--bundle_exclude`, `--bundle_allow`."""

from __future__ import annotations

import glob
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.command import Invocation
from bastion.cli.output import plain, say
from bastion.core.bucket import bundles, keys
from bastion.core.errors import AccessDenied, Refused

if TYPE_CHECKING:
    from bastion.client import Client
    from bastion.client.code.bundle import Bundle

_NONE = "none"
_LEFT_OUT_NAMED = 3


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "bundle",
        None,
        "The folder whose code to upload with the job, or none. Default: the current folder if it is in a git "
        "repository, else none.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "bundle_exclude",
        [],
        "Leave matching files and folders out of the bundle, like data, *.ckpt or runs/old; repeat it for more "
        "patterns. A pattern with a slash is relative to the bundle's top.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "bundle_allow",
        [],
        "Pack a matching file even if it looks like a secret; repeat it for more patterns, as with --bundle_exclude.",
        flag_values=values,
    )


def pack_bundle(call: Invocation, *, without: str = "") -> Bundle | None:
    """Pack the bundle that the flags ask for, or say on stderr why there is none.

    Args:
        without: Path of a file to leave out: the spec itself, if it is in the folder.

    Raises:
        Refused: the folder cannot be packed, or holds something that must not be uploaded.
    """
    asked = call.flags.bundle
    for flag in ("bundle_exclude", "bundle_allow"):
        if "" in (call.flags[flag].value or ()):
            raise Refused(f"--{flag} is empty; give it a pattern, like *.ckpt, or leave it out")
    if asked == _NONE:
        return None
    if asked == "":
        raise Refused("--bundle is empty; use --bundle=DIR or --bundle=none")
    from bastion.client.code import bundle
    from bastion.client.code import files as code_files

    folder = Path(asked or ".").expanduser()
    top = None if asked else code_files.git_top(folder.absolute())
    if not asked and top is None:
        say("bastion: not uploading code: this folder is not in a git repository (use --bundle=DIR to pack a folder)")
        return None
    try:
        exclude = [*call.flags.bundle_exclude, *_exclude_pattern(without, folder)]
        found = bundle.pack(folder, exclude=exclude, allow=call.flags.bundle_allow)
    except bundle.NothingToPack:
        if asked:
            raise
        say("bastion: not uploading code: git has no files in this folder (use --bundle=DIR to pack another)")
        return None
    if top is not None and not top.samefile(found.folder):
        whole = plain(str(top))
        say(f"bastion: packing only this folder of the git repository {whole} (use --bundle={whole} to pack all of it)")
    for number, what in enumerate(found.left_out):
        if number == _LEFT_OUT_NAMED:
            say(f"bastion: not packing {len(found.left_out) - number} more files")
            break
        say(f"bastion: not packing {plain(what)}")
    return found


def file_of_stdout() -> str:
    """Return the path of the file that stdout is redirected to; empty if there is none."""
    try:
        is_file = stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
        return str(Path(f"/proc/self/fd/{sys.stdout.fileno()}").readlink()) if is_file else ""
    except (OSError, ValueError):  # no /proc on this system, or sys.stdout was replaced
        return ""


def _exclude_pattern(path: str, folder: Path) -> list[str]:
    if not path:
        return []
    try:
        inside = Path(path).resolve().relative_to(folder.resolve())
    except ValueError:
        return []
    # The slash anchors the pattern at the folder's top.
    return [f"./{glob.escape(str(inside))}"]


def ensure_stored(call: Invocation, client: Client, url: str | None, *, spec_file: str) -> None:
    """Upload the code of a spec made by `launch --dry_run`, if it is not in the bucket.

    Args:
        url: The spec's `code_asset_path`.

    Raises:
        Refused: the bucket does not have it, and neither does this folder.
        StoreError: the upload failed.
    """
    digest = bundles.digest_in(url or "")
    if not digest or url != f"{client.root.url}/{keys.bundle(digest)}" or client.store.head(keys.bundle(digest)):
        return
    bundle = pack_bundle(call, without=spec_file)
    if bundle is None or bundle.sha256 != digest:
        here = "there is no code here" if bundle is None else f"the code in {plain(str(bundle.folder))} differs"
        raise Refused(
            f"the code of this spec, {plain(url)}, is not in the bucket, and {here}; run bastion submit in the folder "
            "of bastion launch --dry_run with the same --bundle flags, or make the spec again"
        )
    store(client, bundle)


def url_of(client: Client, bundle: Bundle) -> str:
    """The job's `code_asset_path`."""
    return f"{client.root.url}/{bundle.key}"


def store(client: Client, bundle: Bundle) -> None:
    """Upload the bundle unless it is in the bucket, and say so. Raises `StoreError` if the upload failed."""
    from bastion.client.code.bundle import upload

    try:
        new = upload(client.store, bundle)
    except AccessDenied as error:
        raise AccessDenied(f"cannot upload the code: {error}; use --bundle=none to launch without it") from error
    files = f"{bundle.files} file{'' if bundle.files == 1 else 's'} from {plain(str(bundle.folder))}"
    how = f"uploaded, {_size(len(bundle.data))}" if new else "already uploaded"
    say(f"bastion: packed {files} ({how})")


def _size(count: int) -> str:
    return f"{count / (1024 * 1024):.1f} MiB" if count >= 1024 * 1024 else f"{-(-count // 1024)} KiB"
