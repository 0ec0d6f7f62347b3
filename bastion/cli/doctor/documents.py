"""Examine what the bucket's documents say: quota file, settings, identities, the daemon's status and lease."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import bastion
from bastion.cli.admin import settings_warnings
from bastion.cli.doctor.finding import Report
from bastion.client.daemon_health import DaemonHealth
from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import InvalidDocument, NotFound
from bastion.core.instants import duration
from bastion.core.model import daemon_settings, identity, lease
from bastion.core.model.bastion_host_jobs import SETTING, HostJobsMode
from bastion.core.model.daemon_settings import SettingsError
from bastion.core.model.identity import Identity
from bastion.core.model.mode import Mode
from bastion.core.model.provisioning import Provisioning
from bastion.core.status.document import StatusDocument
from bastion.ports import ObjectStore, StoredObject
from quota import Policy, QuotaFileError, load

if TYPE_CHECKING:
    from bastion.client import Client

_ADMIN = "an administrator of the bastion"
# A daemon looks at the settings every five minutes, and at the quota file in every tick.
_TAKEN_WITHIN_SECONDS = 600.0
# Several renewals of the lease; more if this machine's clock is all there is to measure by.
_RENEWED_WITHIN_LOCAL_SECONDS = 15.0
_RENEWED_WITHIN_SECONDS = 120.0
_UNKNOWN_CLOCK_SECONDS = 300.0
_NAMED = 3


@dataclass(slots=True)
class Documents:
    """What could be read. `told`: what findings have said, so that the daemon's alarm does not say it again."""

    identity: Identity = identity.OPEN
    status: StatusDocument | None = None
    settings: Provisioning | None = None
    policy: Policy | None = None
    told: list[str] = field(default_factory=list)

    @property
    def mode(self) -> Mode:
        """A bastion that has inboxes keeps them until its daemon says otherwise."""
        in_force = self.status.mode if self.status is not None else Mode.OPEN.value
        return Mode.INBOX if Mode.INBOX in (self.identity.mode, in_force) else Mode.OPEN

    @property
    def hosts(self) -> frozenset[str]:
        if self.settings is None:
            return frozenset()
        given = [one.service_account for one in self.settings.resource_types.values()]
        given += [one.service_account for one in self.settings.projects.values()]
        return frozenset(f"serviceAccount:{account}" for account in given if account)


def examine(report: Report, client: Client, *, now: float, clock_known: bool, shared: bool, start: str) -> Documents:
    """Read and judge each document.

    Args:
        now: The bucket's time, or this machine's.
        clock_known: Whether it is the bucket's.
        shared: Whether several people use the bastion.
        start: How a daemon is started.
    """
    found = Documents()
    with report.may_skip(keys.STATUS, _ADMIN):
        _read_status(report, client, found)
    with report.may_skip(keys.IDENTITY, _ADMIN):
        _identity(report, client, found, now)
    with report.may_skip("the quota file", _ADMIN):
        _quota(report, client, found, now)
    with report.may_skip(keys.DAEMON_SETTINGS, _ADMIN):
        _settings(report, client, found)
    with report.may_skip("the lease", _ADMIN):
        _daemon_runs(report, client, now=now, clock_known=clock_known, start=start)
    if found.status is not None:
        _daemon(report, found.status, found, shared=shared or found.mode is Mode.INBOX)
    return found


def _read_status(report: Report, client: Client, found: Documents) -> None:
    try:
        found.status = client.status()
    except InvalidDocument as error:
        report.error(
            f"{keys.STATUS} is not valid: {error}",
            why="list, why and launch read it",
            remedy="upgrade this command; if somebody overwrote it, the daemon writes it again with the next change",
        )
        return
    if found.status is None:
        report.skip("what the daemon says", f"there is no {keys.STATUS}: no daemon has published one")


def _identity(report: Report, client: Client, found: Documents, now: float) -> None:
    stored = _stored(client.store, keys.IDENTITY, limits.DOCUMENT_MAX_BYTES)
    if stored is None:
        if found.mode is Mode.INBOX:
            found.identity = _last_good(client)
            report.error(
                f"there is no {keys.IDENTITY}, although the daemon takes jobs from inboxes",
                why="the daemon keeps the last good one; a new user cannot be added to it",
                remedy=f"restore it from {keys.IDENTITY_IN_FORCE}",
            )
        return
    try:
        found.identity = identity.read(stored.data)
    except InvalidDocument as error:
        found.told.append(keys.IDENTITY)
        found.identity = _last_good(client)
        report.error(
            f"{keys.IDENTITY} is not valid: {error}",
            why="the daemon keeps the last good one, so changes of users have no effect",
            remedy=f"correct it, or restore it from {keys.IDENTITY_IN_FORCE}",
        )
        return
    in_force = found.status.mode if found.status is not None else found.identity.mode
    if in_force != found.identity.mode and now - stored.meta.updated > _TAKEN_WITHIN_SECONDS:
        report.error(
            f"{keys.IDENTITY} says {found.identity.mode.value}, but the daemon is in mode {in_force}",
            why=f"the daemon has not taken a file that is {duration(now - stored.meta.updated)} old",
            remedy="upgrade or restart the daemon, and look at `bastion admin inbox status`",
        )


def _last_good(client: Client) -> Identity:
    """The identities in force: without them each inbox would be one that the bastion does not know."""
    stored = _stored(client.store, keys.IDENTITY_IN_FORCE, limits.DOCUMENT_MAX_BYTES)
    try:
        return identity.read(stored.data) if stored is not None else identity.OPEN
    except InvalidDocument:
        return identity.OPEN


