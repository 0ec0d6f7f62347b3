"""Where a bastion's quota file lies: under its ROOT, or under one of its own in a private bucket.

Layer: cli.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.command import Invocation
from bastion.cli.connect import check_endpoint, open_client
from bastion.cli.output import plain, say
from bastion.cli.target import Target, config_path, read_config
from bastion.core.errors import Refused
from bastion.wiring.roots import Root, open_root, parse_root

if TYPE_CHECKING:
    from bastion.client.quota.upload import QuotaDesk


def define(values: flags.FlagValues) -> None:
    """The flag `--quota_root`."""
    flags.DEFINE_string(
        "quota_root",
        None,
        "ROOT of the quota file if it lies in a private bucket: PRIVATE_BUCKET/NAME-bastion, as the daemon was given "
        "it. Else the setting quota_root.",
        flag_values=values,
    )


def open_desk(call: Invocation) -> tuple[QuotaDesk, str]:
    """The quota file that the invocation means.

    Returns:
        The desk, and what a command shown to the user needs in order to reach the same file: flags, or nothing.

    Raises:
        Refused: there is no such bastion, or the private ROOT is another bastion's.
    """
    from bastion.client.quota.upload import QuotaDesk

    client, target = open_client(call)
    private = _private_root(call.flags.quota_root, target)
    if private is None:
        return QuotaDesk(client, client.store, target.root), target.suffix
    if private.local and not Path(private.bucket).is_dir():
        raise Refused(f"there is no folder {plain(private.bucket)}; create it, or correct --quota_root")
    check_endpoint(private)
    given = call.flags.quota_root is not None
    suffix = target.suffix + (f" --quota_root={shlex.quote(private.url)}" if given else "")
    return QuotaDesk(client, open_root(private.url), private), suffix


def _private_root(flag: str | None, target: Target) -> Root | None:
    """The quota file's own ROOT; None if it lies under the bastion's."""
    if flag == "":
        raise Refused("--quota_root is empty; give it a value or leave it out")
    url = read_config().get("quota_root") if flag is None else flag
    if url is None:
        return None
    root = parse_root(url)
    if root.bastion == target.root.bastion:
        return None if root == target.root else root
    if flag is None:
        say(f"bastion: the setting quota_root ({config_path()}) is {root.bastion}'s and is not used here")
        return None
    raise Refused(
        f"--quota_root={plain(url)} is for {root.bastion}, and the bastion is {target.root.bastion}: a private quota "
        f"file lies under PRIVATE_BUCKET/{target.root.bastion}"
    )
