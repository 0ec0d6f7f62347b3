"""What a launched job stores encrypted: `--proxy`, or the setting of that name.

Layer: cli.
"""

from __future__ import annotations

from pathlib import PurePath

from absl import flags

from bastion.cli.command import Invocation
from bastion.cli.output import plain, say
from bastion.cli.target import read_config
from bastion.core.encryption.key_mapping import KeyMapping
from bastion.core.errors import Refused
from bastion.wiring.roots import Root

_FLAG = "--proxy"


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_multi_string(
        "proxy",
        [],
        "Encrypts what the job stores: BUCKET[/PREFIX]:KEY with a KEY as Cloud KMS names it "
        "(projects/P/locations/L/keyRings/R/cryptoKeys/K), several with commas, or once for each. Without it the "
        "setting proxy counts; an empty one encrypts nothing.",
        flag_values=values,
    )


def chosen(call: Invocation) -> str:
    """The mapping for the job; empty: it has no proxy.

    Raises:
        Refused: it is malformed, or the job is none that could have one.
    """
    parts = [part for part in call.flags.proxy if part.strip()]
    if parts:
        mapping = ",".join(parts)
        KeyMapping.parse(mapping, called=_FLAG)
        if not call.flags.instance_type:
            raise Refused(f"{_FLAG} needs --instance_type: only on slices the proxy runs beside the command")
        return mapping
    # Not a word about a setting that the user has just set aside.
    setting = "" if call.flags["proxy"].present else read_config().get("proxy", "")
    if not setting:
        return ""
    KeyMapping.parse(setting, called="the setting proxy")
    if not call.flags.instance_type:
        say("bastion: the setting proxy does not count for a job without --instance_type; nothing is encrypted")
        return ""
    return setting


def check_place(mapping: str, root: Root) -> None:
    """Refuses a mapping that reaches into the bastion's own folder: what hosts and daemon write there is plaintext.

    Raises:
        Refused: it does.
    """
    if not mapping:
        return
    bucket, _, folder = root.url.removeprefix("gs://").partition("/")
    if root.local:
        # So the storage endpoint of this machine names it.
        bucket, folder = PurePath(root.bucket).name, root.bastion
    entry = KeyMapping.parse(mapping).overlapping(bucket, f"{folder}/")
    if entry is not None:
        raise Refused(
            f"the proxy's mapping: {plain(entry.bucket)}/{plain(entry.prefix)} takes in the bastion's own folder "
            f"{root.url}, which is read and written as it is; name a prefix beside it, like {entry.bucket}/checkpoints/"
        )
