"""The code that a launched job takes along: `--bundle`, `--bundle_exclude`, `--bundle_allow`.

Layer: cli.
"""

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
        "The folder whose code the job takes along, or none. Without it the current folder if that is in a git "
        "working tree, else none.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "bundle_exclude",
        [],
        "Leaves files and folders out of the bundle, like data, *.ckpt or runs/old; once for each pattern. One with a "
        "slash counts from the bundle's top.",
        flag_values=values,
    )
    flags.DEFINE_multi_string(
        "bundle_allow",
        [],
        "Packs a file although it looks like a secret; once for each pattern, as for --bundle_exclude.",
        flag_values=values,
    )


def packed(call: Invocation, *, without: str = "") -> Bundle | None:
    """The bundle that the flags ask for, and a line on stderr if there is none.

    Args:
        without: Path of a file that is no code: the spec itself, if it lies in the folder.

    Raises:
        Refused: it cannot be packed, or must not be.
    """
    asked = call.flags.bundle
    for flag in ("bundle_exclude", "bundle_allow"):
        if "" in (call.flags[flag].value or ()):
            raise Refused(f"--{flag} is empty; give it a pattern, like *.ckpt, or leave it out")
    if asked == _NONE:
        return None
    if asked == "":
        raise Refused("--bundle is empty; write --bundle=DIR or --bundle=none")
    from bastion.client.code import bundle
    from bastion.client.code import files as code_files

    folder = Path(asked or ".").expanduser()
    top = None if asked else code_files.git_top(folder.absolute())
    if not asked and top is None:
        say("bastion: no code goes along: this folder is in no git working tree (--bundle=DIR packs one)")
        return None
    try:
        exclude = [*call.flags.bundle_exclude, *_pattern_of(without, folder)]
        found = bundle.pack(folder, exclude=exclude, allow=call.flags.bundle_allow)
    except bundle.NothingToPack:
        if asked:
            raise
        say("bastion: no code goes along: git counts nothing in this folder (--bundle=DIR packs another)")
        return None
    if top is not None and not top.samefile(found.folder):
        whole = plain(str(top))
        say(f"bastion: of the git working tree {whole} only this folder goes along (all of it: --bundle={whole})")
    for number, what in enumerate(found.left_out):
        if number == _LEFT_OUT_NAMED:
            say(f"bastion: and {len(found.left_out) - number} more are left out of the bundle")
            break
        say(f"bastion: {plain(what)} is left out of the bundle")
    return found


def file_of_stdout() -> str:
    """Return the path of the file that stdout is redirected to; empty if it is none."""
    try:
        is_file = stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
        return str(Path(f"/proc/self/fd/{sys.stdout.fileno()}").readlink()) if is_file else ""
    except (OSError, ValueError):  # no such place on this system, or somebody has put something else there
        return ""


def _pattern_of(path: str, folder: Path) -> list[str]:
    if not path:
        return []
    try:
        inside = Path(path).resolve().relative_to(folder.resolve())
    except ValueError:
        return []
    # A slash binds the pattern to the folder's top.
    return [f"./{glob.escape(str(inside))}"]


def ensure_stored(call: Invocation, client: Client, url: str | None, *, spec_file: str) -> None:
    """Upload the code of a spec that `launch --dry_run` made, if it is not in the bucket.

    Args:
        url: The spec's `code_asset_path`.

    Raises:
        Refused: it is not in the bucket, and this folder does not have it.
        StoreError: it cannot be stored.
    """
    digest = bundles.digest_in(url or "")
    if not digest or url != f"{client.root.url}/{keys.bundle(digest)}" or client.store.head(keys.bundle(digest)):
        return
    bundle = packed(call, without=spec_file)
    if bundle is None or bundle.sha256 != digest:
        here = "there is no code here" if bundle is None else f"the code in {plain(str(bundle.folder))} is different"
        raise Refused(
            f"the code of this spec, {plain(url)}, is not in the bucket, and {here}; run bastion submit where bastion "
            "launch --dry_run ran, with the same --bundle flags, or make the spec again"
        )
    store(client, bundle)


def url_of(client: Client, bundle: Bundle) -> str:
    """What the job's `code_asset_path` is."""
    return f"{client.root.url}/{bundle.key}"


def store(client: Client, bundle: Bundle) -> None:
    """Uploads it, unless it is there, and says so in a line.

    Raises:
        StoreError: it cannot be stored.
    """
    from bastion.client.code.bundle import upload

    try:
        new = upload(client.store, bundle)
    except AccessDenied as error:
        raise AccessDenied(f"the code cannot be stored: {error}; --bundle=none launches without it") from error
    files = f"{bundle.files} file{'' if bundle.files == 1 else 's'} of {plain(str(bundle.folder))}"
    how = f"uploaded, {_size(len(bundle.data))}" if new else "in the bucket already"
    say(f"bastion: {files} {'goes' if bundle.files == 1 else 'go'} along ({how})")


def _size(count: int) -> str:
    return f"{count / (1024 * 1024):.1f} MiB" if count >= 1024 * 1024 else f"{-(-count // 1024)} KiB"
