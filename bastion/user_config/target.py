"""Which bastion is meant.

Values of one level that contradict each other are refused: a job in the wrong bucket is worse than an error.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from bastion.core.errors import Refused
from bastion.core.plain_text import plain
from bastion.user_config.settings import Settings
from bastion.user_config.user_file import bastion_home, config_path
from bastion.wiring.roots import Root, local_root, parse_root


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The bastion that was chosen, and by what: `flags`, `$BASTION_ROOT`, a file (and profile), or `default`."""

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


def configured(found: Settings) -> Target:
    """The bastion that the environment and the files name, else the one on this machine.

    Raises:
        Refused: they contradict each other, or name none.
    """
    naming = found.found.get("root") or found.found.get("bastion")
    if naming is None:
        return Target(root=local_root(bastion_home()), source="default")
    names = (found.get(key) or None for key in ("root", "bastion", "bucket"))
    return Target(root=parse_root(url_of(*names, prefix=f"{config_path()}: ")), source=naming.source)


def url_of(root: str | None, bastion: str | None, bucket: str | None, *, prefix: str) -> str:
    """The ROOT that these name together; `prefix` stands before each key in the message of a refusal."""
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
