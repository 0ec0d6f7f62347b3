"""Principals, as the identity document names them: who may write an inbox."""

from __future__ import annotations

import re

_GOOGLE = re.compile(r"(?P<kind>user|serviceAccount|group|domain|principal|principalSet):[^\s,]{1,500}")
_GOOGLE_SEVERAL = ("group", "domain", "principalSet")
_EVERYBODY = ("allUsers", "allAuthenticatedUsers")
_AMAZON = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:(?P<kind>user|role)/(?:[\x21-\x7e]*/)?(?P<name>[\w+=,.@-]{1,64})")


def google_problem(member: str, *, project: str) -> str:
    """Why an inbox on Cloud Storage cannot be of that principal, and what to write; empty if it can."""
    if member in _EVERYBODY:
        return f"{member} is everybody, which proves nothing; name one principal, like user:alice@example.com"
    found = _GOOGLE.fullmatch(member)
    if found is None:
        return (
            f"--member={member[:80]!r} is not a principal of Google Cloud; write user:alice@example.com, "
            "serviceAccount:... or principal://..., or with --project group:..."
        )
    if found["kind"] in _GOOGLE_SEVERAL and not project:
        return (
            f"{member} is several people, so the inbox would not prove who wrote; name one principal, or use "
            "--project=P for an inbox that a project shares"
        )
    return ""


def amazon_problem(member: str) -> str:
    """The same on S3."""
    if _AMAZON.fullmatch(member):
        return ""
    return (
        f"--member={member[:80]!r} is not a role or user of AWS; write its ARN, like "
        "arn:aws:iam::123456789012:role/alice"
    )


def amazon_parts(member: str) -> tuple[str, str]:
    """`role` or `user`, and the name without its path."""
    found = _AMAZON.fullmatch(member)
    return (found["kind"], found["name"]) if found else ("role", "ROLE")
