"""The user config `$BASTION_HOME/config.toml`: the defaults of one user's commands."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import tomli

from bastion.cli.output import plain
from bastion.core.errors import Refused

# Keys of the config file, with their meaning.
CONFIG_KEYS = {
    "root": "the bastion's folder, gs://BUCKET/NAME-bastion, s3://BUCKET/NAME-bastion or a local one",
    "bastion": "the bastion's name; use it with bucket, instead of root",
    "bucket": "the bastion's bucket; also completes --bastion=NAME",
    "quota_root": "the quota file's root, if it is in a private bucket: gs://BUCKET/NAME-bastion or a local folder",
    "project_id": "project that launch uses without --project_id",
    "user_id": "user that launch uses without --user_id",
    "inbox": "inbox that your jobs and requests go to, if it is not yours (a project's)",
    "proxy": "what slice jobs encrypt without --proxy: BUCKET[/PREFIX]:KEY,... where KEY is a Cloud KMS key name",
}


def bastion_home() -> Path:
    """The folder of everything local: $BASTION_HOME, or `bastion` in the XDG data folder. Absolute; may not exist."""
    home = os.environ.get("BASTION_HOME")
    if home:
        return Path(os.path.abspath(Path(home).expanduser()))  # noqa: PTH100 - keeps symlinks as the user wrote them
    data = os.environ.get("XDG_DATA_HOME", "")
    # By the XDG specification a relative path counts as unset.
    base = Path(data) if data.startswith("/") else Path("~/.local/share").expanduser()
    return base / "bastion"


def config_path() -> Path:
    return bastion_home() / "config.toml"


def read_config() -> Mapping[str, str]:
    """The user config; empty without a file. Raises Refused if it is not TOML, or has an unknown key or a bad value."""
    path = config_path()
    try:
        document = tomli.loads(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError) as error:  # tomli's error is a ValueError, as is that of huge integers
        why = str(error) or "it nests too deeply"
        raise Refused(f"{path} is not valid TOML ({why}); correct or delete it") from error
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


def _toml_string(text: str) -> str:
    escaped = "".join(
        f"\\u{ord(char):04x}" if ord(char) < 0x20 or ord(char) == 0x7F else "\\" + char if char in '"\\' else char
        for char in text
    )
    return f'"{escaped}"'
