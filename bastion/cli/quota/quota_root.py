"""Where a bastion's quota file is: under its ROOT, or under a ROOT of its own in a private bucket."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from absl import flags

from bastion.cli.command import Invocation
from bastion.cli.connect import check_endpoint, open_client
from bastion.cli.output import plain, say
from bastion.core.errors import Refused
from bastion.user_config.settings import settings
from bastion.user_config.target import Target
from bastion.wiring.roots import Root, open_root, parse_root

if TYPE_CHECKING:
    from bastion.client.quota.upload import QuotaClient


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "quota_root",
        None,
        "ROOT of the quota file if it is in a private bucket: PRIVATE_BUCKET/NAME-bastion, as given to the daemon. "
        "Default: quota_root in your config.",
        flag_values=values,
    )


def open_quota_client(call: Invocation) -> tuple[QuotaClient, str]:
    """Open the quota file that the invocation names; return also the flags that reach the same file in another command.

    Raises Refused if there is no such bastion, or the private ROOT is another bastion's.
    """
    from bastion.client.quota.upload import QuotaClient

    client, target = open_client(call)
    private = _private_root(call.flags.quota_root, target)
    if private is None:
        return QuotaClient(client, client.store, target.root), target.suffix
    if private.local and not Path(private.bucket).is_dir():
        raise Refused(f"no such folder: {plain(private.bucket)}; create it, or correct --quota_root")
    check_endpoint(private)
    given = call.flags.quota_root is not None
    suffix = target.suffix + (f" --quota_root={shlex.quote(private.url)}" if given else "")
    return QuotaClient(client, open_root(private.url), private), suffix


def _private_root(flag: str | None, target: Target) -> Root | None:
    """The quota file's own ROOT; None if it is under the bastion's."""
    if flag == "":
        raise Refused("--quota_root is empty; give it a value or leave it out")
    setting = settings().found.get("quota_root") if flag is None else None
    url = setting.value if setting is not None else flag
    if url is None:
        return None
    root = parse_root(url)
    if root.bastion == target.root.bastion:
        return None if root == target.root else root
    if setting is not None:
        say(f"bastion: ignoring quota_root in {setting.source}: it is for {root.bastion}")
        return None
    raise Refused(
        f"--quota_root={plain(url)} is for {root.bastion}, but the bastion is {target.root.bastion}; its private quota "
        f"file must be under PRIVATE_BUCKET/{target.root.bastion}"
    )
