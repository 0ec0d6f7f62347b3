"""When a waiting job is expected to start, for `bastion why`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from bastion.cli import phrases
from bastion.cli.output import plain
from bastion.client import Client, JobInfo, Stage
from bastion.core.instants import to_rfc3339
from bastion.core.status.document import Phase

if TYPE_CHECKING:
    from bastion.client.jobs.eta import Estimate


def estimate(client: Client, info: JobInfo) -> Estimate | None:
    """Estimate the start; None if the job does not wait in a queue, of ours or of Kueue."""
    entry = info.entry
    if info.stage is not Stage.KNOWN or entry is None:
        return None
    if entry.phase != Phase.QUEUED and not (entry.waiting is not None and entry.waiting.queue):
        return None
    from bastion.client.jobs.eta import estimate as simulate

    return simulate(client, info)


def line(estimate: Estimate, now: float) -> str:
    eta = estimate.eta
    if eta.p50 is None:
        return f"  estimated start: unknown: {plain(eta.why)}"
    soon = _from_now(eta.p50 - now)
    if eta.p90 is None:
        times = f"{soon} (p50; p90 unknown: {plain(eta.why)})"
    elif (late := _from_now(eta.p90 - now)) == soon:
        times = f"{soon} (p50 and p90)"
    else:
        times = f"{soon} (p50), {late} (p90)"
    return f"  estimated start: {times}, unless jobs that go first are submitted"


def _from_now(seconds: float) -> str:
    return "within a minute" if seconds < 60 else f"in {phrases.two_units(seconds)}"


def document(estimate: Estimate | None) -> dict[str, Any] | None:
    """The estimate as RFC 3339 instants, or null with `why`."""
    if estimate is None:
        return None
    eta = estimate.eta
    instants = {
        name: None if instant is None else to_rfc3339(instant)
        for name, instant in (("p10", eta.p10), ("p50", eta.p50), ("p90", eta.p90))
    }
    return {
        **instants,
        "why": eta.why or None,
        "jobs_of_unknown_duration": eta.unknown,
        "from_ended_jobs": estimate.results,
        "from_declared_durations": estimate.declared,
    }
