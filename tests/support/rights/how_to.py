"""What docs/how-to/run-on-gcp.md grants: its roles, managed folders and bindings, and its table of who may do what.

With inboxes, docs/how-to/share-a-bastion.md comes after it: `SHARED`.
"""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from tests.support import page_commands
from tests.support.rights.bindings import Granted

REPOSITORY = Path(__file__).resolve().parents[3]
PAGE = (REPOSITORY / "docs" / "how-to" / "run-on-gcp.md").read_text("utf-8")
SHARE_PAGE = (REPOSITORY / "docs" / "how-to" / "share-a-bastion.md").read_text("utf-8")
SHARED = PAGE + SHARE_PAGE

PROJECT, BUCKET, PRIVATE, BASTION = "my-project", "my-team-bastion", "my-team-bastion-admin", "alice-bastion"
USERS, ADMINS = "group:tpu-users@example.com", "group:tpu-admins@example.com"
DAEMON, WORKER = (f"serviceAccount:bastion-{name}@my-project.iam.gserviceaccount.com" for name in ("daemon", "worker"))


def commands(page: str = PAGE, program: str = "gcloud") -> list[list[str]]:
    return page_commands.commands(page, program)


def roles(page: str = PAGE) -> dict[str, list[str]]:
    """The permissions of each custom role of the bucket, by its full name."""
    found = {}
    for words in commands(page):
        if words[:3] == ["iam", "roles", "create"]:
            document = yaml.safe_load((REPOSITORY / _flag(words, "--file")).read_text("utf-8"))
            found[f"projects/{_flag(words, '--project')}/roles/{words[3]}"] = document["includedPermissions"]
    return {name: permissions for name, permissions in found.items() if not name.endswith("Provisioner")}


def folders(page: str = PAGE) -> list[tuple[str, str]]:
    return [_place(words[3]) for words in commands(page) if words[:3] == ["storage", "managed-folders", "create"]]


def granted(page: str = PAGE) -> list[Granted]:
    """What the page grants, less what it takes away."""
    taken = [one.told for one in _bindings(page, "remove-iam-policy-binding")]
    return [one for one in _bindings(page, "add-iam-policy-binding") if one.told not in taken]


def _bindings(page: str, command: str) -> list[Granted]:
    return [granted_by(words) for words in commands(page) if words[:3] == ["storage", "managed-folders", command]]


def removed() -> list[tuple[str, str, str]]:
    """Bucket, member and role of the bindings of new buckets that the page takes away."""
    return [
        (_place(words[3])[0], _flag(words, "--member"), _flag(words, "--role"))
        for words in commands()
        if words[:3] == ["storage", "buckets", "remove-iam-policy-binding"]
    ]


def table(page: str = PAGE) -> list[tuple[str, str, str]]:
    """Who, reads, writes: the rows of "Who may do what"."""
    section = page.partition("\n## Who may do what\n")[2]
    rows = re.findall(r"^\| \*\*(\w+)\*\*[^|]*\| ([^|]*) \| ([^|]*) \|$", section, re.MULTILINE)
    return [(who, reads, writes) for who, reads, writes in rows]


def granted_by(words: list[str]) -> Granted:
    """What a command of gcloud without its name adds or removes."""
    bucket, folder = _place(words[3])
    condition = _flag(words, "--condition")
    title, _, expression = condition.partition(",expression=")
    return Granted(
        bucket=bucket,
        folder=folder,
        role=_flag(words, "--role"),
        member=_flag(words, "--member"),
        condition={"title": title.removeprefix("title="), "expression": expression} if expression else None,
    )


def _place(url: str) -> tuple[str, str]:
    bucket, _, name = url.removeprefix("gs://").partition("/")
    return bucket, name


def _flag(words: list[str], name: str) -> str:
    return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")