def _quota(report: Report, client: Client, found: Documents, now: float) -> None:
    from bastion.wiring.roots import open_root

    said = found.status.quota if found.status is not None else None
    place = said.root if said is not None and said.root else client.root.url
    store = client.store if place == client.root.url else open_root(place)
    shown = f"{place}/{keys.PROJECT_QUOTAS}"
    stored = _stored(store, keys.PROJECT_QUOTAS, limits.QUOTA_FILE_MAX_BYTES)
    if said is not None:
        found.told.append(said.problem)
    if stored is None:
        report.error(
            f"there is no quota file {shown}",
            why="nobody is a member of a project, so no job starts",
            remedy="bastion quota upload FILE",
        )
        return
    try:
        found.policy = load(stored.data)
    except QuotaFileError as error:
        more = f" and {len(error.problems) - _NAMED} more" if len(error.problems) > _NAMED else ""
        report.error(
            f"the quota file {shown} is not valid: {'; '.join(str(one) for one in error.problems[:_NAMED])}{more}",
            why="the daemon uses the last good one, or starts no job if there is none",
            remedy="correct it, try it with `bastion quota check FILE`, and upload it with `bastion quota upload FILE`",
        )
        return
    age = now - stored.meta.updated
    taken = said is None or (said.in_force and said.generation == stored.meta.generation)
    if said is not None and not taken and age > _TAKEN_WITHIN_SECONDS:
        report.error(
            f"the quota file {shown} is not in force",
            why=f"it is {duration(age)} old, and the daemon {said.problem or 'has not taken it'}",
            remedy="restart the daemon, and look at its log: bastion list shows its alarms",
        )
    if found.mode is Mode.INBOX and not (found.policy.admins.bastion or any(found.policy.admins.projects.values())):
        report.warning(
            f"the quota file {shown} names no admins",
            why="with inboxes, nobody but its submitter can cancel a job",
            remedy="bastion admin project-admin add NAME --all_projects",
        )


def _settings(report: Report, client: Client, found: Documents) -> None:
    stored = _stored(client.store, keys.DAEMON_SETTINGS, limits.DOCUMENT_MAX_BYTES)
    if stored is None:
        return
    try:
        found.settings = daemon_settings.load(stored.data)
    except SettingsError as error:
        found.told.append(keys.DAEMON_SETTINGS)
        more = f" and {len(error.problems) - _NAMED} more" if len(error.problems) > _NAMED else ""
        report.error(
            f"{keys.DAEMON_SETTINGS} is not valid: {'; '.join(str(one) for one in error.problems[:_NAMED])}{more}",
            why="the daemon keeps using the last valid settings",
            remedy="correct it, and try it with `bastion daemon check-config FILE`",
        )
        return
    for text in settings_warnings.warnings(found.settings, found.policy):
        found.told.append(text)
        report.warning(
            f"{keys.DAEMON_SETTINGS}: {text}",
            why="jobs wait for what the settings do not give",
            remedy="correct it, and try it with `bastion daemon check-config FILE`",
        )


def _daemon_runs(report: Report, client: Client, *, now: float, clock_known: bool, start: str) -> None:
    local = client.root.local
    problem = DaemonHealth(client.store, client.clock, local=local).look()
    stored = _stored(client.store, keys.LEASE, limits.LEASE_MAX_BYTES)
    if stored is None:
        problem = "no daemon has ever run here"
    elif not problem:
        try:
            lease.read(stored.data)
        except InvalidDocument as error:
            problem = str(error)
        age = now - stored.meta.updated
        patience = _RENEWED_WITHIN_LOCAL_SECONDS if local else _RENEWED_WITHIN_SECONDS
        if age > patience + (0.0 if clock_known or local else _UNKNOWN_CLOCK_SECONDS):
            problem = f"the daemon has not renewed its lease for {duration(age)}"
    if problem:
        report.error(
            problem,
            why="jobs do not start or end until a daemon runs",
            remedy=f"{start}; where systemd runs it: systemctl restart bastion",
        )


def _daemon(report: Report, status: StatusDocument, found: Documents, *, shared: bool) -> None:
    version = status.daemon.version
    if version and version != bastion.__version__:
        report.warning(
            f"the daemon has version {version}, and this command {bastion.__version__}",
            why="the older one does not know everything that the newer one writes",
            remedy="install the same version in both places",
        )
    jobs = status.daemon.bastion_host_jobs
    if shared and (jobs is None or jobs.mode == HostJobsMode.AS_DAEMON.value):
        report.error(
            "commands on the bastion's own host run as the daemon"
            + (f" ({jobs.reason})" if jobs is not None and jobs.reason else ""),
            why="each user's job there has all rights of the daemon",
            remedy=f'set {SETTING} = "own-user" or "off" in {keys.DAEMON_SETTINGS}'
            + ("" if jobs is not None else ", after an upgrade of the daemon"),
        )
    for alarm in status.alarms:
        if not any(told and (told in alarm or alarm in told) for told in found.told):
            report.warning(
                f"the daemon's alarm: {alarm}",
                why="the daemon shows it until its cause is gone",
                remedy=f"do what it says; the daemon's log has more: logs/{status.bastion or 'NAME-bastion'}",
            )


def _stored(store: ObjectStore, key: str, most: int) -> StoredObject | None:
    try:
        return store.get(key, max_bytes=most)
    except NotFound:
        return None
