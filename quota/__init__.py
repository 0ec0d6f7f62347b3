"""The quota file: bytes of TOML in, a validated `Policy` out.

Layer: lowest, pure (no I/O, clock, randomness or logging).

The format is a contract: the ancestor's quota files are read as they are, and ours adds tiers (a list of tables in
`total_resources`), regular expressions as members and rules of projects.
"""

from __future__ import annotations

from quota.policy import Policy, Problem, QuotaFileError
from quota.reading import load
from quota.rules import ProjectRules
from quota.summary import render_check

__all__ = ["Policy", "Problem", "ProjectRules", "QuotaFileError", "load", "render_check"]
