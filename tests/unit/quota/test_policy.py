"""The quota file: what it means, and what is said about every way to get it wrong."""

from __future__ import annotations

import re
import time

import pytest
import tomli

import quota
from quota.lines import Lines

GOOD = """\
[toml-schema]
version = "1"

[total_resources]
v4 = 1024

[project_membership]
project1 = ["user1", "user2", "team-.*"]
project2 = ["user1", "user3"]

[project_resources.project1]
v4 = 0.6

[project_resources.project2]
v4 = 0.4
"""


def problems(text: str | bytes) -> list[tuple[int | None, str]]:
    data = text.encode() if isinstance(text, str) else text
    with pytest.raises(quota.QuotaFileError) as caught:
        quota.load(data)
    assert str(caught.value) == "\n".join(str(problem) for problem in caught.value.problems)
    return [(problem.line, problem.message) for problem in caught.value.problems]


def line_of(text: str, part: str) -> int:
    (line,) = [number for number, line in enumerate(text.splitlines(), 1) if part in line]
    return line


def test_the_ancestors_example_gives_its_documented_shares() -> None:
    policy = quota.load(GOOD.encode())
    assert policy.projects == ("project1", "project2")
    assert policy.resource_types == ("v4",)
    assert policy.total("v4") == 1024
    assert (policy.entitlement("project1", "v4"), policy.entitlement("project2", "v4")) == (614, 409)
    assert policy.warnings == ()


@pytest.mark.parametrize(
    ("weights", "total", "expected"),
    [
        (("0.6", "0.4"), 1000, (600, 400)),
        (("0.1", "0.2", "0.7"), 10, (1, 2, 7)),
        (("3", "1"), 512, (384, 128)),
        (("0.3", "0.3", "0.3"), 900, (300, 300, 300)),
        (("0", "0"), 64, (0, 0)),
        (("0.29", "0.71"), 100, (29, 71)),
    ],
)
def test_a_weight_is_a_part_of_the_sum_of_weights_without_rounding_errors(
    weights: tuple[str, ...], total: int, expected: tuple[int, ...]
) -> None:
    names = [f"p{index}" for index in range(len(weights))]
    text = (
        f'[toml-schema]\nversion = "1"\n[total_resources]\nv4 = {total}\n[project_membership]\n'
        + "".join(f'{name} = ["u"]\n' for name in names)
        + "".join(f"[project_resources.{name}]\nv4 = {weight}\n" for name, weight in zip(names, weights, strict=True))
    )
    policy = quota.load(text.encode())
    assert tuple(policy.entitlement(name, "v4") for name in names) == expected


def test_a_list_of_total_resources_is_a_list_of_tiers() -> None:
    text = GOOD.replace("[total_resources]\nv4 = 1024", "[[total_resources]]\nv4 = 512\n[[total_resources]]\nv4 = 256")
    policy = quota.load(text.encode())
    assert [dict(tier) for tier in policy.tiers] == [{"v4": 512}, {"v4": 256}]
    assert policy.total("v4") == 768
    assert policy.entitlement("project1", "v4") == 460


def test_members_are_whole_matches_of_regular_expressions() -> None:
    policy = quota.load(GOOD.encode())
    assert policy.is_member("user1", "project1") and policy.is_member("team-x", "project1")
    assert not policy.is_member("user11", "project1")
    assert not policy.is_member("my-team-x", "project1")
    assert not policy.is_member("user1", "Project1")
    assert policy.projects_of("user1") == ("project1", "project2")
    assert policy.projects_of("nobody") == ()


def test_user_ids_over_128_characters_belong_to_nobody() -> None:
    policy = quota.load(GOOD.encode())
    assert policy.is_member("team-" + "x" * 123, "project1")
    assert not policy.is_member("team-" + "x" * 124, "project1")


