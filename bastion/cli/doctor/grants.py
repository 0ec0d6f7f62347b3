"""Judge the IAM policies of a bucket and its managed folders by who should be able to do what.

Who is who comes from the bindings: whoever may write the whole ROOT is the daemon or an administrator, whoever may
write heartbeats is a host, everybody else is a user. Conditions count as if they held, except three of hosts.
"""

from __future__ import annotations

import enum
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bastion.cli.doctor.finding import Finding, Severity
from bastion.core.bucket import keys
from bastion.core.model.mode import Mode


class Right(enum.Flag):
    NONE = 0
    READ = enum.auto()
    CREATE = enum.auto()
    REPLACE = enum.auto()  # overwrite and delete
    GRANT = enum.auto()  # change policies


_WRITE = Right.READ | Right.CREATE | Right.REPLACE
_CHANGES = Right.CREATE | Right.REPLACE | Right.GRANT
_ALL = _WRITE | Right.GRANT

# From Google's page "IAM roles for Cloud Storage", and deploy/roles: custom roles count by their names.
_ROLES = {
    "roles/storage.objectViewer": Right.READ,
    "roles/storage.objectCreator": Right.CREATE,
    "roles/storage.objectUser": _WRITE,
    "roles/storage.objectAdmin": _WRITE,
    "roles/storage.folderAdmin": _ALL,
    "roles/storage.admin": _ALL,
    "roles/storage.legacyObjectReader": Right.READ,
    "roles/storage.legacyObjectOwner": Right.READ | Right.GRANT,
    "roles/storage.legacyBucketReader": Right.READ,
    "roles/storage.legacyBucketWriter": _WRITE,
    "roles/storage.legacyBucketOwner": _ALL,
    "bastionReader": Right.READ,
    "bastionCreator": Right.CREATE,
    "bastionWriter": _WRITE,
    "bastionAdmin": Right.GRANT,
    "bastionProvisioner": Right.NONE,
}
_EVERYBODY = ("allUsers", "allAuthenticatedUsers")
_OF_NEW_BUCKETS = ("projectEditor:", "projectViewer:")
_OWNERS = "projectOwner:"

