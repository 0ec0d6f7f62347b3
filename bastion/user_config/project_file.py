"""The project's `.bastion.toml`: what everybody who works in a repository takes for granted.

Such a file comes with other people's code. So it may choose among the user's own profiles, and never says where code,
data and secrets go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bastion.core.errors import Refused
from bastion.core.plain_text import plain
from bastion.user_config.user_file import CONFIG_KEYS, read_toml

FILE = ".bastion.toml"
# Keys that it may have, with their meaning.
PROJECT_KEYS = {
    "profile": "the profile of the user config to use here",
    "project_id": "project that launch uses without --project_id",
}


@dataclass(frozen=True, slots=True)
class ProjectFile:
    """The file.

    Attributes:
        path: None: there is no file.
    """

    path: Path | None = None
    settings: Mapping[str, str] = field(default_factory=dict)


def read_project_file(folder: Path) -> ProjectFile:
    """The nearest file of the folder and those above it up to the repository's; outside of a repository, the folder's.

    Raises:
        Refused: it is not TOML, or says what such a file may not say.
    """
    path = _find(folder)
    if path is None:
        return ProjectFile()
    found: dict[str, str] = {}
    for key, value in read_toml(path).items():
        if key in CONFIG_KEYS and key not in PROJECT_KEYS:
            raise Refused(
                f"{plain(path)}: a file that comes with code may not set {key}, which says where your jobs go or who "
                f"you are; set it in a profile of yours (bastion config set --profile=NAME {key} ...), and name that "
                'here: profile = "NAME"'
            )
        if key not in PROJECT_KEYS:
            raise Refused(f"{plain(path)}: unknown key {plain(key)!r}; the keys are {', '.join(PROJECT_KEYS)}")
        if not isinstance(value, str) or not value:
            raise Refused(f'{plain(path)}: {key} must be a non-empty string, like {key} = "..."')
        found[key] = value
    return ProjectFile(path=path, settings=found)


def _find(folder: Path) -> Path | None:
    folders = [folder, *folder.parents]
    top = next((each for each in folders if (each / ".git").exists()), folder)
    for each in folders:
        if (each / FILE).is_file():
            return each / FILE
        if each == top:
            break
    return None
