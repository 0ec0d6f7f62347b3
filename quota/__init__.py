"""The quota file: TOML bytes in, a validated `Policy` out. Pure: no I/O, clock, randomness or logging.

The format is a contract: quota files of AXLearn's Bastion keep their meaning. Ours adds tiers (a list of tables in
`total_resources`), regular expressions as members, and project rules.
"""

from __future__ import annotations

from quota.policy import Policy, Problem, QuotaFileError
from quota.reading import load
from quota.rules import ProjectRules
from quota.summary import render_check

__all__ = ["Policy", "Problem", "ProjectRules", "QuotaFileError", "load", "render_check"]