USERS_WRITE = {"benchmarks/": _WRITE, "bundles/": Right.READ | Right.CREATE}
_USERS_WRITE_OPEN = {
    keys.JOBS_ACTIVE: _WRITE,
    keys.JOBS_USER_STATES: _WRITE,
    keys.REQUESTS: Right.READ | Right.CREATE,
}
_HOSTS = {
    "": Right.NONE,
    keys.RUNS: Right.READ,
    keys.JOBS_CLAIMS: Right.READ | Right.CREATE,
    keys.BEATS: _WRITE,
    "logs/": Right.READ,
    "outputs/": _WRITE,
    "bundles/": Right.READ,
    "agents/": Right.READ,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """One member of one binding.

    Attributes:
        folder: Relative to the ROOT, with "/" at its end; empty: the ROOT itself.
        around: URL of the managed folder if it is one around the ROOT.
    """

    folder: str
    role: str
    member: str
    condition: str = ""
    around: str = ""

    @property
    def rights(self) -> Right | None:
        """None: a role of which nothing is known here."""
        return rights_of(self.role)


def rights_of(role: str) -> Right | None:
    found = _ROLES.get(role)
    if found is None and not role.startswith("roles/"):
        return _ROLES.get(role.rpartition("/")[2])
    if found is None and role.startswith("roles/") and not role.startswith("roles/storage."):
        return Right.NONE
    return found


def grants(folder: str, bindings: Iterable[Mapping[str, Any]], *, around: str = "") -> Iterator[Grant]:
    for one in bindings:
        for member in sorted(one.get("members", ())):
            expression = str((one.get("condition") or {}).get("expression", ""))
            role = str(one.get("role", ""))
            yield Grant(folder=folder, role=role, member=str(member), condition=expression, around=around)


def unknown_roles(found: Iterable[Grant]) -> list[str]:
    return sorted({one.role for one in found if one.rights is None})


def users_table(mode: Mode) -> dict[str, Right]:
    open_ones = _USERS_WRITE_OPEN if mode is Mode.OPEN else {}
    return {"": Right.READ, **USERS_WRITE, **open_ones}


def allowed(table: Mapping[str, Right], folder: str) -> Right:
    """By the innermost folder of the table around it."""
    return table[max((name for name in table if folder.startswith(name)), key=len)]


def on_bucket(url: str, found: Sequence[Grant], mode: Mode) -> Iterator[Finding]:
    """What bindings on the bucket itself give, which no managed folder takes away."""
    write = Severity.ERROR if mode is Mode.INBOX else Severity.WARNING
    yield from public(url, found)
    news = [one for one in found if one.member.startswith(_OF_NEW_BUCKETS)]
    if news:
        who = sorted({one.member for one in news})
        yield Finding(
            severity=write if any(_changes(one) for one in news) else Severity.WARNING,
            what=f"{' and '.join(who)} have the roles of new buckets on {url}",
            why="every editor of the project may write each object, and every viewer reads them, whatever the policies "
            "of managed folders say",
            remedy="; ".join(_take_from_bucket(url, one) for one in news),
        )
    for member, theirs in _by_member(found).items():
        if member.startswith((*_OF_NEW_BUCKETS, _OWNERS)) or member in _EVERYBODY:
            continue
        rights = _sum(theirs)
        if not rights:
            continue
        yield Finding(
            severity=write if rights & _CHANGES else Severity.WARNING,
            what=f"{member} may {_told(rights)} every object of {url} ({_roles(theirs)} on the bucket)",
            why="a role on the bucket holds for everything in it, whatever the policies of managed folders say",
            remedy="; ".join(_take_from_bucket(url, one) for one in theirs),
        )


def on_project(project: str, url: str, found: Sequence[Grant], mode: Mode) -> Iterator[Finding]:
    """What bindings on the project give for each of its buckets. Its owners may do everything anyway."""
    for member, theirs in _by_member(one for one in found if one.rights).items():
        rights = _sum(theirs)
        yield Finding(
            severity=Severity.ERROR if mode is Mode.INBOX and rights & _CHANGES else Severity.WARNING,
            what=f"{member} may {_told(rights)} every object of {url} ({_roles(theirs)} on the project)",
            why="a role on the project holds for all of its buckets, whatever the policies of managed folders say",
            remedy="; ".join(
                f"gcloud projects remove-iam-policy-binding {shlex.quote(project)} --member={shlex.quote(one.member)} "
                f"--role={shlex.quote(one.role)}"
                for one in theirs
            ),
        )


def on_folders(root_url: str, found: Sequence[Grant], mode: Mode, *, hosts: frozenset[str]) -> Iterator[Finding]:
    """What bindings on managed folders of a ROOT give beyond the roles of their members.

    Inboxes of one user are left to `bastion.ports.InboxRights`. `hosts`: members that are known to be hosts' accounts.
    """
    yield from public(root_url, found)
    found = [one for one in found if one.member not in _EVERYBODY]
    hosts |= {one.member for one in found if one.folder == keys.BEATS and Right.REPLACE in (one.rights or Right.NONE)}
    trusted = trusted_in(found)
    users = users_table(mode)
    for (folder, member), theirs in _by_place(found).items():
        is_host = member in hosts
        if (member in trusted and not is_host) or _is_inbox(folder):
            continue
        table = _HOSTS if is_host else users
        excess = Right.NONE
        excessive = []
        for one in theirs:
            more = (one.rights or Right.NONE) & ~_conditional(one, allowed(table, folder), is_host=is_host)
            if more:
                excess |= more
                excessive.append(one)
        if excess:
            yield _too_much(root_url, folder, member, excess, excessive, is_host=is_host, mode=mode)


def trusted_in(found: Iterable[Grant]) -> frozenset[str]:
    """Who may write a whole ROOT: the daemon and the administrators."""
    return frozenset(
        one.member
        for one in found
        if not one.folder
        and not one.condition
        and one.member not in _EVERYBODY
        and Right.REPLACE in (one.rights or Right.NONE)
    )


def on_quota_folder(url: str, found: Sequence[Grant], trusted: frozenset[str]) -> Iterator[Finding]:
    """What bindings around a quota file outside of the ROOT give. `trusted`: of the ROOT; empty if it is not known."""
    yield from public(url, found)
    for (folder, member), theirs in _by_place(found).items():
        rights = _sum(theirs)
        if trusted and rights & _CHANGES and member not in trusted and member not in _EVERYBODY:
            yield Finding(
                severity=Severity.ERROR,
                what=f"{member} may {_told(rights)} objects of {url}/{folder}, and is no administrator of the bastion",
                why="whoever writes the quota file says who gets what, and who may cancel the jobs of others",
                remedy="; ".join(_take_from_folder(url, one) for one in theirs),
            )
        elif trusted and rights & Right.READ and folder in ("", keys.SECRETS) and member not in (*trusted, *_EVERYBODY):
            yield Finding(
                severity=Severity.ERROR,
                what=f"{member} may read {url}/{keys.RUN_SECRET}, and is no administrator of the bastion",
                why="whoever reads it can pass for the hosts of any job",
                remedy="; ".join(_take_from_folder(url, one) for one in theirs),
            )


def _conditional(one: Grant, rights: Right, *, is_host: bool) -> Right:
    if is_host and one.folder == keys.RUNS and "/reports/" in one.condition:
        return _WRITE
    if is_host and one.folder == "logs/" and "/logs/{job}.d/" in one.condition:
        return Right.READ | Right.CREATE
    if is_host and not one.folder and "endsWith(" in one.condition and f"/{keys.LEASE}" in one.condition:
        return Right.READ
    return rights


def _too_much(
    root_url: str, folder: str, member: str, excess: Right, theirs: Sequence[Grant], *, is_host: bool, mode: Mode
) -> Finding:
    if is_host:
        why = "commands of users run on hosts, and may get this account's token there"
        if folder == keys.JOBS_CLAIMS:
            why += ": one could take another run's place, or open its gate again"
        elif folder == "logs/":
            why += ": one could delete another's log, or write logs that only the daemon writes"
    elif mode is Mode.INBOX and folder in (keys.JOBS_ACTIVE, keys.JOBS_USER_STATES):
        why = "this bastion takes jobs and requests from inbox/<user>/ only; what others write here proves nothing"
    else:
        why = "the daemon decides by what is there, and only the daemon and administrators should write it"
    changes = excess & _CHANGES
    return Finding(
        severity=Severity.ERROR if changes else Severity.WARNING,
        what=f"{member}{' (a host)' if is_host else ''} may {_told(excess)} objects of {root_url}/{folder}",
        why=why,
        remedy="; ".join(_take_from_folder(root_url, one) for one in theirs),
    )


def public(url: str, found: Iterable[Grant]) -> Iterator[Finding]:
    for one in found:
        if one.member in _EVERYBODY and one.rights is not Right.NONE:
            rights = one.rights or Right.READ
            who = "everybody on the internet" if one.member == "allUsers" else "everybody with a Google account"
            place = one.around or f"{url}/{one.folder}" if one.folder or url.count("/") > 2 else url
            kind = "managed-folders" if place != url else "buckets"
            yield Finding(
                severity=Severity.ERROR,
                what=f"{one.member} may {_told(rights)} objects of {place}",
                why=f"that is {who}; specs, logs and outputs are the team's",
                remedy=f"gcloud storage {kind} remove-iam-policy-binding {shlex.quote(place)} --member={one.member} "
                f"--role={shlex.quote(one.role)}",
            )


def _is_inbox(folder: str) -> bool:
    return folder.startswith(keys.INBOX) and folder != keys.INBOX


def _by_member(found: Iterable[Grant]) -> dict[str, list[Grant]]:
    each: dict[str, list[Grant]] = {}
    for one in found:
        each.setdefault(one.member, []).append(one)
    return each


def _by_place(found: Iterable[Grant]) -> dict[tuple[str, str], list[Grant]]:
    each: dict[tuple[str, str], list[Grant]] = {}
    for one in found:
        each.setdefault((one.folder, one.member), []).append(one)
    return each


def _sum(found: Iterable[Grant]) -> Right:
    rights = Right.NONE
    for one in found:
        rights |= one.rights or Right.NONE
    return rights


def _changes(one: Grant) -> bool:
    return bool((one.rights or Right.NONE) & _CHANGES)


def _roles(found: Iterable[Grant]) -> str:
    return ", ".join(dict.fromkeys(one.role for one in found))


def _told(rights: Right) -> str:
    words = {Right.READ: "read", Right.CREATE: "create", Right.REPLACE: "replace", Right.GRANT: "grant rights on"}
    found = [word for right, word in words.items() if right in rights]
    return " and ".join([", ".join(found[:-1]), found[-1]] if len(found) > 1 else found)


def _take_from_folder(root_url: str, one: Grant) -> str:
    place = shlex.quote(one.around or f"{root_url}/{one.folder}")
    return (
        f"gcloud storage managed-folders remove-iam-policy-binding {place} "
        f"--member={shlex.quote(one.member)} --role={shlex.quote(one.role)}" + (" --all" if one.condition else "")
    )


def _take_from_bucket(url: str, one: Grant) -> str:
    return (
        f"gcloud storage buckets remove-iam-policy-binding {shlex.quote(url)} --member={shlex.quote(one.member)} "
        f"--role={shlex.quote(one.role)}"
    )
