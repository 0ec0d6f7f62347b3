"""Who may change a job: its submitter, the admins of its project, and those of the bastion."""

from __future__ import annotations

from bastion.core.model.job_spec import JobSpec
from quota import Policy


def may_end(user: str, job: JobSpec, policy: Policy | None) -> bool:
    """Whether the user may cancel or hold the job. `policy`: the quota file in force, which names the admins."""
    return user == job.user_id or (policy is not None and policy.admins.has(user, job.project_id))


def may_update(user: str, job: JobSpec) -> bool:
    """Whether the user may replace the job's spec by its next version: only who submitted it."""
    return user == job.user_id
