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