def test_a_policy_cannot_be_changed() -> None:
    policy = quota.load(GOOD.encode())
    with pytest.raises(TypeError):
        policy.tiers[0]["v4"] = 1  # type: ignore[index]
    with pytest.raises(TypeError):
        policy.weights["project1"]["v4"] = 1.0  # type: ignore[index]
    with pytest.raises(AttributeError):
        policy.tiers = ()  # type: ignore[misc]


def test_unknown_tables_and_a_byte_order_mark_are_left_alone() -> None:
    policy = quota.load(b"\xef\xbb\xbf" + GOOD.encode() + b'\n[owners]\ncontact = "x"\n')
    assert policy.warnings == ()


def test_all_problems_are_reported_each_with_its_line() -> None:
    text = GOOD.replace('version = "1"', "version = 2").replace("v4 = 0.4", 'v4 = "much"')
    text = text.replace('"user3"]', '\n  "(?=a)b",\n  7,\n]')
    found = problems(text)
    assert [line for line, _ in found] == [
        line_of(text, "version"),
        line_of(text, "(?=a)b"),
        line_of(text, "  7,"),
        line_of(text, "much"),
    ]


@pytest.mark.parametrize("amount", ["true", '"64"', "-1", "1.5", "inf", "nan", "10000000000", "[]", "1979-05-27"])
def test_amounts_are_whole_numbers_within_limits(amount: str) -> None:
    text = GOOD.replace("v4 = 1024", f"v4 = {amount}")
    ((line, message),) = [problem for problem in problems(text) if "amount" in problem[1]]
    assert line == 5
    assert "whole number" in message


@pytest.mark.parametrize("weight", ["true", '"0.5"', "-0.1", "inf", "nan", "[]", "1e10"])
def test_weights_are_finite_numbers_of_at_least_zero(weight: str) -> None:
    text = GOOD.replace("v4 = 0.4", f"v4 = {weight}")
    ((line, message),) = problems(text)
    assert line == line_of(text, f"v4 = {weight}")
    assert "[project_resources.project2]" in message


@pytest.mark.parametrize(
    ("weight", "part"),
    [("-0.1", "is -0.1; write a number"), ("nan", "is nan; write a number"), ("inf", "must be at most")],
)
def test_a_weight_that_cannot_be_is_told_what_it_may_be(weight: str, part: str) -> None:
    ((_, message),) = problems(GOOD.replace("v4 = 0.4", f"v4 = {weight}"))
    assert part in message


def test_a_misspelt_resource_type_gets_a_suggestion() -> None:
    text = GOOD.replace("v4 = 1024", "v5litepod = 1024\nv4 = 8").replace("v4 = 0.4", "v5litpod = 0.4")
    (warning,) = quota.load(text.encode()).warnings
    assert warning.line == line_of(text, "v5litpod")
    assert "did you mean v5litepod?" in warning.message


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("[toml-schema]", "[toml_schema]"),
        ("[total_resources]", "[total_resource]"),
        ("[project_membership]", "[project_memberships]"),
        ("[project_resources.", "[project_resource."),
    ],
)
def test_a_misspelt_table_is_named_instead_of_being_called_missing(right: str, wrong: str) -> None:
    found = problems(GOOD.replace(right, wrong))
    name = right.strip("[].")
    assert any(f"did you mean [{name}]?" in message and line is not None for line, message in found)
    assert not any(f"[{name}] is missing" in message for _, message in found)


def test_one_misspelt_table_beside_the_right_one_is_a_warning() -> None:
    policy = quota.load((GOOD + "[project_resource.project3]\nv4 = 1\n").encode())
    assert [warning.line for warning in policy.warnings] == [16]


def test_of_a_project_whose_id_is_not_allowed_only_that_is_told() -> None:
    ((line, message),) = problems(GOOD.replace("project2 = ", "'a/b' = 3 #").replace(".project2]", ".project1x]"))
    assert line == 9
    assert "project id" in message


def test_a_member_that_is_no_text_is_named_with_its_project() -> None:
    assert problems(GOOD.replace('"user2"', "3")) == [(8, 'a member of project1 is 3; write a string like "user1"')]


