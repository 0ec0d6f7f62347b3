"""Which bastion a command uses.

Precedence: flags, $BASTION_ROOT, the user config $BASTION_HOME/config.toml, the bastion on this machine. Values of one
level that contradict each other are refused: a job in the wrong bucket is worse than an error.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from absl import flags

from bastion.cli.output import plain
from bastion.cli.user_config import bastion_home, config_path, read_config
from bastion.core.errors import Refused
from bastion.wiring.roots import Root, local_root, parse_root


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The bastion that was chosen, and by what: `flags`, `$BASTION_ROOT`, the user config's path, or `default`."""

    root: Root
    source: str

    @property
    def is_default(self) -> bool:
        """Whether nothing is configured, so that it is the bastion on this machine."""
        return self.source == "default"

    @property
    def suffix(self) -> str:
        """What a displayed command needs to reach the same bastion: ` --root=...`, or nothing."""
        return f" --root={shlex.quote(self.root.url)}" if self.source == "flags" else ""


def resolve(values: flags.FlagValues) -> Target:
    """The bastion that the flags, the environment and the user config name.

    Raises Refused if they contradict each other, or name none.
    """
    for flag in ("root", "bastion", "bucket"):
        if values[flag].value == "":
            raise Refused(f"--{flag} is empty; give it a value or leave it out")
    config: Mapping[str, str] | None = None
    if values.root is not None or values.bastion is not None or values.bucket is not None:
        bucket = values.bucket
        if values.root is None and bucket is None:
            bucket = read_config().get("bucket")
        url = _url(values.root, values.bastion, bucket, "--")
        return Target(root=parse_root(url), source="flags")
    if os.environ.get("BASTION_ROOT"):
        return Target(root=parse_root(os.environ["BASTION_ROOT"]), source="$BASTION_ROOT")
    config = read_config()
    if "root" in config or "bastion" in config:
        url = _url(config.get("root"), config.get("bastion"), config.get("bucket"), f"{config_path()}: ")
        return Target(root=parse_root(url), source=str(config_path()))
    return Target(root=local_root(bastion_home()), source="default")


def _url(root: str | None, bastion: str | None, bucket: str | None, prefix: str) -> str:
    if root is not None:
        if bastion is None and (bucket is None or prefix != "--"):
            return root
        joined = _join(bucket, bastion) if bucket and bastion else None
        if joined is not None and parse_root(joined) == parse_root(root):
            return root
        raise Refused(f"{prefix}root and {prefix}bastion with {prefix}bucket name different bastions; give only one")
    if not bastion:
        raise Refused(f"{prefix}bucket requires {prefix}bastion=NAME, the bastion's name in that bucket")
    if not bucket:
        raise Refused(
            f"{prefix}bastion={plain(bastion)} requires {prefix}bucket=URL, the bastion's bucket "
            "(or: bastion config set bucket URL)"
        )
    if "/" in bastion:
        raise Refused(f"{prefix}bastion={plain(bastion)} must be a name without /; use --root for a URL")
    return _join(bucket, bastion)


def _join(bucket: str, bastion: str) -> str:
    return f"{bucket.rstrip('/')}/{bastion}"
