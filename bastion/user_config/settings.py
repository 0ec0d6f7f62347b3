"""The settings in force, and who set each.

From the highest to the lowest: flags (of the command line alone), the environment, the project's `.bastion.toml`, the
profile in use, the settings that all profiles of the user config share.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from bastion.core.plain_text import plain
from bastion.user_config.project_file import ProjectFile, read_project_file
from bastion.user_config.user_file import UserConfig, config_path, hidden_by, read_user_config

# Environment variables, with what they set.
ROOT_VARIABLE = "BASTION_ROOT"
PROFILE_VARIABLE = "BASTION_PROFILE"


@dataclass(frozen=True, slots=True)
class Setting:
    """A value, and who set it, in words: `$BASTION_ROOT`, or a path, with the profile's name if one has it."""

    value: str
    source: str


@dataclass(frozen=True, slots=True)
class Settings:
    """All levels, read once.

    Attributes:
        found: By key of the user config.
        profile: The profile in use, and who chose it; None: there is none.
    """

    found: dict[str, Setting]
    profile: Setting | None
    user: UserConfig
    project: ProjectFile

    def get(self, key: str) -> str:
        """The value; empty if nobody set it."""
        setting = self.found.get(key)
        return setting.value if setting else ""


def settings() -> Settings:
    """Read the environment and the files.

    Raises:
        Refused: a file is not valid, or names a profile that does not exist.
    """
    user = read_user_config()
    root = os.environ.get(ROOT_VARIABLE, "")
    # A job has its bastion in its environment, and the project's file in its folder, but none of the user's profiles.
    project = ProjectFile() if root else read_project_file(_here())
    profile = _profile(user, project)
    section = user.require(profile.value, profile.source) if profile else {}
    path = str(config_path())
    levels = [
        ({"root": root} if root else {}, f"${ROOT_VARIABLE}"),
        ({key: value for key, value in project.settings.items() if key != "profile"}, str(project.path)),
        (section, f"profile {profile.value} of {path}" if profile else path),
        (user.settings, path),
    ]
    found: dict[str, Setting] = {}
    hidden: set[str] = set()
    for values, source in levels:
        for key, value in values.items():
            if key not in hidden:
                found.setdefault(key, Setting(value, source))
        hidden |= hidden_by(values)
    return Settings(found=found, profile=profile, user=user, project=project)


def _profile(user: UserConfig, project: ProjectFile) -> Setting | None:
    named = os.environ.get(PROFILE_VARIABLE, "")
    if named:
        return Setting(named, f"${PROFILE_VARIABLE}")
    if "profile" in project.settings:
        return Setting(project.settings["profile"], plain(project.path))
    return Setting(user.active, str(config_path())) if user.active else None


def _here() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:  # it was deleted
        return Path("/")
