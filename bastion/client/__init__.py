"""The Python API: submit jobs to a bastion, look at them, follow them, cancel them.

Layer: above the ports and adapters, below the CLI, which is one user of it. Everything is synchronous and goes through
the bucket; no call talks to the daemon.

    client = Client(open_root(url), parse_root(url), SystemClock())
    submitted = client.submit(jobspec.new(name="hello", bastion=client.bastion, command="echo hi", ...))
    for event in follow(client, submitted.name, submitted.uid):
        ...
"""

from __future__ import annotations

from bastion.client.following import (
    CaughtUp,
    Ended,
    Event,
    Followed,
    Logged,
    Noted,
    Progressed,
    Quiet,
    StartedAttempt,
    follow,
    slices_of,
)
from bastion.client.job_logs import RunLogs
from bastion.client.jobs import BastionRoot, Cancelled, Client, Sight, Stage, Submitted
from bastion.client.log_folders import runs_of
from bastion.client.log_pieces import LogPiece
from bastion.client.log_window import LogWindow
from bastion.client.results import PastAttempt, Result

__all__ = [
    "BastionRoot",
    "Cancelled",
    "CaughtUp",
    "Client",
    "Ended",
    "Event",
    "Followed",
    "LogPiece",
    "LogWindow",
    "Logged",
    "Noted",
    "PastAttempt",
    "Progressed",
    "Quiet",
    "Result",
    "RunLogs",
    "Sight",
    "Stage",
    "StartedAttempt",
    "Submitted",
    "follow",
    "runs_of",
    "slices_of",
]
