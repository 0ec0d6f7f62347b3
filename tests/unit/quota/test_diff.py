"""What a quota file changes against another, in values and in words."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from quota import Policy
from quota.diff import AmountChange, Difference, ProjectChange, describe, difference

NOTHING = Policy(tiers=(), weights={}, members={})
_KINDS = st.sampled_from(["v4", "v5p", "v6e"])
_PROJECTS = st.sampled_from(["a", "b", "c", "d"])


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    tiers = draw(st.lists(st.dictionaries(_KINDS, st.integers(0, 64)), min_size=1, max_size=3))
    kinds = sorted({kind for tier in tiers for kind in tier})
    weights = st.dictionaries(st.sampled_from(kinds), st.sampled_from([0.0, 0.1, 1.0, 3.0])) if kinds else st.just({})
    return Policy(
        tiers=tuple(tiers),
        weights=draw(st.dictionaries(_PROJECTS, weights)),
        members=draw(st.dictionaries(_PROJECTS, st.lists(st.sampled_from(["x", "y", "z.*"])).map(tuple))),
    )


def policy(total: int = 64, *, members: dict[str, tuple[str, ...]] | None = None, **weights: float) -> Policy:
    return Policy(
        tiers=({"v4": total},),
        weights={project: {"v4": weight} for project, weight in weights.items()},
        members=members if members is not None else dict.fromkeys(weights, ("alice",)),
    )


def words(before: Policy, after: Policy, **how: int) -> list[str]:
    return list(describe(difference(before, after), **how))


def reverse(change: AmountChange) -> AmountChange:
    return AmountChange(resource_type=change.resource_type, before=change.after, after=change.before)


def reverse_project(change: ProjectChange) -> ProjectChange:
    return ProjectChange(
        project=change.project,
        existed=change.exists,
        exists=change.existed,
        entitlements=tuple(map(reverse, change.entitlements)),
        members_added=change.members_removed,
        members_removed=change.members_added,
    )


@settings(max_examples=60)
@given(policies())
def test_a_file_differs_in_nothing_from_itself(one: Policy) -> None:
    found = difference(one, one)
    assert not found
    assert list(describe(found)) == ["no changes: both files have the same meaning"]


@settings(max_examples=60)
@given(policies(), policies())
def test_the_way_back_is_the_same_difference_with_before_and_after_exchanged(one: Policy, other: Policy) -> None:
    there, back = difference(one, other), difference(other, one)
    assert back == Difference(
        types_added=there.types_removed,
        types_removed=there.types_added,
        tiers=tuple((number, tuple(map(reverse, changes))) for number, changes in there.tiers),
        totals=tuple(map(reverse, there.totals)),
        projects=tuple(map(reverse_project, there.projects)),
    )
    assert {change.project for change in there.projects if change.gains} == {
        change.project for change in back.projects if change.loses
    }


@settings(max_examples=60)
@given(policies(), policies())
def test_the_changes_lead_from_every_entitlement_to_the_new_one(one: Policy, other: Policy) -> None:
    found = difference(one, other)
    gains = {
        (change.project, amount.resource_type): amount.gain
        for change in found.projects
        for amount in change.entitlements
    }
    for project in {*one.projects, *other.projects}:
        for kind in {*one.resource_types, *other.resource_types}:
            before, after = one.entitlement(project, kind), other.entitlement(project, kind)
            assert before + gains.get((project, kind), 0) == after


@settings(max_examples=60)
@given(policies(), policies())
def test_what_changes_is_told_and_equal_differences_in_equal_words(one: Policy, other: Policy) -> None:
    found = difference(one, other)
    told = list(describe(found))
    assert told == list(describe(difference(one, other)))
    for change in found.projects:
        assert any(line.startswith(f"  {change.project}") for line in told)
    for kind in (*found.types_added, *found.types_removed):
        assert any(line.startswith(f"  resource type {kind} is ") for line in told)


def test_weights_in_the_same_ratio_and_members_in_another_order_are_no_change() -> None:
    one = policy(a=0.6, b=0.4, members={"a": ("x", "y"), "b": ()})
    other = policy(a=6, b=4, members={"b": (), "a": ("y", "x", "x")})
    assert not difference(one, other)


def test_the_list_form_of_one_tier_is_no_change_and_a_second_tier_is_told() -> None:
    one = policy(a=1)
    assert not difference(one, Policy(tiers=({"v4": 64}, {}), weights=one.weights, members=one.members))
    more = Policy(tiers=({"v4": 32}, {"v4": 96}), weights=one.weights, members=one.members)
    assert words(one, more) == [
        "Pool",
        "  tier 0: v4 64 -> 32 (-32)",
        "  tier 1: v4 0 -> 96 (+96)",
        "  all tiers: v4 64 -> 128 (+64)",
        "Projects and entitlements",
        "  a: v4 64 -> 128 (+64)",
    ]


def test_the_words_name_shares_projects_and_members_and_begin_with_the_losers() -> None:
    one = policy(a=1, b=1, old=2, members={"a": ("alice", "eve"), "b": ("bob",), "old": ("o",)})
    other = policy(a=2, b=1, new=1, members={"a": ("alice",), "b": ("bob", "carol"), "new": ("n",)})
    assert words(one, other) == [
        "Projects and entitlements",
        "  old is removed: v4 32 -> 0 (-32)",
        "  a: v4 16 -> 32 (+16)",
        "    members removed: eve",
        "  new is new: v4 0 -> 16 (+16)",
        "    members added: n",
        "  b",
        "    members added: carol",
    ]


def test_a_type_of_no_units_is_still_a_new_type() -> None:
    one = policy(a=1)
    other = Policy(tiers=({"v4": 64, "v5p": 0},), weights=one.weights, members=one.members)
    assert words(one, other) == ["Pool", "  resource type v5p is new"]
    assert words(other, one) == ["Pool", "  resource type v5p is removed"]


def test_of_many_projects_those_who_gain_are_counted_and_the_losers_shown() -> None:
    one = policy(3200, loser=2.0, **{f"p{number:02}": 1.0 for number in range(30)})
    other = policy(3200, loser=1.0, **{f"p{number:02}": 1.0 for number in range(30)})
    told = words(one, other, projects_shown=3)
    assert told[1].startswith("  loser: v4 200 -> 103 (-97)")
    assert told[2].startswith("  p00: v4 100 -> 103")
    assert told[-1] == "  and 28 more projects"
    assert len(told) == 5
    assert words(other, one, projects_shown=3)[-1] == "  and 28 more projects; 27 of them lose something"


def test_a_long_list_of_members_is_cut() -> None:
    many = tuple(f"user{number:02}" for number in range(20))
    told = words(policy(a=1, members={"a": ()}), policy(a=1, members={"a": many}))
    assert told[-1].endswith("user06, user07 and 12 more")


def test_against_nothing_everything_is_new() -> None:
    assert words(NOTHING, policy(a=1, members={"a": ("alice",), "guest": ()})) == [
        "Pool",
        "  resource type v4 is new",
        "  v4 0 -> 64 (+64)",
        "Projects and entitlements",
        "  a is new: v4 0 -> 64 (+64)",
        "    members added: alice",
        "  guest is new: can only borrow",
    ]
