"""Who asks: the user id of new jobs, and the project they are charged to.

Layer: cli.
"""

from __future__ import annotations

import getpass
import re
from typing import TYPE_CHECKING

from bastion.cli.output import plain
from bastion.cli.target import read_config
from bastion.core.bucket import keys
from bastion.core.errors import NotFound, Refused
from quota import QuotaFileError

if TYPE_CHECKING:
    from bastion.client import Client

_USER_MAX_CHARS = 128


def default_user() -> str:
    """The config file's `user_id`, else the login name, without characters that no user id should have.

    Raises:
        Refused: the machine knows no name for this user.
    """
    configured = read_config().get("user_id")
    if configured:
        return configured
    try:
        login = getpass.getuser()
    except (OSError, KeyError, ImportError):  # which one depends on the version of Python
        login = ""
    user = re.sub(r"[^A-Za-z0-9._@+-]+", "-", login).strip("-")[:_USER_MAX_CHARS]
    if not user:
        raise Refused("this machine knows no name for you; give one with --user_id=NAME")
    return user


def choose_project(client: Client, user: str) -> str:
    """The config file's `project_id`, else the only project that the quota file gives the user.

    Raises:
        Refused: there is none, or more than one, or the quota file does not say.
    """
    configured = read_config().get("project_id")
    if configured:
        return configured
    where = f"{client.root.url}/{keys.PROJECT_QUOTAS}"
    try:
        policy = client.policy()
    except NotFound as error:
        raise Refused(
            f"your project is not known: there is no quota file {where}; give --project_id=PROJECT, "
            "or have the bastion's administrator put one there (bastion quota check FILE checks it)"
        ) from error
    except QuotaFileError as error:
        raise Refused(
            f"your project is not known: the quota file {where} is broken ({plain(error.problems[0])}); "
            "give --project_id=PROJECT, or have its administrator mend it (bastion quota check FILE shows all problems)"
        ) from error
    projects = policy.projects_of(user)
    if len(projects) == 1:
        return projects[0]
    if projects:
        raise Refused(
            f"you ({plain(user)}) belong to several projects: {', '.join(projects)}; "
            f"choose one with --project_id={projects[0]}"
        )
    known = ", ".join(policy.projects) or "none"
    raise Refused(
        f"you ({plain(user)}) are a member of no project in the quota file {where} (it has: {known}); "
        "have its administrator add you, or give the right name with --user_id"
    )
