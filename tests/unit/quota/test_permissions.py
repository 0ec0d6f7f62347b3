"""What a project's jobs may ask for, and the admins: how a file says it, and every way to get it wrong."""

from __future__ import annotations

import pytest

import quota
from quota import Policy, ProjectRules
from quota.diff import describe, difference
from quota.permissions import Asked, denial, restricts

BASE = """\
[toml-schema]
version = "1"
[total_resources]
v4 = 100
[project_membership]
research = ["alice"]
product = ["bob"]
[project_resources.research]
v4 = 0.6
[project_resources.product]
v4 = 0.4
"""
FIRST = BASE.count("\n") + 1


def load(text: str) -> Policy:
    return quota.load((BASE + text).encode())


def problems(text: str) -> list[str]:
    with pytest.raises(quota.QuotaFileError) as caught:
        load(text)
    assert all(problem.line and problem.line >= FIRST for problem in caught.value.problems)
    return [problem.message for problem in caught.value.problems]


def test_by_default_everything_is_allowed_but_root() -> None:
    rules = load("").rules("research")
    assert not restricts(rules)
    assert denial("research", rules, Asked(instance_type="tpu-v4-8", priority=1)) is None
    assert denial("research", rules, Asked()) is None
    assert denial("research", rules, Asked(instance_type="tpu-v4-8", root=True)) is not None


@pytest.mark.parametrize(
    ("rule", "asked", "problem", "change"),
    [
        ("allow_root = false", Asked(instance_type="tpu-v4-8", root=True), "as root", "sets allow_root = true"),
        ("allow_bastion_jobs = false", Asked(), "bastion's own host", "sets allow_bastion_jobs = true"),
        (
            "allow_bastion_jobs = false",
            Asked(instance_type="tpu-v4-8", cleanup=True),
            "may not run cleanup commands",
            "sets allow_bastion_jobs = true",
        ),
        (
            'instance_types = ["tpu-v4-*"]',
            Asked(instance_type="gpu-h100-8"),
            "tpu-v4-*, not gpu-h100-8",
            "adds gpu-h100-8 to instance_types",
        ),
        ("instance_types = []", Asked(instance_type="tpu-v4-8"), "(none), not tpu-v4-8", "adds tpu-v4-8"),
        ("highest_priority = 3", Asked(priority=2), "priority 3 at most, not 2", "sets highest_priority = 2"),
    ],
)
def test_what_a_rule_denies_and_what_would_allow_it(rule: str, asked: Asked, problem: str, change: str) -> None:
    rules = load(f"[project_rules.research]\n{rule}\n").rules("research")
    found = denial("research", rules, asked)
    assert found is not None
    assert "project research" in found.problem and problem in found.problem
    assert change in found.change
    assert denial("product", load("").rules("product"), Asked(instance_type=asked.instance_type)) is None


@pytest.mark.parametrize(
    ("names", "allowed", "refused"),
    [
        ("tpu-v4-32", ("tpu-v4-32",), ("tpu-v4-3", "tpu-v4-321", "TPU-V4-32")),
        ("tpu-v5p-*", ("tpu-v5p-8", "tpu-v5p-128"), ("tpu-v5litepod-8", "v5p-8", "")),
    ],
)
def test_names_of_types_match_as_a_whole_or_by_their_beginning(
    names: str, allowed: tuple[str, ...], refused: tuple[str, ...]
) -> None:
    rules = load(f'[project_rules]\ninstance_types = ["{names}"]\nallow_bastion_jobs = false\n').rules("research")
    for name in allowed:
        assert denial("research", rules, Asked(instance_type=name)) is None
    for name in refused:
        assert denial("research", rules, Asked(instance_type=name)) is not None


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("allow_root = 1", "allow_root in [project_rules] is 1; write true or false"),
        ("highest_priority = 0", "highest_priority in [project_rules] is 0; write a whole number from 1 to 5"),
        ("highest_priority = true", "highest_priority in [project_rules] is true; write a whole number from 1 to 5"),
        ('instance_types = "tpu-v4-8"', "instance_types in [project_rules] is 'tpu-v4-8'; write a list"),
        ('instance_types = ["*-v4-8"]', "instance_types in [project_rules] has '*-v4-8'; write the name"),
        ("instance_types = [4]", "instance_types in [project_rules] has 4; write the name"),
        ("allow_roots = true", "allow_roots in [project_rules] is not a valid rule; did you mean allow_root?"),
    ],
)
def test_a_wrong_rule_is_explained_and_refuses_the_file(rule: str, message: str) -> None:
    (found,) = problems(f"[project_rules]\n{rule}\n")
    assert found.startswith(message)


def test_admins_are_literal_ids_of_the_bastion_or_of_a_project() -> None:
    admins = load('[admins]\nbastion = ["carol"]\n[admins.projects]\nresearch = ["al.ce", "dan"]\n').admins
    assert admins.has("carol", "product") and admins.has("carol", "research")
    assert admins.has("dan", "research") and not admins.has("dan", "product")
    assert not admins.has("alice", "research")  # no pattern
    assert not load("").admins.has("", "research")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[admins]]\n", "[admins] must be a table"),
        ('[admins]\nbastion = "carol"\n', "bastion in [admins] is 'carol'; write a list like"),
        ('[admins]\nbastion = [""]\n', "bastion in [admins] has ''; write a user id of 1 to 128 characters"),
        ('[admins]\nresearch = ["alice"]\n', "'research' is not valid in [admins]; write bastion ="),
        ("[admins]\nprojects = []\n", "projects in [admins] must be a table"),
        ("[admins.projects]\nresearch = [1]\n", "research in [admins.projects] has 1; write a user id"),
    ],
)
def test_wrong_admins_are_explained(text: str, message: str) -> None:
    assert problems(text)[0].startswith(message)


def test_admins_of_a_project_that_is_not_there_are_a_warning() -> None:
    (warning,) = load('[admins.projects]\nreserch = ["alice"]\n').warnings
    assert "admins of 'reserch', which is not a project in this file; did you mean research?" in warning.message


def test_a_changed_right_or_admin_is_a_difference_that_is_told() -> None:
    after = load(
        '[project_rules.research]\ninstance_types = ["tpu-v4-*"]\nallow_root = true\nhighest_priority = 2\n'
        '[admins]\nbastion = ["carol"]\n[admins.projects]\nresearch = ["dan"]\n'
    )
    found = difference(load(""), after)
    lines = list(describe(found))
    assert lines[:3] == ["Admins", "  of the bastion added: carol", "  of project research added: dan"]
    assert "    instance types: all -> tpu-v4-*" in lines
    assert "    jobs as root: no -> yes" in lines
    assert "    highest priority: 1 -> 2" in lines
    assert not difference(after, after)
    assert [each.removed for each in difference(after, load("")).admins] == [("carol",), ("dan",)]
    assert ProjectRules(instance_types=()) != ProjectRules()
