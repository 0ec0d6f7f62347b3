"""Specs of jobs."""

from __future__ import annotations

from typing import Any

from bastion.core.model import job_spec
from bastion.core.model.job_spec import JobOptions, JobSpec


def new_spec(
    name: str = "job",
    *,
    bastion: str = "b-bastion",
    command: str = "true",
    user_id: str = "u",
    project_id: str = "p",
    now: float = 0.0,
    **options: Any,
) -> JobSpec:
    """A spec; `options` are those of `JobOptions`."""
    return job_spec.new(
        name=name,
        bastion=bastion,
        command=command,
        user_id=user_id,
        project_id=project_id,
        now=now,
        options=JobOptions(**options),
    )
