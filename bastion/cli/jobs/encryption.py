"""What a launched job encrypts: `--proxy`, or the setting of that name."""

from __future__ import annotations

from pathlib import PurePath

from absl import flags

from bastion.cli.command import Invocation
from bastion.cli.output import plain, say
from bastion.core.encryption.key_mapping import KeyMapping
from bastion.core.errors import Refused
from bastion.user_config.settings import settings
from bastion.wiring.roots import Root

_FLAG = "--proxy"


def define(values: flags.FlagValues) -> None:
    flags.DEFINE_multi_string(
        "proxy",
        [],
        "Encrypt what the job stores: BUCKET[/PREFIX]:KEY, where KEY is a Cloud KMS key name "
        "(projects/P/locations/L/keyRings/R/cryptoKeys/K). Separate several with commas, or repeat the flag. Default: "
        "the setting proxy; an empty value encrypts nothing.",
        flag_values=values,
    )


def chosen_mapping(call: Invocation) -> str:
    """The job's mapping; empty: no proxy. Raises `Refused` if it is malformed, or the job has no slice."""
    parts = [part for part in call.flags.proxy if part.strip()]
    if parts:
        mapping = ",".join(parts)
        KeyMapping.parse(mapping, called=_FLAG)
        if not call.flags.instance_type:
            raise Refused(f"{_FLAG} applies only to slice jobs; add --instance_type")
        return mapping
    # An empty --proxy overrides the setting, which is then not checked either.
    setting = "" if call.flags["proxy"].present else settings().get("proxy")
    if not setting:
        return ""
    KeyMapping.parse(setting, called="the setting proxy")
    if not call.flags.instance_type:
        say("bastion: nothing is encrypted: the setting proxy applies only to slice jobs")
        return ""
    return setting


def check_place(mapping: str, root: Root) -> None:
    """Refuse a mapping that covers the bastion's own folder, where hosts and daemon write plaintext.

    Raises:
        Refused: it does.
    """
    if not mapping or root.scheme == "s3":  # the proxy encrypts buckets of Cloud Storage
        return
    bucket, _, folder = root.url.removeprefix("gs://").partition("/")
    if root.local:
        # The bucket's name at this machine's storage endpoint.
        bucket, folder = PurePath(root.bucket).name, root.bastion
    entry = KeyMapping.parse(mapping).overlapping(bucket, f"{folder}/")
    if entry is not None:
        raise Refused(
            f"--proxy: {plain(entry.bucket)}/{plain(entry.prefix)} covers the bastion's own folder {root.url}, which "
            f"must stay unencrypted; use another prefix, like {entry.bucket}/checkpoints/"
        )
