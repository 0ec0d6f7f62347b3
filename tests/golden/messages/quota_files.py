"""Quota files that together give every problem and warning about one."""

from __future__ import annotations

from collections.abc import Iterator

from quota import QuotaFileError, load

BASE = """\
[toml-schema]
version = "1"
[total_resources]
v4 = 100
v5p = 8
[project_membership]
research = ["alice", "team-.*"]
[project_resources.research]
v4 = 0.6
"""


def changed(old: str, new: str) -> str:
    return BASE.replace(old, new)


def files() -> Iterator[tuple[str, str | bytes]]:
    """Titles and files."""
    yield "empty", ""
    yield "too large", "#" * (1024 * 1024 + 1)
    yield "not UTF-8", b"\xff"
    yield "not TOML", BASE + "a = \n"
    yield "an unfinished string", BASE + 'a = """'
    yield "a long number", changed("100", "0x" + "1" * 2000)
    yield "a very long number", changed("100", "1" * 5000)
    yield "deep brackets", f"a = {'[' * 10_000}{']' * 10_000}"
    yield "no tables", "[other]\n"
    yield "a misspelled table", changed("[total_resources]", "[total_resource]")
    yield "a misspelled table beside the right one", BASE + "[project_rules]\n[project_rule]\n"
    yield "another version", changed('"1"', '"2"')
    yield "no version", changed('version = "1"', "")
    yield "no table", "project_rules = 3\n" + BASE
    yield "no tiers", "total_resources = []\n" + changed("[total_resources]\nv4 = 100\nv5p = 8\n", "")
    yield "a tier", "total_resources = [3]\n" + changed("[total_resources]\nv4 = 100\nv5p = 8\n", "")
    yield "names", changed("v5p = 8", '"a b" = 8') + '[project_resources."a/b"]\n[project_rules."a b"]\n'
    yield "an amount", changed("100", "1.5")
    yield "members", changed('["alice", "team-.*"]', '"alice"')
    yield "a member", changed('"team-.*"', "3")
    yield "a weight", changed("0.6", "-1")
    yield "a large weight", changed("0.6", "1e10")
    yield "a type that left the pool", BASE + "v9 = 1\nv5 = 1\n"
    yield "projects", BASE + "[project_resources.x]\nv4 = 1\n[project_resources.y]\n" + ""
    yield "an empty project", changed('["alice", "team-.*"]', "[]")
    yield "no weights", changed("[project_resources.research]\nv4 = 0.6", "[project_resources]")
    yield "many problems", changed("100", "100\n" + "".join(f"t{n} = -1\n" for n in range(300)))
    for pattern in (
        "",
        "a" * 300,
        "[",
        "(?!bot-).*",
        "(a)\\1",
        "a*+",
        "(?<=a*)b",
        "a{,3}",
        "(?:\\w{1,100}){100}",
        "[a-z]{1000}" * 3,
    ):
        yield f"the pattern {pattern[:20]}", changed("team-.*", pattern.replace("\\", "\\\\"))
    yield "many patterns", changed('"team-.*"', ", ".join(f'"t{n}-(?:a|b|.*c){{9}}"' for n in range(2000)))
    for rules in (
        "fifo = 1",
        "grace = 60",
        "grace_seconds = -1",
        "max_queued_jobs = 0",
        "borrowing_limit = 3",
        "borrowing_limit = { v4 = -1 }",
        "lending_limit = { v5 = 1 }",
        "lending_limit = { tpu = 1 }",
        "user_weights = { a.b = 1 }",
        'user_weights = { "" = 1 }',
        "allow_root = 1",
        "highest_priority = 6",
        'instance_types = "tpu-v4-8"',
        'instance_types = ["v4 32"]',
        "research = true",
        "colour = 3",
        "[project_rules.gone]\nhold = true",
        "[project_rules.reserch]\nhold = true",
        "[project_rules.research.user_weights]\nalicia = 2",
    ):
        yield rules.replace("\n", " "), f"{BASE}[project_rules]\n{rules}\n"
    for admins in (
        "[[admins]]",
        '[admins]\nbastion = "carol"',
        "[admins]\nbastion = [1]",
        '[admins]\nresearch = ["alice"]',
        "[admins]\nprojects = []",
        "[admins.projects]\n'a b' = []",
        "[admins.projects]\ngone = []",
    ):
        yield admins.replace("\n", " "), f"{BASE}{admins}\n"


def lines(title: str, data: str | bytes) -> Iterator[str]:
    yield f"\n# {title}"
    try:
        policy = load(data if isinstance(data, bytes) else data.encode())
    except QuotaFileError as error:
        yield from (f"refused: {problem}" for problem in (*error.problems[:4], *error.problems[4:][-1:]))
    else:
        yield from (f"warning: {warning}" for warning in policy.warnings)


def text() -> str:
    """The golden text."""
    return "\n".join(line for title, data in files() for line in lines(title, data)) + "\n"
