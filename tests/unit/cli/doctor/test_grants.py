"""Which bindings give somebody more than his part in a bastion takes."""

from __future__ import annotations

import pytest

from bastion.cli.doctor import grants
from bastion.cli.doctor.finding import Severity
from bastion.cli.doctor.grants import Grant
from bastion.core.model.mode import Mode
from tests.support.rights import how_to
from tests.support.rights.how_to import BASTION, BUCKET

ROOT = f"gs://{BUCKET}/{BASTION}"
WRITER, READER, CREATOR = (f"projects/p/roles/bastion{name}" for name in ("Writer", "Reader", "Creator"))
HOST = Grant(folder="beats/", role=WRITER, member="serviceAccount:host")
USER = Grant(folder="", role=READER, member="group:users")
DAEMON = Grant(folder="", role=WRITER, member="serviceAccount:daemon")
SEGMENTS = 'resource.name.extract("/logs/{job}.d/") != ""'
REPORTS = 'resource.name.extract("/runs/{run}/reports/") != ""'


def told(*found: Grant, mode: Mode = Mode.INBOX, hosts: frozenset[str] = frozenset()) -> list[str]:
    return [each.what for each in grants.on_folders(ROOT, [*found, HOST, USER, DAEMON], mode, hosts=hosts)]


def of(member: str, folder: str, role: str = WRITER, condition: str = "") -> Grant:
    return Grant(folder=folder, role=role, member=member, condition=condition)


@pytest.mark.parametrize(("page", "mode"), [(how_to.PAGE, Mode.OPEN), (how_to.SHARED, Mode.INBOX)])
def test_the_pages_give_nobody_too_much(page: str, mode: Mode) -> None:
    found = [
        Grant(
            folder=one.folder.removeprefix(f"{BASTION}/"),
            role=one.role,
            member=one.member,
            condition=(one.condition or {}).get("expression", ""),
        )
        for one in how_to.granted(page)
        if one.bucket == BUCKET
    ]
    assert list(grants.on_folders(ROOT, found, mode, hosts=frozenset())) == []
    assert grants.unknown_roles(found) == []


@pytest.mark.parametrize(
    "fine",
    [
        of("group:users", "benchmarks/"),
        of("group:users", "bundles/", CREATOR),
        of("group:users", "logs/", READER),
        of("serviceAccount:daemon", "config/"),
        of("user:alice@example.com", "inbox/alice/"),
        of("serviceAccount:host", "outputs/"),
        of("serviceAccount:host", "runs/", WRITER, REPORTS),
        of("serviceAccount:host", "logs/", READER),
        of("serviceAccount:host", "logs/", CREATOR, SEGMENTS),
        of("serviceAccount:host", "", READER, 'resource.name.endsWith("/team-bastion/lease")'),
    ],
)
def test_what_a_part_takes(fine: Grant) -> None:
    assert told(fine) == []


@pytest.mark.parametrize(
    ("too_much", "what"),
    [
        (of("group:users", "jobs/active/"), f"group:users may create and replace objects of {ROOT}/jobs/active/"),
        (of("group:users", "jobs/"), f"group:users may create and replace objects of {ROOT}/jobs/"),
        (of("group:users", "bundles/"), f"group:users may replace objects of {ROOT}/bundles/"),
        (of("group:users", "inbox/"), f"group:users may create and replace objects of {ROOT}/inbox/"),
        (of("group:users", "config/", "roles/storage.folderAdmin"), "create, replace and grant rights on objects"),
        (of("group:users", "", WRITER, 'resource.name.startsWith("x")'), f"objects of {ROOT}/"),
        (
            of("serviceAccount:host", "jobs/claims/"),
            f"serviceAccount:host (a host) may replace objects of {ROOT}/jobs/",
        ),
        (of("serviceAccount:host", "logs/"), f"(a host) may create and replace objects of {ROOT}/logs/"),
        (of("serviceAccount:host", "logs/", CREATOR), f"(a host) may create objects of {ROOT}/logs/"),
        (of("serviceAccount:host", "runs/"), f"(a host) may create and replace objects of {ROOT}/runs/"),
        (of("serviceAccount:host", ""), f"(a host) may read, create and replace objects of {ROOT}/"),
        (of("serviceAccount:host", "", READER), f"serviceAccount:host (a host) may read objects of {ROOT}/"),
        (of("allAuthenticatedUsers", "logs/", READER), f"allAuthenticatedUsers may read objects of {ROOT}/logs/"),
    ],
)
def test_what_a_part_does_not_take(too_much: Grant, what: str) -> None:
    assert [what in each for each in told(too_much)] == [True]