@pytest.mark.parametrize("project", ['"a/b"', '".."', '"x y"', '""', "-a", "a" * 64, '"ä"'])
def test_project_ids_are_plain_names(project: str) -> None:
    found = problems(GOOD.replace("project2 = ", f"{project} = "))
    assert [line for line, message in found if "project id" in message] == [9]


def test_projects_of_different_case_are_different_and_looked_at_twice() -> None:
    policy = quota.load(GOOD.replace("project2 =", "Project2 =").encode())
    assert policy.projects == ("Project2", "project1", "project2")
    assert policy.entitlement("Project2", "v4") == 0
    messages = [warning.message for warning in policy.warnings]
    assert any("did you mean Project2?" in message for message in messages)
    assert any("can only borrow" in message for message in messages)


@pytest.mark.parametrize(
    ("data", "part"),
    [
        (b"", "empty"),
        (b"  \n\n", "empty"),
        (b"# nothing\n", "missing"),
        (b"x" * (1024 * 1024 + 1), "larger than 1048576 bytes"),
        (b"a = " + b"[" * 100_000, "nest"),
        (b"a = " + b"{a=" * 100_000, "nest"),
        (b".".join([b"a"] * 50_000) + b" = 1", "nest"),
        (b"a = " + b"9" * 10_000, "number"),
    ],
)
def test_hostile_files_get_a_clear_refusal(data: bytes, part: str) -> None:
    assert any(part in message for _, message in problems(data))


def test_bytes_that_are_not_utf_8_are_found_on_their_line() -> None:
    assert problems(GOOD.encode() + b"\n# caf\xe9\n")[0][0] == 17


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (GOOD.replace('"user2"', "user2"), 8),
        (GOOD.replace("v4 = 0.6", "v4 = "), 12),
        (GOOD + "[project_resources.project1]\nv4 = 1\n", 16),
        (GOOD + "x = [1,\n", 16),
    ],
)
def test_syntax_errors_carry_their_line(text: str, line: int) -> None:
    ((found, message),) = problems(text)
    assert found == line
    assert "not valid TOML" in message


def test_lines_are_found_in_inline_tables_dotted_keys_and_after_multi_line_strings() -> None:
    text = '''\
note = """
v4 = true
[total_resources]
"""
toml-schema.version = "1"
total_resources = [
  {v4 = 8, v5e = true},  # "]" in a comment
  # {v4 = -1}
  {'v4' = -1},
]
project_membership.a = ["x", """y"]
z""", 5]
project_resources."a".v4 = 0.5
project_resources = 7
'''
    text = text.removesuffix("project_resources = 7\n")
    assert [line for line, _ in problems(text)] == [7, 9, 12]


@pytest.mark.parametrize(
    ("old", "new", "line", "part"),
    [
        ('[toml-schema]\nversion = "1"', "toml-schema = 3", 1, "[toml-schema] must be a table, not 3"),
        ('version = "1"', "", 1, "the version in [toml-schema] is missing"),
        ("v4 = 1024", 'v4 = 1024\n"a b" = 1', 6, "'a b' is not a valid resource type"),
        ("[project_resources.project2]", '[project_resources."a/b"]', 14, "'a/b' is not a valid project id"),
        ("[project_resources.project2]", "[project_resources]\nproject2 = 3\n[other]", 15, "must be a table, not 3"),
        ('["user1", "user3"]', '"user1"', 9, "write a list like"),
    ],
)
def test_what_should_be_a_table_or_a_name_and_is_none_is_told(old: str, new: str, line: int, part: str) -> None:
    assert old in GOOD
    ((found, message),) = problems(GOOD.replace(old, new))
    assert part in message
    assert found == line


@pytest.mark.parametrize(
    ("value", "part"), [("[]", "is an empty list"), ("3", "must be a table"), ("[1]", "tier 0 of")]
)
def test_total_resources_is_a_table_or_a_list_of_some(value: str, part: str) -> None:
    text = f"total_resources = {value}\n" + GOOD.replace("[total_resources]\nv4 = 1024\n", "")
    ((line, message),) = problems(text)
    assert line == 1
    assert part in message


