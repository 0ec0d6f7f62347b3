"""Whether this daemon runs commands on its own host, and as which users (ADR 62)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from bastion import job_user
from bastion.adapters.bastion_host import BastionHostProvisioner
from bastion.core import limits
from bastion.core.errors import Refused
from bastion.core.model.bastion_host_jobs import BastionHostJobs, HostJobsMode, decide
from bastion.core.model.provisioning import Provisioning
from bastion.job_user import JobUser

# Users to take instead of `POOL`: names or UID:GID, comma-separated. Daemons of one machine must not share any.
JOB_USERS_VARIABLE = "BASTION_JOB_USERS"
# As deploy/startup.sh creates them: one for each command that may run at a time.
POOL = tuple(
    f"bastion-job-{number:02d}" for number in range(limits.BASTION_HOST_JOBS_MAX + limits.CLEANUP_COMMANDS_MAX)
)


class HostJobs:
    """Follows the setting, and tells the provisioner of the bastion's host.

    Args:
        directory: Where the provisioner keeps its gangs.
        default: What holds while the operator settings say nothing.
    """

    def __init__(
        self,
        provisioner: BastionHostProvisioner,
        directory: Path,
        *,
        default: HostJobsMode | None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self._provisioner = provisioner
        self._default = default
        self._users: Sequence[JobUser] = ()
        self._why_no_users = ""
        try:
            self._users = find_users(environ)
            _require_way(directory)
        except Refused as error:
            self._why_no_users = str(error)

    def __call__(self, provisioning: Provisioning | None) -> BastionHostJobs:
        setting = provisioning.bastion_host_jobs if provisioning is not None else None
        found = decide(setting, self._default, why_no_users=self._why_no_users)
        self._provisioner.run_commands(found.mode, self._users)
        return found


def find_users(environ: Mapping[str, str]) -> Sequence[JobUser]:
    """Return the users that commands may run as; raises Refused if there are none, or the daemon may not use them."""
    missing = job_user.missing_rights()
    if missing:
        raise Refused(f"the daemon is not root and has no {', '.join(missing)}")
    given = environ.get(JOB_USERS_VARIABLE, "")
    users = [job_user.resolve(text.strip()) for text in given.split(",")] if given else [*map(_of_pool, POOL)]
    if len({user.uid for user in users}) < len(users):
        raise Refused(f"{JOB_USERS_VARIABLE} names a user twice")
    return users


def _of_pool(name: str) -> JobUser:
    try:
        return job_user.resolve(name)
    except Refused as error:
        raise Refused(f"this machine has no users {POOL[0]} to {POOL[-1]}") from error


def _require_way(directory: Path) -> None:
    """Raise Refused unless every user can get to the folder, or this daemon can open the way."""
    for folder in directory.parents:
        try:
            found = folder.stat()
        except FileNotFoundError:
            continue  # the provisioner makes it
        except OSError as error:
            raise Refused(f"{folder} cannot be entered: {error.strerror}") from error
        if not found.st_mode & 0o001 and found.st_uid != os.geteuid():
            raise Refused(f"other users cannot enter {folder} (chmod o+x)")
