"""Quota files for the tests of `bastion quota`: a pool of 64 v4 for alice's project a and bob's project b."""

from __future__ import annotations

_HEAD = '[toml-schema]\nversion = "1"\n[total_resources]\nv4 = 64\n'
_MEMBERS = '[project_membership]\na = ["alice"]\nb = ["bob"]\n'


def shares(a: float, b: float, *, note: str = "", members: str = _MEMBERS) -> bytes:
    """The file in which a and b have these shares.

    Args:
        note: Stands in front of it.
        members: Another section of who belongs where.
    """
    return f"{note}{_HEAD}{members}[project_resources]\na = {{ v4 = {a} }}\nb = {{ v4 = {b} }}\n".encode()