def test_a_type_that_has_left_the_pool_gives_nothing_and_is_warned_of() -> None:
    whole = quota.load(GOOD.encode())
    policy = quota.load(GOOD.replace("v4 = 1024", "v5p = 64").encode())
    assert {(line.line, line.message.partition(" ")[2]) for line in policy.warnings} == {
        (found, "has 'v4', which is not in total_resources; it is ignored; add it there or delete it here")
        for found, line in enumerate(GOOD.splitlines(), start=1)
        if line.startswith("v4 = 0")
    }
    assert policy.projects == whole.projects
    assert [policy.entitlement(project, "v4") for project in policy.projects] == [0, 0]
    assert policy.resource_types == ("v5p",)


def test_a_project_with_an_empty_list_of_members_is_looked_at_twice() -> None:
    ((line, message),) = [
        (warning.line, warning.message)
        for warning in quota.load(GOOD.replace('["user1", "user3"]', "[]").encode()).warnings
    ]
    assert line == 9
    assert "project2 has no members; add some" in message


def test_a_header_below_a_list_of_tables_is_about_the_lists_last_one() -> None:
    text = "[[a]]\nx = 1\n[[a]]\n[a.b]\ny = 2\n"
    lines = Lines(text)
    assert [lines.of(*path) for path in (("a",), ("a", 0, "x"), ("a", 1), ("a", 1, "b", "y"), ("z",))] == [
        1,
        2,
        3,
        5,
        None,
    ]


def test_spaces_and_dots_in_keys_and_headers_do_not_hide_their_lines() -> None:
    lines = Lines("[ a . b ]\nx . y = 1\n'c' = 2\n[[ d ]]\n[ d . e ]\nz=1\n")
    places = {("a", "b"): 1, ("a", "b", "x", "y"): 2, ("a", "b", "c"): 3, ("d", 0): 4, ("d", 0, "e"): 5}
    assert {path: lines.of(*path) for path in places} == places
    assert lines.of("d", 0, "e", "z") == 6
    assert lines.of("a", "other") == 1


@pytest.mark.parametrize("rest", ["b = [1,", "= 1", "b c", "[b"])
def test_where_the_text_goes_on_as_no_toml_does_what_stands_before_has_its_line(rest: str) -> None:
    lines = Lines(f"\na = 1\n{rest}")
    assert lines.of("a") == 2
    assert lines.of("a", "inside") == 2


def test_a_syntax_error_is_told_with_its_column_unless_the_text_ends() -> None:
    assert problems("a = 1\nb = ?\n") == [(2, "not valid TOML: Invalid value (column 5); correct the syntax")]
    assert problems("a = 1\n\nb = [\n\n") == [(3, "not valid TOML: Invalid value; correct the syntax")]


def test_a_parser_that_does_not_tell_the_line_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    def complain(_: str) -> None:
        raise tomli.TOMLDecodeError("this is odd")

    monkeypatch.setattr(tomli, "loads", complain)
    assert problems(GOOD) == [(None, "not valid TOML: this is odd")]


@pytest.mark.parametrize(
    ("pattern", "part"),
    [
        ("(?:(?:a?){99}){99}", "cannot be matched in linear time"),
        ("(.*)\\\\1", "references to groups"),
        ("(?P<x>a)(?(x)b|c)", "references to groups"),
        ("(?!bot-).*", "look-arounds"),
        ("(?<=a|bc)d", "look-behind requires fixed-width pattern"),
        ("a*+", "possessive"),
        ("a{,3}", "write {0,n}"),
        ("[", "not a valid regular expression"),
        ("a{99999999999}", "not a valid regular expression"),
        ("x" * 257, "257 characters long; the maximum is 256"),
        ("", "the pattern is empty"),
    ],
)
def test_patterns_that_could_take_long_or_are_none_are_refused(pattern: str, part: str) -> None:
    ((line, message),) = [p for p in problems(GOOD.replace("user2", pattern)) if "member" in p[1]]
    assert line == 8
    assert "member of project1" in message
    assert part in message


