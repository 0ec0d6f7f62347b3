"""A job's goodput as scalars over its time, in an event file of its own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from bastion.client.jobs.goodput import Life
from bastion.client.tensorboard import event_files
from bastion.core.goodput import Goodput

# No file of the job is copied there: marks of restarts must not drop these points.
FOLDER = "bastion"
_FILE = f"{FOLDER}/events.out.tfevents.0000000000.bastion"


def write(into: Path, life: Life) -> None:
    """Write a point for the end of each run and one for now; steps are seconds since the job was queued."""
    ends = {run.freed_at for run in life.runs if run.freed_at is not None and run.freed_at < life.until}
    points = [
        (instant, round(instant - life.queued_at), _values(life.goodput(instant)))
        for instant in (*sorted(ends), life.until)
    ]
    event_files.write_scalars(into / _FILE, points)


def _values(found: Goodput) -> Mapping[str, float]:
    values = {
        "bastion/waiting_seconds": found.waiting,
        "bastion/restarting_seconds": found.restarting,
        "bastion/productive_seconds": found.productive,
        "bastion/lost_seconds": found.lost,
    }
    if found.fraction is not None:
        values["bastion/goodput"] = found.fraction
    if found.lost_steps is not None:
        values["bastion/lost_steps"] = float(found.lost_steps)
    return values
