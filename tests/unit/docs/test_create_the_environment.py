"""`docs/how-to/create-the-environment.md`: its commands, outputs and variables exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bastion.cli import parsing, registry
from tests.support import page_commands
from tests.support.terraform import configuration

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs" / "how-to" / "create-the-environment.md").read_text("utf-8")
TERRAFORM = REPOSITORY / "deploy" / "terraform"

# As gcloud 528 has them.
GCLOUD = {
    "services enable": {"--project"},
    "storage buckets create": {
        "--project",
        "--location",
        "--uniform-bucket-level-access",
        "--public-access-prevention",
    },
    "storage buckets update": {"--versioning"},
    "auth application-default login": set[str](),
    "storage cp": set[str](),
}


@pytest.fixture(scope="module")
def modules() -> dict[Path, configuration.Module]:
    return configuration.load(TERRAFORM)


def test_every_bastion_command_is_given_flags_and_operands_that_it_takes() -> None:
    lines = page_commands.commands(PAGE, "bastion")
    assert {" ".join(words[:2]) for words in lines} >= {"quota upload", "daemon check-config"}
    known = {entry.name for entry in registry.ENTRIES}
    for words in (line[: line.index(">")] if ">" in line else line for line in lines):
        if words[:2] == ["quota", "export"] and "quota export" not in known:
            continue  # comes with Kueue's queues
        entry, count = parsing.find(words)
        parsing.parse(entry.name, entry.load(), words[count:])


def test_every_gcloud_command_is_given_flags_that_it_has() -> None:
    lines = page_commands.commands(PAGE, "gcloud")
    for words in lines:
        assert page_commands.flags_of(words) <= GCLOUD[page_commands.gcloud_name(words, GCLOUD)], words
    assert {page_commands.gcloud_name(words, GCLOUD) for words in lines} == set(GCLOUD)


def test_the_outputs_and_variables_that_the_page_names_exist(modules: dict[Path, configuration.Module]) -> None:
    roots = [modules[TERRAFORM / root] for root in ("gke", "gke/software", "eks", "eks/software")]
    outputs = {name for root in roots for name in root.outputs}
    variables = {name for root in roots for name in root.variables}
    named = set(re.findall(r"output -raw (\w+)|output `(\w+)`", PAGE))
    assert {name for pair in named for name in pair if name} <= outputs
    assert set(re.findall(r'-var="?(\w+)=', PAGE)) <= variables
    folder = {"gcs": {"bucket", "prefix"}, "s3": {"bucket", "key", "region", "use_lockfile"}}
    assert set(re.findall(r'-backend-config="?(\w+)=', PAGE)) == folder["gcs"] | folder["s3"]


def test_every_output_of_the_first_stage_is_explained(modules: dict[Path, configuration.Module]) -> None:
    for root in ("gke", "eks"):
        for name in modules[TERRAFORM / root].outputs.keys() - {"pools"}:
            assert re.search(rf"output -raw {name}\b|outputs? `{name}`", PAGE), name


def test_each_reference_has_its_table_of_mistakes() -> None:
    mistakes = PAGE.partition("## Mistakes of the usual recipes")[2].partition("\n## ")[0]
    tables = mistakes.split("\n### ")[1:]
    assert [table.splitlines()[0] for table in tables] == [
        "A TPU cluster on GKE",
        "A GPU job on Kubernetes",
        "A benchmark on EKS",
    ]
    for table in tables:
        rows = [line for line in table.splitlines() if line.startswith("| ")][1:]
        assert len(rows) >= 10
        assert all(line.count(" | ") == 2 and "|  |" not in line for line in rows)
