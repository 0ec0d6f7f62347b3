"""Quota files that together show every rule, and every difference between two files."""

from __future__ import annotations

from collections.abc import Iterator

from quota import Policy, load
from quota.diff import MEMBERS_SHOWN, PROJECTS_SHOWN, RULES_SHOWN, describe, difference
from quota.summary import render_check

_RULES = """\
half_life_hours = 12
minimum_runtime_minutes = 30
keep_idle_seconds = 60
grace_seconds = 90
maximum_runtime_hours = 48
fifo = true
max_queued_jobs = 100
max_queued_jobs_per_user = 10
highest_priority = 2
instance_types = ["tpu-v4-*", "gpu-h100-8"]
allow_bastion_jobs = false
allow_root = true
borrowing_limit = { v4 = 8 }
lending_limit = { v4 = 0 }
user_weights = { alice = 2 }
"""


def quota_file(
    *, rules: str = "", own: str = "", tiers: str = "{ v4 = 64 }", **projects: tuple[float, list[str]]
) -> str:
    """A file with these weights and members by project, common rules, and rules of project `a`."""
    members = "\n".join(f"{project} = {names}" for project, (_, names) in projects.items())
    weights = "\n".join(
        f"[project_resources.{project}]\nv4 = {weight}" for project, (weight, _) in projects.items() if weight
    )
    return (
        f'total_resources = [{tiers}]\n[toml-schema]\nversion = "1"\n[project_membership]\n{members}\n{weights}\n'
        f"[project_rules]\n{rules}" + (f"[project_rules.a]\n{own}" if own else "")
    )


def pairs() -> Iterator[tuple[str, str, str]]:
    """Titles and two files."""
    one, other = (1.0, ["alice"]), (1.0, ["bob"])
    usual = quota_file(a=one, b=other)
    yield "the same", usual, usual
    yield "every rule", usual, quota_file(rules=_RULES, a=one, b=other)
    yield "a project's rules", usual, quota_file(own=_RULES + "hold = true\n", a=one, b=other)
    yield "a project more", usual, quota_file(a=one, b=other, c=(0.0, ["carol"]))
    yield "tiers", usual, quota_file(tiers="{ v4 = 32 }, { v4 = 64, v5p = 8 }", a=one, b=other)
    admins = '[admins]\nbastion = ["carol"]\n[admins.projects]\na = ["dan"]\n'
    yield "admins", usual, quota_file(a=one, b=other) + admins
    many = [f"user{number}" for number in range(MEMBERS_SHOWN + 1)]
    yield "members", usual, quota_file(a=one, b=(1.0, many))
    projects = {f"p{number}": one for number in range(PROJECTS_SHOWN + 1)}
    yield "projects", quota_file(a=one, **projects), usual
    yield (
        "users",
        usual,
        quota_file(own="".join(f"user_weights.u{n} = 2\n" for n in range(RULES_SHOWN + 1)), a=one, b=other),
    )


def _load(file: str) -> Policy:
    return load(file.encode())


def text() -> str:
    """The golden text: each difference in both directions, and what `bastion quota check` says of the second file."""
    lines: list[str] = []
    for title, one, other in pairs():
        before, after = _load(one), _load(other)
        lines += ["", f"# {title}", *describe(difference(before, after))]
        lines += ["", f"# {title}, back", *describe(difference(after, before))]
    for title, _, file in pairs():
        lines += ["", f"# check: {title}", render_check(_load(file)).rstrip()]
    return "\n".join(lines) + "\n"
