"""Which bastion a command uses: the flags', else the configured one (`bastion.user_config`)."""

from __future__ import annotations

from absl import flags

from bastion.core.errors import Refused
from bastion.user_config.settings import settings
from bastion.user_config.target import Target, configured, url_of
from bastion.wiring.roots import parse_root


def resolve(values: flags.FlagValues) -> Target:
    """The bastion that the flags, the environment and the files name, in this order.

    Raises Refused if they contradict each other, or name none.
    """
    for flag in ("root", "bastion", "bucket"):
        if values[flag].value == "":
            raise Refused(f"--{flag} is empty; give it a value or leave it out")
    if values.root is None and values.bastion is None and values.bucket is None:
        return configured(settings())
    bucket = values.bucket
    if values.root is None and bucket is None:
        bucket = settings().get("bucket") or None
    return Target(root=parse_root(url_of(values.root, values.bastion, bucket, prefix="--")), source="flags")
