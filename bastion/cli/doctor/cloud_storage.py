"""Examine a ROOT on Cloud Storage: the policies as far as the caller may read them, and what he himself may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from bastion.adapters.gcs.bucket_facts import BucketFacts
from bastion.adapters.gcs.managed_folders import ManagedFolders
from bastion.cli.doctor import bucket_settings, grants
from bastion.cli.doctor.finding import Report
from bastion.cli.doctor.grants import Right
from bastion.core.bucket import keys
from bastion.core.model.mode import Mode
from bastion.wiring.roots import Root

_PERMISSIONS = {
    Right.READ: ("storage.objects.get", "storage.objects.list"),
    Right.CREATE: ("storage.objects.create",),
    Right.REPLACE: ("storage.objects.delete",),
}
_ALL = tuple(name for names in _PERMISSIONS.values() for name in names)
_OWNS = "storage.buckets.setIamPolicy"
_IN_WORDS = {Right.READ: "read", Right.CREATE: "write", Right.REPLACE: "replace"}


@dataclass(slots=True)
class Seen:
    """What the place of the quota file is compared with.

    Attributes:
        trusted: Who may write the whole ROOT; nobody if that is not known.
        projects: Whose policies were looked at.
    """

    bucket: str
    trusted: frozenset[str] = frozenset()
    projects: set[str] = field(default_factory=set)


def examine(report: Report, root: Root, mode: Mode, *, user: str, hosts: frozenset[str]) -> Seen:
    """Examine the bucket of a ROOT.

    `user`: whose inbox is the caller's; `hosts`: accounts that the settings give to hosts, as members.
    """
    name, _, folder = root.url.removeprefix("gs://").partition("/")
    facts, folders = BucketFacts(name), ManagedFolders(name)
    url = f"gs://{name}"
    owner = f"an owner of {url}"
    with report.may_skip(f"the settings of {url}", owner):
        report.add(bucket_settings.of_bastion(url, folder, facts.settings()))
    seen = Seen(name)
    explained = _policies(report, facts, mode, owner, seen.projects)
    with report.may_skip(f"the policies of managed folders below {root.url}", owner):
        found = _granted(report, folders, folder)
        report.add(grants.on_folders(root.url, found, mode, hosts=hosts))
        seen.trusted = grants.trusted_in(found)
    with report.may_skip("what you may do", owner):
        _own_rights(report, facts, folders, folder, root, mode, user=user, explained=explained)
    return seen


def examine_quota_bucket(report: Report, root: Root, mode: Mode, seen: Seen) -> None:
    """Examine the place of a quota file outside of the ROOT; `seen`: what `examine` returned."""
    name, _, folder = root.url.removeprefix("gs://").partition("/")
    facts, folders = BucketFacts(name), ManagedFolders(name)
    url = f"gs://{name}"
    owner = f"an owner of {url}"
    if name != seen.bucket:
        with report.may_skip(f"the settings of {url}", owner):
            report.add(bucket_settings.of_any(url, facts.settings()))
        _policies(report, facts, mode, owner, seen.projects)
    with report.may_skip(f"the policies of managed folders below {root.url}", owner):
        report.add(grants.on_quota_folder(root.url, _granted(report, folders, folder), seen.trusted))


def _granted(report: Report, folders: ManagedFolders, root: str) -> list[grants.Grant]:
    """What managed folders below a ROOT give, and those around it, which give the same as the ROOT's own."""
    found: list[grants.Grant] = []
    parts = root.split("/")
    for around in ("/".join(parts[:count]) for count in range(1, len(parts))):
        bindings = (folders.policy(f"{around}/") or {}).get("bindings", ())
        found += grants.grants("", bindings, around=folders.url(f"{around}/"))
    for name in folders.names(f"{root}/"):
        bindings = (folders.policy(name) or {}).get("bindings", ())
        found += grants.grants(name.removeprefix(f"{root}/"), bindings)
    _skip_unknown(report, found)
    return found


def _skip_unknown(report: Report, found: list[grants.Grant]) -> None:
    for role in grants.unknown_roles(found):
        report.skip(f"what {role} permits", "the role is none of the bastion's; look at its permissions")