def test_in_mode_open_users_write_specs_and_requests() -> None:
    found = [of("group:users", "jobs/active/"), of("group:users", "jobs/user_states/")]
    assert told(*found, mode=Mode.OPEN) == []
    assert len(told(*found)) == 2


def test_an_account_of_the_settings_is_a_host() -> None:
    other = of("serviceAccount:other", "jobs/claims/", CREATOR)
    assert len(told(other)) == 1
    assert told(other, hosts=frozenset({"serviceAccount:other"})) == []


def test_roles_on_the_bucket_are_errors_where_inboxes_prove_something() -> None:
    found = [
        of("projectOwner:p", "", "roles/storage.legacyBucketOwner"),
        of("projectEditor:p", "", "roles/storage.legacyBucketOwner"),
        of("projectViewer:p", "", "roles/storage.legacyObjectReader"),
        of("user:eve@example.com", "", "roles/storage.objectAdmin"),
        of("user:eve@example.com", "", "roles/storage.legacyBucketReader"),
        of("user:ann@example.com", "", "roles/storage.objectViewer"),
        of("user:bill@example.com", "", "roles/viewer"),
    ]
    for mode, writes in ((Mode.INBOX, Severity.ERROR), (Mode.OPEN, Severity.WARNING)):
        told = {each.what.partition(" may ")[0]: each.severity for each in grants.on_bucket("gs://b", found, mode)}
        assert told == {
            "projectEditor:p and projectViewer:p have the roles of new buckets on gs://b": writes,
            "user:eve@example.com": writes,
            "user:ann@example.com": Severity.WARNING,
        }


def test_a_role_of_which_nothing_is_known_is_named() -> None:
    found = [of("group:users", "jobs/", "projects/p/roles/custom"), of("group:users", "x/", "roles/storage.new")]
    assert grants.unknown_roles(found) == ["projects/p/roles/custom", "roles/storage.new"]
    assert told(*found) == []


def test_who_writes_the_quota_file_and_is_no_administrator_is_named() -> None:
    found = [of("serviceAccount:daemon", "", READER), of("group:admins", ""), of("group:users", "project-quotas/")]
    trusted = frozenset({"serviceAccount:daemon", "group:admins"})
    assert [each.what for each in grants.on_quota_folder("gs://q/team-bastion", found, trusted)] == [
        "group:users may read, create and replace objects of gs://q/team-bastion/project-quotas/, and is no "
        "administrator of the bastion"
    ]
    assert list(grants.on_quota_folder("gs://q/team-bastion", found, frozenset())) == []


@pytest.mark.parametrize("folder", ["", "secrets/"])
def test_who_reads_the_secret_of_the_runs_and_is_no_administrator_is_named(folder: str) -> None:
    found = [
        of("serviceAccount:daemon", "", READER),
        of("serviceAccount:daemon", "secrets/", CREATOR),
        of("group:admins", ""),
        of("serviceAccount:host", folder, READER),
    ]
    trusted = frozenset({"serviceAccount:daemon", "group:admins"})
    (finding,) = grants.on_quota_folder("gs://q/team-bastion", found, trusted)
    assert (finding.severity, finding.what) == (
        Severity.ERROR,
        "serviceAccount:host may read gs://q/team-bastion/secrets/runs, and is no administrator of the bastion",
    )
    readers = [of("group:users", "project-quotas/", READER)]
    assert list(grants.on_quota_folder("gs://q/team-bastion", readers, trusted)) == []
