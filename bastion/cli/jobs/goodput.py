"""Goodput of a job, for `bastion why`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from bastion.client import JobInfo
from bastion.client.jobs.goodput import goodput
from bastion.core.instants import duration


def lines(info: JobInfo, now: float) -> Iterator[str]:
    """Return the line about a job whose command has run."""
    found = goodput(info, now)
    if found is None or found.fraction is None or not found.productive + found.lost:
        return
    steps = f" ({found.lost_steps} steps)" if found.lost_steps else ""
    yield (
        f"  goodput {found.fraction:.0%} of the time with machines: productive {duration(found.productive)}, "
        f"lost {duration(found.lost)}{steps}, restarting {duration(found.restarting)}; "
        f"waited {duration(found.waiting)}"
    )


def document(info: JobInfo, now: float) -> dict[str, Any] | None:
    found = goodput(info, now)
    if found is None:
        return None
    seconds = {
        f"{name}_seconds": round(getattr(found, name), 3) for name in ("waiting", "restarting", "productive", "lost")
    }
    fraction = None if found.fraction is None else round(found.fraction, 4)
    return {"fraction": fraction, **seconds, "lost_steps": found.lost_steps}
