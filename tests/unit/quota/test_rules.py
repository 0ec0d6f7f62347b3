"""The rules of projects: what they mean, and what is said about every way to get them wrong."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import quota
from quota import Policy, ProjectRules
from quota.describe_rules import rule_values
from quota.diff import describe, difference
from quota.rules_reading import KEYS

BASE = """\
[toml-schema]
version = "1"

[total_resources]
v4 = 100
v5p = 8

[project_membership]
research = ["alice", "intern-.*"]
product = ["bob"]

[project_resources.research]
v4 = 0.6

[project_resources.product]
v4 = 0.4
"""
FIRST = BASE.count("\n") + 1
EVERYTHING = """\
[project_rules]
half_life_hours = 24
grace_seconds = 30
borrowing_limit = { v4 = 10 }
[project_rules.research]
minimum_runtime_minutes = 2.5
maximum_runtime_hours = 48
fifo = true
hold = true
borrowing_limit = { v5p = 0 }
lending_limit = { v4 = 20 }
[project_rules.research.user_weights]
alice = 2
"intern-1" = 0.5
"""


def load(rules: str) -> Policy:
    return quota.load((BASE + rules).encode())


def problems(rules: str) -> list[tuple[int | None, str]]:
    with pytest.raises(quota.QuotaFileError) as caught:
        load(rules)
    return [(problem.line, problem.message) for problem in caught.value.problems]


def warnings(rules: str) -> list[tuple[int | None, str]]:
    return [(warning.line, warning.message) for warning in load(rules).warnings]


def test_without_the_table_every_project_has_the_defaults() -> None:
    policy = load("")
    assert policy.warnings == ()
    assert policy.default_rules == policy.rules("research") == policy.rules("nowhere") == ProjectRules()
    assert ProjectRules() == ProjectRules(
        half_life_seconds=168 * 3600.0,
        minimum_runtime_seconds=0.0,
        grace_seconds=60.0,
        maximum_runtime_seconds=None,
        fifo=False,
        hold=False,
        borrowing_limit={},
        lending_limit={},
        user_weights={},
    )
    assert policy == load("[project_rules]\nmaximum_runtime_hours = 0\n[project_rules.research]\n")


def test_a_projects_own_rules_override_those_of_all_key_by_key() -> None:
    policy = load(EVERYTHING)
    assert policy.warnings == ()
    common = ProjectRules(half_life_seconds=24 * 3600.0, grace_seconds=30.0, borrowing_limit={"v4": 10})
    assert policy.default_rules == policy.rules("product") == policy.rules("nowhere") == common
    own = policy.rules("research")
    assert own == ProjectRules(
        half_life_seconds=24 * 3600.0,
        minimum_runtime_seconds=150.0,
        grace_seconds=30.0,
        maximum_runtime_seconds=48 * 3600.0,
        fifo=True,
        hold=True,
        borrowing_limit={"v5p": 0},
        lending_limit={"v4": 20},
        user_weights={"alice": 2.0, "intern-1": 0.5},
    )
    assert (own.user_weight("alice"), own.user_weight("intern-2")) == (2.0, 1.0)


def test_rules_cannot_be_changed() -> None:
    rules = load(EVERYTHING).rules("research")
    with pytest.raises(TypeError):
        rules.borrowing_limit["v4"] = 1  # type: ignore[index]
    with pytest.raises(AttributeError):
        rules.hold = False  # type: ignore[misc]


def test_the_most_a_project_may_hold_follows_from_its_limit_and_from_what_the_others_lend() -> None:
    free = load("")
    assert [free.ceiling(project, "v4") for project in ("research", "product", "nowhere")] == [100, 100, 100]
    assert free.ceiling("research", "v9") == 0
    lending = load("[project_rules.research]\nlending_limit = { v4 = 20 }\n")
    assert [lending.ceiling(project, "v4") for project in ("research", "product", "nowhere")] == [100, 60, 60]
    generous = load("[project_rules.research]\nlending_limit = { v4 = 1000 }\n")
    assert generous.ceiling("product", "v4") == 100
    modest = load(
        "[project_rules]\nborrowing_limit = { v4 = 10 }\n[project_rules.product]\nlending_limit = { v4 = 0 }\n"
    )
    assert [modest.ceiling(project, "v4") for project in ("research", "product", "nowhere")] == [60, 50, 10]


@pytest.mark.parametrize(
    ("rule", "part"),
    [
        ("half_life_hours = 0", "from 0.01 to 87600"),
        ("half_life_hours = nan", "from 0.01 to 87600"),
        ("half_life_hours = inf", "from 0.01 to 87600"),
        ("minimum_runtime_minutes = -1", "from 0 to 10080"),
        ("grace_seconds = 3601", "from 0 to 3600"),
        ("grace_seconds = true", "is true; write a number"),
        ('grace_seconds = "60 s"', "is '60 s'; write a number"),
        ("maximum_runtime_hours = -0.1", "from 0 to 87600"),
        ("fifo = 1", "write true or false"),
        ('hold = "no"', "write true or false"),
        ("hold = {}", "write true or false"),
        ("borrowing_limit = 5", "write a table, like borrowing_limit = { v4 = 64 }"),
        ("borrowing_limit = { v4 = -1 }", "whole number"),
        ("lending_limit = { v4 = 1.5 }", "whole number"),
        ("lending_limit = { v4 = true }", "whole number"),
        ("user_weights = 2", "write a table, like user_weights = { alice = 2.0 }"),
        ("user_weights = { alice = 0 }", "from 0.001 to 1000"),
        ("user_weights = { a.b = 1 }", "quote a user id with dots"),
        ('user_weights = { "" = 1 }', "is 0 characters long"),
        (f"user_weights = {{ {'u' * 129} = 1 }}", "is 129 characters long"),
        ("grace = 60", "grace in [TABLE] is not a valid rule; did you mean grace_seconds?"),
        ("half_life_days = 7", "did you mean half_life_hours?"),
        ("max_runtime_hours = 7", "did you mean maximum_runtime_hours?"),
        ("borowing_limit = { v4 = 7 }", "did you mean borrowing_limit?"),
        ("user_weight = { alice = 7 }", "did you mean user_weights?"),
    ],
)
@pytest.mark.parametrize("table", ["project_rules", "project_rules.research"])
def test_a_wrong_rule_is_told_with_its_line_and_what_to_write(table: str, rule: str, part: str) -> None:
    ((line, message),) = problems(f"[{table}]\n# comment\n{rule}\n")
    assert line == FIRST + 2
    assert part.replace("TABLE", table) in message
    assert table in message


@pytest.mark.parametrize("table", ["project_rules", "project_rules.research"])
@pytest.mark.parametrize(("kind", "end"), [("v5", "did you mean v5p?"), ("tpu", "add it there or delete it here")])
def test_a_limit_of_a_type_that_the_pool_lacks_limits_nothing_and_is_warned_of(table: str, kind: str, end: str) -> None:
    policy = load(f"[{table}]\nlending_limit = {{ v4 = 7, {kind} = 1 }}\n")
    assert dict(policy.rules("research").lending_limit) == {"v4": 7}
    (warning,) = policy.warnings
    message = f"lending_limit in [{table}] has '{kind}', which is not in total_resources; it is ignored; {end}"
    assert (warning.line, warning.message) == (FIRST + 1, message)


@pytest.mark.parametrize(
    ("rules", "line", "part"),
    [
        ("project_rules = 3\n", 1, "[project_rules] must be a table, not 3"),
        ("[project_rules]\nresearch = true\n", FIRST + 1, "as a table [project_rules.research]"),
        ('[project_rules."a b"]\nhold = true\n', FIRST, "'a b' is not a valid project id"),
        ("[project_rule]\nhold = true\n", FIRST, "did you mean [project_rules]?"),
    ],
)
def test_a_wrong_table_is_told_with_its_line(rules: str, line: int, part: str) -> None:
    text = rules + BASE if line == 1 else BASE + rules
    with pytest.raises(quota.QuotaFileError) as caught:
        quota.load(text.encode())
    (problem,) = caught.value.problems
    assert problem.line == line
    assert part in problem.message


@pytest.mark.parametrize(
    ("rules", "line", "part"),
    [
        ("[project_rules]\ncolour = 3\n", 1, "unknown rule 'colour' in [project_rules]"),
        ("[project_rules.research]\n\ncolour = 3\n", 2, "unknown rule 'colour' in [project_rules.research]"),
        (
            "[project_rules.reserch]\nhold = true\n",
            0,
            "'reserch', which is not a project in this file; did you mean research",
        ),
        ("[project_rules.gone]\nhold = true\n", 0, "'gone', which is not a project in this file; delete them"),
        ("[project_rules.research.user_weights]\nalicia = 2\n", 1, "'alicia' has a weight in research but is not"),
        ("[project_rules]\n[project_rule]\n", 1, "[project_rule] is not a valid table"),
    ],
)
def test_what_a_newer_version_may_know_or_nobody_uses_is_a_warning(rules: str, line: int, part: str) -> None:
    ((found, message),) = warnings(rules)
    assert found == FIRST + line
    assert part in message


def test_rules_of_a_project_that_is_not_there_mean_nothing() -> None:
    policy = load("[project_rules.gone]\nhold = true\n")
    assert dict(policy.project_rules) == {}
    assert not policy.rules("gone").hold


def test_a_project_may_be_called_like_a_rule() -> None:
    text = (BASE + "[project_rules]\nfifo = true\n[project_rules.hold]\nhold = true\n").replace("product", "hold")
    policy = quota.load(text.encode())
    assert policy.rules("hold").hold and policy.rules("hold").fifo
    assert not policy.rules("research").hold


def test_users_with_a_weight_are_looked_for_among_the_members_as_long_as_that_takes_no_time() -> None:
    patterns = ", ".join(f"'.*[{number % 9}-9]{number}'" for number in range(900))
    text = BASE.replace('"intern-.*"', patterns)
    users = "".join(f"nobody-{chr(97 + number % 26)}{number // 26}x = 2\n" for number in range(180))
    policy = quota.load((text + "[project_rules.research.user_weights]\n" + users).encode())
    assert 0 < len(policy.warnings) < 180


def test_the_summary_shows_the_rules_that_are_not_as_usual() -> None:
    rules = quota.render_check(load(EVERYTHING)).split("\n\n")[2]
    assert (
        rules
        == """\
