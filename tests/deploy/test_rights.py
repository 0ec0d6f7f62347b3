"""Who may do what in a bastion's buckets, tried at the storage endpoint with google-cloud-storage.

The bindings are those of deploy/terraform, which are those of the gcloud lines of docs/how-to/run-on-gcp.md. What they
should allow is that page's table "Who may do what": each of its rows is a test, and so is everybody who is in none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from bastion.core.bucket import keys
from tests.support.rights import how_to
from tests.support.rights.bindings import Granted
from tests.support.rights.deployment import opened, terraform
from tests.support.rights.expected import ADDS, IN_PRIVATE, IN_ROOT, OTHERS, READS, ROWS, RUN, WRITES, expected, found
from tests.support.rights.how_to import BASTION, BUCKET, PRIVATE
from tests.support.rights.stage import Stage
from tests.support.terraform.bucket_module import MODULE


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """What Terraform makes; the page makes the same."""
    module = terraform()
    with opened(tmp_path_factory.mktemp("buckets"), module.roles) as stage:
        stage.grant(module.folders, module.granted)
        yield stage


@pytest.mark.parametrize(("row", "caller"), [(row, caller) for row, callers in ROWS.items() for caller in callers])
def test_a_row_of_the_table_holds(stage: Stage, row: str, caller: str) -> None:
    assert row in [who for who, _, _ in how_to.table()]
    assert found(stage, caller, expected(caller)) == expected(caller)


@pytest.mark.parametrize("caller", OTHERS)
def test_who_is_in_no_row_has_no_rights(stage: Stage, caller: str) -> None:
    assert found(stage, caller, expected(caller)) == expected(caller)
    assert not any(expected(caller).values())


def test_every_row_and_every_place_of_the_table_is_tried() -> None:
    assert [who for who, _, _ in how_to.table()] == list(ROWS)
    named = {place for row in how_to.table() for place in re.findall(r"`(\w+/[\w/]*)`", " ".join(row))}
    assert named == {"jobs/active/", "jobs/user_states/", "requests/", "benchmarks/", "bundles/"}
    assert all(any(key.startswith(place) for key in IN_ROOT) for place in named)


def test_every_folder_that_is_granted_is_tried() -> None:
    for granted in terraform().granted:
        start = granted.folder.removeprefix(f"{BASTION}/")
        assert any(key.startswith(start) for key in (*IN_ROOT, *IN_PRIVATE)), granted.told


def test_terraform_grants_what_the_page_grants() -> None:
    def told(granted: list[Granted]) -> list[str]:
        return sorted(one.told for one in granted)

    module = terraform()
    assert told(module.granted) == told(how_to.granted())
    assert sorted(module.folders) == sorted(how_to.folders())
    assert {name: sorted(of) for name, of in module.roles.items()} == {
        name: sorted(of) for name, of in how_to.roles().items()
    }


@dataclass(frozen=True)
class Mistake:
    """A text of main.tf, what somebody wrote there instead, and what somebody may do with it that he should not."""

    name: str
    was: str
    planted: str
    caller: str
    place: str
    rights: set[str]


MISTAKES = [
    Mistake(
        "users overwrite bundles", 'role = "creator", member = user', 'role = "writer", member = user',
        "user", f"{BUCKET}/{BASTION}/bundles/x.tar.gz", WRITES,
    ),
    Mistake(
        "workers write orders", "when = local.reports", "when = null",
        "worker", f"{BUCKET}/{BASTION}/{keys.order(RUN)}", WRITES,
    ),
    Mistake(
        "workers read the ROOT", "when = local.lease", "when = null",
        "worker", f"{BUCKET}/{BASTION}/{keys.STATUS}", READS,
    ),
    Mistake(
        "workers reopen gates", 'folder = "jobs/claims/", role = "creator"', 'folder = "jobs/claims/", role = "writer"',
        "worker", f"{BUCKET}/{BASTION}/{keys.claim(RUN, 'tag')}", WRITES,
    ),
    Mistake(
        "workers overwrite logs", 'folder = "logs/", role = "creator"', 'folder = "logs/", role = "writer"',
        "worker", f"{BUCKET}/{BASTION}/{keys.log_segment('job', RUN, 0, 1)}", WRITES,
    ),
    Mistake(
        "workers write the daemon's logs", "when = local.segments", "when = null",
        "worker", f"{BUCKET}/{BASTION}/{keys.log('job')}", ADDS,
    ),
    Mistake(
        "the daemon writes the quota file", '{ daemon = { role = "reader"', '{ daemon = { role = "writer"',
        "daemon", f"{PRIVATE}/{BASTION}/{keys.PROJECT_QUOTAS}", WRITES,
    ),
    Mistake(
        "users cannot cancel", 'folder = "jobs/user_states/", role = "writer"',
        'folder = "jobs/user_states/", role = "reader"',
        "user", f"{BUCKET}/{BASTION}/{keys.user_state('job')}", READS,
    ),
]  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES, ids=[mistake.name for mistake in MISTAKES])
def test_a_mistake_in_the_bindings_changes_what_is_found(mistake: Mistake, tmp_path: Path) -> None:
    text = (MODULE / "main.tf").read_text("utf-8")
    assert mistake.was in text
    module = terraform(text.replace(mistake.was, mistake.planted))
    with opened(tmp_path, module.roles) as stage:
        stage.grant(module.folders, module.granted)
        assert stage.rights(mistake.caller, *mistake.place.split("/", 1)) == mistake.rights
    assert expected(mistake.caller)[mistake.place] != mistake.rights


def test_editors_of_the_project_may_everything_in_new_buckets_until_the_page_takes_that_away(tmp_path: Path) -> None:
    """Terraform does not take it away (docs/adr/0060)."""
    places = [(BUCKET, f"{BASTION}/{keys.active('job')}"), (PRIVATE, f"{BASTION}/{keys.PROJECT_QUOTAS}")]
    with opened(tmp_path, how_to.roles()) as stage:
        assert [stage.rights("project editor", *place) for place in places] == [WRITES, WRITES]
        removed = how_to.removed()
        assert {bucket for bucket, _, _ in removed} == {BUCKET}
        for bucket in (BUCKET, PRIVATE):  # "and the same for $PRIVATE_BUCKET"
            stage.take_away(bucket, [(role, member) for _, member, role in removed])
        assert [stage.rights("project editor", *place) for place in places] == [set(), set()]
