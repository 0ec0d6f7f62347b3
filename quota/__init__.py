"""The quota file: bytes of TOML in, a validated `Policy` out.

Layer: lowest, pure (no I/O, clock, randomness or logging). The format is a contract: the ancestor's quota files are
read as they are, and ours adds tiers (a list of tables in `total_resources`) and regular expressions as members.
"""

from __future__ import annotations

from quota.policy import Policy, Problem, QuotaFileError
from quota.reading import load
from quota.summary import render_check

__all__ = ["Policy", "Problem", "QuotaFileError", "load", "render_check"]