Rules
  all projects
    half-life of past usage 24 h
    grace 30 s
    borrows v4: at most 10
  research
    minimum runtime 2.5 min
    maximum runtime 48 h
    FIFO order: yes
    on hold: yes
    borrows v5p: nothing
    lends v4: at most 20
    weight of user alice: 2
    weight of user intern-1: 0.5
    borrows v4: all idle units
"""
    )


def test_every_rule_is_written_as_the_file_has_it() -> None:
    rules = load(EVERYTHING).rules("research")
    found = rule_values(rules)
    assert json.loads(json.dumps(found)) == found
    assert {key.partition(".")[0] for key in found} == set(KEYS)
    assert found["minimum_runtime_minutes"] == 2.5
    assert found["lending_limit.v4"] == 20
    assert rule_values(ProjectRules())["maximum_runtime_hours"] is None


# -- differences -------------------------------------------------------------------------------------------------------


def words(before: str, after: str) -> list[str]:
    return list(describe(difference(load(before), load(after))))


def test_a_change_of_the_rules_is_told_once_for_all_and_for_each_project_that_differs() -> None:
    assert words(
        "[project_rules]\ngrace_seconds = 60\n[project_rules.research]\ngrace_seconds = 90\n",
        "[project_rules]\ngrace_seconds = 30\n[project_rules.research]\ngrace_seconds = 90\nhold = true\n",
    ) == [
        "Default project rules",
        "  grace 60 s -> 30 s",
        "Projects and entitlements",
        "  research",
        "    on hold: no -> yes",
    ]


def test_limits_and_weights_are_told_with_what_their_absence_means() -> None:
    assert words(EVERYTHING, "") == [
        "Default project rules",
        "  half-life of past usage 24 h -> 168 h",
        "  grace 30 s -> 60 s",
        "  borrows v4: at most 10 -> all idle units",
        "Projects and entitlements",
        "  research",
        "    minimum runtime 2.5 min -> 0 min",
        "    maximum runtime 48 h -> unlimited",
        "    FIFO order: yes -> no",
        "    on hold: yes -> no",
        "    borrows v5p: nothing -> all idle units",
        "    lends v4: at most 20 -> all",
        "    weight of user alice: 2 -> 1",
        "    weight of user intern-1: 0.5 -> 1",
    ]


def test_rules_that_say_what_held_before_are_no_change() -> None:
    assert not difference(load(""), load("[project_rules.research]\ngrace_seconds = 60\nhold = false\n"))
    assert not difference(load(""), load("[project_rules.research.user_weights]\nalice = 1.0\n"))


def test_the_way_back_is_told_with_before_and_after_exchanged() -> None:
    there, back = (difference(load(a), load(b)) for a, b in ((EVERYTHING, ""), ("", EVERYTHING)))
    for one, other in ((there.rules, back.rules), (there.projects[0].rules, back.projects[0].rules)):
        assert [(rule.key, rule.before, rule.after) for rule in one] == [
            (rule.key, rule.after, rule.before) for rule in other
        ]


def test_a_new_project_is_told_with_the_rules_in_which_it_differs_from_all_others() -> None:
    one, other = (
        load("[project_rules]\nfifo = true\n"),
        load("[project_rules]\nfifo = true\n[project_rules.research]\nhold = true\n"),
    )
    without = replace(one, weights={"product": {"v4": 1.0}}, members={"product": ("bob",)})
    told = list(describe(difference(without, other)))
    assert told[-3:] == [
        "  research is new: v4 0 -> 60 (+60)",
        "    members added: alice, intern-.*",
        "    on hold: no -> yes",
    ]
    removed = list(describe(difference(other, without)))
    assert "  research is removed: v4 60 -> 0 (-60)" in removed
    assert not any("hold" in line for line in removed)


def test_a_long_list_of_rules_is_cut() -> None:
    many = "".join(f"intern-{number:02} = 2\n" for number in range(25))
    assert words("", f"[project_rules.research.user_weights]\n{many}")[-1] == "    and 5 more rules"
