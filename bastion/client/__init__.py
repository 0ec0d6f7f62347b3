"""The Python API: submit jobs to a bastion, look at them, follow them, cancel them.

Everything is synchronous and goes through the bucket; no call talks to the daemon.

    client = Client(open_root(url), parse_root(url), SystemClock())
    options = JobOptions(instance_type="tpu-v4-32")
    spec = job_spec.new(name="hello", bastion=client.bastion, command="echo hi", ..., options=options)
    submitted = client.submit(spec)
    for event in follow(client, submitted.name, submitted.uid):
        ...
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bastion.client.jobs.client import Client
    from bastion.client.jobs.follow import follow, slices_of
    from bastion.client.jobs.follow_events import (
        CaughtUp,
        Ended,
        Event,
        FollowOptions,
        Logged,
        Noted,
        Progressed,
        Quiet,
        StartedAttempt,
    )
    from bastion.client.jobs.job_info import Cancelled, JobInfo, Stage, Submitted
    from bastion.client.jobs.overview import BastionRoot
    from bastion.client.jobs.results import PastAttempt, Result
    from bastion.client.logs.folders import runs_of
    from bastion.client.logs.pieces import LogPiece
    from bastion.client.logs.reader import RunLogs
    from bastion.client.logs.window import LogWindow

# Loaded when they are used: most commands need few of them, and together they take a tenth of a second.
_MODULES = {
    "BastionRoot": "bastion.client.jobs.overview",
    "Cancelled": "bastion.client.jobs.job_info",
    "CaughtUp": "bastion.client.jobs.follow_events",
    "Client": "bastion.client.jobs.client",
    "Ended": "bastion.client.jobs.follow_events",
    "Event": "bastion.client.jobs.follow_events",
    "FollowOptions": "bastion.client.jobs.follow_events",
    "JobInfo": "bastion.client.jobs.job_info",
    "LogPiece": "bastion.client.logs.pieces",
    "LogWindow": "bastion.client.logs.window",
    "Logged": "bastion.client.jobs.follow_events",
    "Noted": "bastion.client.jobs.follow_events",
    "PastAttempt": "bastion.client.jobs.results",
    "Progressed": "bastion.client.jobs.follow_events",
    "Quiet": "bastion.client.jobs.follow_events",
    "Result": "bastion.client.jobs.results",
    "RunLogs": "bastion.client.logs.reader",
    "Stage": "bastion.client.jobs.job_info",
    "StartedAttempt": "bastion.client.jobs.follow_events",
    "Submitted": "bastion.client.jobs.job_info",
    "follow": "bastion.client.jobs.follow",
    "runs_of": "bastion.client.logs.folders",
    "slices_of": "bastion.client.jobs.follow",
}

__all__ = [
    "BastionRoot",
    "Cancelled",
    "CaughtUp",
    "Client",
    "Ended",
    "Event",
    "FollowOptions",
    "JobInfo",
    "LogPiece",
    "LogWindow",
    "Logged",
    "Noted",
    "PastAttempt",
    "Progressed",
    "Quiet",
    "Result",
    "RunLogs",
    "Stage",
    "StartedAttempt",
    "Submitted",
    "follow",
    "runs_of",
    "slices_of",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(_MODULES[name]), name)
    globals()[name] = value
    return value