def _policies(report: Report, facts: BucketFacts, mode: Mode, owner: str, projects: set[str]) -> bool:
    """Judge the policies of bucket and project; return whether the bucket's had findings."""
    url = f"gs://{facts.name}"
    before = len(report.findings)
    with report.may_skip(f"the policy of {url}", owner):
        found = list(grants.grants("", facts.bindings()))
        report.add(grants.on_bucket(url, found, mode))
        _skip_unknown(report, found)
    had = len(report.findings) > before
    with report.may_skip(f"the policy of the project of {url}", "an owner of the project"):
        project, bindings = facts.project_bindings()
        if project not in projects:
            projects.add(project)
            given = list(grants.grants("", bindings))
            report.add(grants.on_project(project, url, given, mode))
            _skip_unknown(report, given)
    return had


def _own_rights(
    report: Report,
    facts: BucketFacts,
    folders: ManagedFolders,
    folder: str,
    root: Root,
    mode: Mode,
    *,
    user: str,
    explained: bool,
) -> None:
    whole = facts.held((*_ALL, _OWNS))
    if _OWNS in whole:
        return  # an owner: he may do everything, and gives these rights
    everywhere = _rights(whole)
    if everywhere and not explained:
        report.error(
            f"you may {_words(everywhere)} every object of gs://{facts.name}",
            why="a role on the bucket, its project or above holds for everything in it, whatever managed folders say",
            remedy="ask an owner of the project which role gives you that, and to take it away",
        )
        return

    def rights(place: str) -> Right:
        """What the caller has in a folder of the ROOT: by its managed folder, or the innermost one around it."""
        while True:
            held = folders.held(f"{folder}/{place}", _ALL)
            if held is not None or not place:
                return _rights(held or set())
            place = place[: place.rstrip("/").rfind("/") + 1]

    here = rights("")
    if Right.REPLACE in here:
        return  # the daemon or an administrator
    if Right.READ not in here:
        report.error(
            f"you may not read {root.url}",
            why="users, administrators and the daemon read everything there; hosts need no doctor",
            remedy="ask an administrator for a place in the group of users, or use another account",
        )
        return
    _as_user(report, root, mode, rights, user)


def _as_user(report: Report, root: Root, mode: Mode, rights: Callable[[str], Right], user: str) -> None:
    wanted = dict(grants.users_table(mode))
    if mode is Mode.INBOX:
        wanted[f"{keys.INBOX}{user}/"] = Right.READ | Right.CREATE | Right.REPLACE
    looked_at = [*wanted, *(name for name in _CLOSED if name not in wanted)]
    lacks, excess = [], []
    for place in looked_at:
        expected, has = grants.allowed(wanted, place), rights(place)
        if expected & ~has:
            lacks.append(f"{_words(expected & ~has)} {place or 'the ROOT'}")
        if has & ~expected:
            excess.append(f"{_words(has & ~expected)} {place}")
    if excess:
        report.error(
            f"you may {', '.join(excess)}",
            why="the daemon decides by what is there; a user needs no such right",
            remedy=f"ask an owner of {root.bucket} to take it away",
        )
    if lacks:
        report.warning(
            f"you may not {', '.join(lacks)}",
            why="users submit jobs, requests, code and benchmarks there",
            remedy="ask an administrator for a place in the group of users"
            + (f", and for an inbox: bastion admin user add {user}" if mode is Mode.INBOX else ""),
        )


# Where no user may write, one of each kind.
_CLOSED = (
    keys.JOBS_ACTIVE,
    keys.JOBS_USER_STATES,
    keys.JOBS_STATES,
    keys.JOBS_CLAIMS,
    keys.RUNS,
    keys.BEATS,
    "config/",
    "project-quotas/",
    keys.INBOX,
)


def _rights(held: set[str]) -> Right:
    found = Right.NONE
    for right, names in _PERMISSIONS.items():
        if held.issuperset(names):
            found |= right
    return found


def _words(rights: Right) -> str:
    return " and ".join(word for right, word in _IN_WORDS.items() if right in rights)
