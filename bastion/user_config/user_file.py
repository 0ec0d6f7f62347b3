"""The user config `$BASTION_HOME/config.toml`: defaults, and profiles which override them."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tomli

from bastion.core.errors import Refused
from bastion.core.plain_text import plain

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
# Two ways to name the bastion: a level that has one hides the other one of the levels below.
_HIDES = {"root": "bastion", "bastion": "root"}

# Far beyond any config; the project's comes with other people's code.
_MAX_BYTES = 1024 * 1024

_PROFILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class UserConfig:
    """The file.

    Attributes:
        settings: By key, for all profiles.
        profiles: By name, settings which override `settings`.
        active: The profile in use; empty: none.
    """

    settings: Mapping[str, str] = field(default_factory=dict)
    profiles: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    active: str = ""

    def section(self, profile: str) -> Mapping[str, str]:
        """The settings of that profile, or the common ones if it is empty."""
        return self.profiles.get(profile, {}) if profile else self.settings

    def require(self, profile: str, named_by: str) -> Mapping[str, str]:
        """The settings of that profile. Raises Refused if there is none; `named_by` says who wants it."""
        if profile not in self.profiles:
            known = ", ".join(self.profiles) or "none"
            raise Refused(
                f"{named_by} names the profile {plain(profile)!r}, and {config_path()} has no such profile (its "
                f"profiles: {known}); make it: bastion config set --profile={plain(profile)} root URL"
            )
        return self.profiles[profile]


def hidden_by(settings: Mapping[str, str]) -> set[str]:
    """The keys of lower levels that do not count beside these settings."""
    return {_HIDES[key] for key in settings if key in _HIDES} - settings.keys()


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


def read_user_config() -> UserConfig:
    """The user config; empty without a file. Raises Refused if it is not TOML, or has an unknown key or a bad value."""
    path = config_path()
    document = dict(read_toml(path))
    active = document.pop("profile", "")
    profiles = document.pop("profiles", {})
    if not isinstance(active, str):
        raise Refused(f'{path}: profile must be a string, like profile = "team"')
    if not isinstance(profiles, Mapping) or not all(isinstance(each, Mapping) for each in profiles.values()):
        raise Refused(f'{path}: profiles must be tables, like [profiles.team] with root = "..."')
    return UserConfig(
        settings=_checked(document, f"{path}: "),
        profiles={
            check_profile(name, f"{path}: "): _checked(section, f"{path}: [profiles.{plain(name)}]: ")
            for name, section in profiles.items()
        },
        active=active,
    )


def read_toml(path: Path) -> Mapping[str, object]:
    """The document; empty without a file. Raises Refused if it cannot be read."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise Refused(f"{plain(path)} is longer than {_MAX_BYTES} bytes; correct or delete it")
        return tomli.loads(data.decode("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Refused(f"cannot read {plain(path)}: {error.strerror}; correct or delete it") from error
    except (ValueError, RecursionError) as error:  # tomli's error is a ValueError, as is that of huge integers
        why = str(error) or "it nests too deeply"
        raise Refused(f"{plain(path)} is not valid TOML ({plain(why)}); correct or delete it") from error


def _checked(section: Mapping[str, object], where: str) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for key, value in section.items():
        if key not in CONFIG_KEYS:
            raise Refused(f"{where}unknown config key {plain(key)!r}; the keys are {', '.join(CONFIG_KEYS)}")
        if not isinstance(value, str) or not value:
            raise Refused(f'{where}{key} must be a non-empty string, like {key} = "..."')
        found[key] = value
    return found


def check_profile(name: str, where: str = "") -> str:
    """The name. Raises Refused if a profile cannot have it; `where` begins the message."""
    if not _PROFILE.fullmatch(name):
        raise Refused(
            f"{where}{plain(name)!r} is no name of a profile: 1 to 63 letters, digits, '.', '_' and '-', with a letter "
            "or a digit first"
        )
    return name


def write_user_config(config: UserConfig) -> None:
    """Replace the user config atomically. A profile without settings is left out."""
    path = config_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [f"profile = {_toml_string(config.active)}\n"] if config.active else []
    lines += _section(config.settings)
    for name, section in config.profiles.items():
        if section:
            lines += [f"\n[profiles.{_toml_string(name)}]\n", *_section(section)]
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=".config-")
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("".join(lines))
    Path(temporary).replace(path)


def _section(settings: Mapping[str, str]) -> list[str]:
    return [f"{key} = {_toml_string(settings[key])}\n" for key in CONFIG_KEYS if key in settings]


def _toml_string(text: str) -> str:
    escaped = "".join(
        f"\\u{ord(char):04x}" if ord(char) < 0x20 or ord(char) == 0x7F else "\\" + char if char in '"\\' else char
        for char in text
    )
    return f'"{escaped}"'
