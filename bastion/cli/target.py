"""Which bastion a command uses, and where this user's files are.

Precedence: flags, $BASTION_ROOT, the user config $BASTION_HOME/config.toml, the bastion on this machine. Values of one
level that contradict each other are refused: a job in the wrong bucket is worse than an error.
"""

from __future__ import annotations

import os
import shlex
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import tomli
from absl import flags

from bastion.cli.output import plain
from bastion.core.errors import Refused
from bastion.wiring.roots import Root, parse_root

LOCAL_BASTION = "local-bastion"
# Keys of the config file, with their meaning.
CONFIG_KEYS = {
    "root": "the bastion's folder, gs://BUCKET/NAME-bastion or a local one",
    "bastion": "the bastion's name; use it with bucket, instead of root",
    "bucket": "the bastion's bucket; also completes --bastion=NAME",
    "quota_root": "the quota file's root, if it is in a private bucket: gs://BUCKET/NAME-bastion or a local folder",
    "project_id": "project that launch uses without --project_id",
    "user_id": "user that launch uses without --user_id",
    "proxy": "what slice jobs encrypt without --proxy: BUCKET[/PREFIX]:KEY,... where KEY is a Cloud KMS key name",
}


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


def bastion_home() -> Path:
    """The folder of everything local: $BASTION_HOME, or `bastion` in the XDG data folder. Absolute; may not exist."""
    home = os.environ.get("BASTION_HOME")
    if home:
        return Path(os.path.abspath(Path(home).expanduser()))  # noqa: PTH100 - keeps symlinks as the user wrote them
    data = os.environ.get("XDG_DATA_HOME", "")
    # By the XDG specification a relative path counts as unset.
    base = Path(data) if data.startswith("/") else Path("~/.local/share").expanduser()
    return base / "bastion"


def local_root_url() -> str:
    return str(bastion_home() / "buckets" / "permanent" / LOCAL_BASTION)


def config_path() -> Path:
    return bastion_home() / "config.toml"


def read_config() -> Mapping[str, str]:
    """The user config; empty without a file. Raises Refused if it is not TOML, or has an unknown key or a bad value."""
    path = config_path()
    try:
        document = tomli.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        return {}
    except (tomli.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(f"{path} is not valid TOML ({error}); correct or delete it") from error
    for key, value in document.items():
        if key not in CONFIG_KEYS:
            raise Refused(f"{path}: unknown config key {plain(key)!r}; the keys are {', '.join(CONFIG_KEYS)}")
        if not isinstance(value, str) or not value:
            raise Refused(f'{path}: {key} must be a non-empty string, like {key} = "..."')
    return document


def write_config(config: Mapping[str, str]) -> None:
    """Replace the user config atomically."""
    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{key} = {_toml_string(config[key])}\n" for key in CONFIG_KEYS if key in config)
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".config-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    Path(temporary).replace(path)


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
    return Target(root=parse_root(local_root_url()), source="default")


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


def _toml_string(text: str) -> str:
    escaped = "".join(
        f"\\u{ord(char):04x}" if ord(char) < 0x20 or ord(char) == 0x7F else "\\" + char if char in '"\\' else char
        for char in text
    )
    return f'"{escaped}"'
