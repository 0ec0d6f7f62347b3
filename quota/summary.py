"""Shows a policy to people."""

from __future__ import annotations

from quota.policy import Policy


def render_check(policy: Policy) -> str:
    """The summary that `bastion quota check FILE` prints."""
    raise NotImplementedError