@pytest.mark.parametrize(
    "pattern", ["user1", "team-.*", "(alice|bob)@example\\\\.com", ".*@.*\\\\.org", "(?i)ops-[0-9]+", "((a+)+)+"]
)
def test_patterns_people_write_are_accepted(pattern: str) -> None:
    quota.load(GOOD.replace("user2", pattern).encode())


def members(patterns: list[str]) -> str:
    return GOOD.replace('"user1", "user2", "team-.*"', ", ".join(f"'{pattern}'" for pattern in patterns))


def test_plain_user_ids_may_be_many_and_patterns_are_bounded_all_together() -> None:
    policy = quota.load(members([f"user{number}" for number in range(20_000)]).encode())
    assert policy.is_member("user19999", "project1")
    assert not policy.is_member("user20000", "project1")
    ((line, message),) = problems(members([f".*[{number % 9}-9]{number}" for number in range(4_000)]))
    assert line == 8
    assert "in total" in message


@pytest.mark.parametrize(
    ("pattern", "user", "expected"),
    [
        ("alice.smith@example.com", "alice.smith@example.com", True),
        ("alice.smith@example.com", "alice_smith@example-com", True),
        ("alice.smith@example.com", "alice.smith@example.co", False),
        ("alice.smith", "alice\nsmith", False),
        ("alice\\.smith", "alice.smith", True),
        ("alice\\.smith", "alice_smith", False),
        ("a\\.b.c", "a.bxc", True),
        ("a\\.b.c", "axb.c", False),
        ("a.b", "a\\b", True),
    ],
)
def test_user_ids_with_dots_mean_what_the_expression_means(pattern: str, user: str, expected: bool) -> None:
    policy = quota.load(members([pattern, "bob"]).encode())
    assert policy.is_member(user, "project1") is expected is bool(re.fullmatch(pattern, user))


def test_as_many_problems_as_are_told_are_all_of_them() -> None:
    found = problems(GOOD + "".join(f'[project_resources.p{number}]\nv4 = "x"\n' for number in range(200)))
    assert [line for line, _ in found] == list(range(17, 17 + 400, 2))


def test_of_very_many_problems_and_warnings_the_first_are_told() -> None:
    many = "".join(f'[project_resources.p{number}]\nv4 = "x"\n' for number in range(300))
    found = problems(GOOD + many)
    assert len(found) == 201
    assert [line for line, _ in found[:-1]] == list(range(17, 17 + 400, 2))
    assert found[-1] == (None, "more are not shown; correct these 200 first")
    assert len(quota.load((GOOD + many.replace('"x"', "1")).encode()).warnings) == 201


def test_a_file_of_thousands_of_unknown_names_is_read_without_guessing_what_each_was_meant_to_be() -> None:
    names = [f"name{number}" for number in range(6_000)]
    text = GOOD + "".join(f"[project_resources.{name}]\n" for name in names)
    text = text.replace(
        "[project_membership]\n", "[project_membership]\n" + "".join(f"{name}x = []\n" for name in names)
    )
    begin = time.process_time()
    policy = quota.load(text.encode())
    assert time.process_time() - begin < 10.0
    messages = [warning.message for warning in policy.warnings]
    assert any("did you mean name0x?" in message for message in messages)


def test_the_summary_shows_tiers_entitlements_members_and_warnings() -> None:
    text = GOOD.replace("[total_resources]\nv4 = 1024", "[[total_resources]]\nv4 = 512\n[[total_resources]]\nv4 = 512")
    text += "[project_resources.idle]\nv4 = 1\n"
    assert (
        quota.render_check(quota.load(text.encode()))
        == """\
Total resources
            v4
  tier 0   512
  tier 1   512
  total   1024

Entitlements
  project    v4  members
  idle      512  (none)
  project1  307  user1, user2, team-.*
  project2  204  user1, user3

Warnings
  line 18: project idle has no members; add it to [project_membership]
"""
    )
