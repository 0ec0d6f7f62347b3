"""The user id of new jobs, and the project they are charged to."""

from __future__ import annotations

import getpass
import re
from typing import TYPE_CHECKING

from bastion.core.bucket import keys
from bastion.core.errors import NotFound, Refused
from bastion.core.plain_text import plain
from bastion.user_config.settings import settings
from quota import QuotaFileError

if TYPE_CHECKING:
    from bastion.client import Client

_USER_MAX_CHARS = 128


def default_user() -> str:
    """The user config's `user_id`, else the login name, with unusual characters replaced. Raises Refused."""
    configured = settings().get("user_id")
    if configured:
        return configured
    try:
        login = getpass.getuser()
    except (OSError, KeyError, ImportError):  # depends on the version of Python
        login = ""
    user = re.sub(r"[^A-Za-z0-9._@+-]+", "-", login).strip("-")[:_USER_MAX_CHARS]
    if not user:
        raise Refused("this machine has no login name for you; use --user_id=NAME")
    return user


def choose_project(client: Client, user: str) -> str:
    """The user config's `project_id`, else the user's only project in the quota file.

    Raises Refused if the user has no project, or several; or if the quota file is missing or not valid.
    """
    configured = settings().get("project_id")
    if configured:
        return configured
    where = f"{client.root.url}/{keys.PROJECT_QUOTAS}"
    try:
        policy = client.policy()
    except NotFound as error:
        raise Refused(
            f"cannot determine your project: there is no quota file {where}; use --project_id=PROJECT, "
            "or ask the bastion's administrator to upload one (bastion quota upload FILE)"
        ) from error
    except QuotaFileError as error:
        raise Refused(
            f"cannot determine your project: the quota file {where} is not valid ({plain(error.problems[0])}); "
            "use --project_id=PROJECT, or ask its administrator to correct it (bastion quota check FILE)"
        ) from error
    projects = policy.projects_of(user)
    if len(projects) == 1:
        return projects[0]
    if projects:
        raise Refused(
            f"you ({plain(user)}) are a member of several projects: {', '.join(projects)}; "
            f"choose one with --project_id={projects[0]}"
        )
    known = ", ".join(policy.projects) or "none"
    raise Refused(
        f"you ({plain(user)}) are not a member of any project in the quota file {where} (its projects: {known}); "
        "ask its administrator to add you, or correct --user_id"
    )
