"""No bytes make the quota reader do anything but return a policy or say what is wrong."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

import quota

PIECES = st.sampled_from(
    [
        "[toml-schema]\n",
        'version = "1"\n',
        "[total_resources]\n",
        "[[total_resources]]\n",
        "[project_membership]\n",
        "[project_resources.a]\n",
        "[project_resource.b]\n",
        "v4 = 8\n",
        "v4 = 0.5\n",
        "v4 = {x = [1, {y = 2}]}\n",
        'a = ["u", "(a+)+", \'x"#\']\n',
        '"a.b" = """[x]\n"""\n',
        "project_resources.c.v4 = 1\n",
        "[project_rules]\n",
        "[project_rules.a]\n",
        "[project_rules.a.user_weights]\n",
        "project_rules.c.hold = true\n",
        "hold = true\n",
        "grace_second = 1\n",
        "borrowing_limit = {v4 = 8}\n",
        "# [note]\n",
        "\n",
        "[",
        '"',
    ]
)


def read(data: bytes) -> None:
    try:
        policy = quota.load(data)
    except quota.QuotaFileError as error:
        lines = data.count(b"\n") + 1
        assert error.problems
        assert all(problem.line is None or 1 <= problem.line <= lines for problem in error.problems)
    else:
        for kind in policy.resource_types:
            assert all(
                policy.entitlement(project, kind) <= policy.ceiling(project, kind) <= policy.total(kind)
                for project in policy.projects
            )
            assert sum(policy.entitlement(project, kind) for project in policy.projects) <= policy.total(kind)
        assert quota.render_check(policy)


@settings(max_examples=200, deadline=None)
@given(st.lists(PIECES, max_size=14).map("".join))
def test_any_arrangement_of_tables_is_read_or_refused_with_lines_of_the_file(text: str) -> None:
    read(text.encode())


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    read(data)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 1e9), min_size=1), st.integers(0, 10**9))
def test_entitlements_never_add_up_to_more_than_the_pool(weights: dict[str, float], total: int) -> None:
    policy = quota.Policy(
        tiers=({"v4": total},), weights={name: {"v4": weight} for name, weight in weights.items()}, members={}
    )
    shares = [policy.entitlement(name, "v4") for name in weights]
    assert sum(shares) <= total
    if any(weights.values()):
        assert total - sum(shares) < len(shares)
