"""What the place of a job says: the cloud, a cluster, or Kueue, in their own words, for `bastion why`."""

from __future__ import annotations

from collections.abc import Iterator

from bastion.cli import phrases
from bastion.cli.output import plain
from bastion.client import Client
from bastion.core.errors import InvalidDocument
from bastion.core.instants import to_rfc3339
from bastion.core.model.clusters import cluster_of, shown
from bastion.core.status.document import CapacityWait, JobEntry, Phase, QueueEntry


def kueue(entry: JobEntry, queue: QueueEntry, now: float) -> Iterator[str]:
    """What Kueue says of a gang in its queue, in its own words."""
    if queue.workload:
        workload = f", Workload {plain(queue.workload)}"
    elif entry.phase == Phase.STOPPING:
        workload = ""
    else:
        workload = "; Kueue has made no Workload yet"
    yield f"  {plain(shown(entry.zone or ''))}, LocalQueue {plain(queue.name)}{workload}"
    if entry.waiting is not None and entry.waiting.queue not in (None, queue.name):
        yield f"  someone moved it there: it was submitted to {plain(entry.waiting.queue or '')}"
    for each in queue.conditions:
        since = f"for {phrases.age(each.since, now)} (since {to_rfc3339(each.since)})"
        yield f"  {plain(each.type)}={each.status} {since}: {plain(each.reason)}: {plain(each.message)}"
    for check in queue.checks:
        message = f": {plain(check.message)}" if check.message else ""
        yield f"  admission check {plain(check.name)}: {plain(check.state)}{message}"
    if queue.evictions:
        yield f"  evicted by Kueue {phrases.count(queue.evictions, 'time')}"


def without_quota(client: Client, entry: JobEntry) -> Iterator[str]:
    """What to do about a job in a queue of Kueue that the quota file, and so the export, gives nothing."""
    try:
        status = client.status(again=False)
    except InvalidDocument:  # an alarm says so
        return
    if status is None or not status.quota.in_force or entry.waiting is None or not entry.waiting.queue:
        return
    again = "if its queue is from `bastion quota export`, add it there and apply the export again"
    missing = sorted(entry.resources.keys() - status.pool.keys())
    project = status.projects.get(entry.project_id)
    if missing:
        yield f"  the quota file has no {', '.join(map(plain, missing))}; {again}"
    elif project is None or not any(project.entitlement.values()):
        given = f"the quota file gives project {plain(entry.project_id)} nothing"
        yield f"  {given}; {again}, or run `bastion cancel {plain(entry.name)}`"


def platform(waiting: CapacityWait, now: float, instance_type: str | None, *, known: bool) -> Iterator[str]:
    """What the platform says of a gang that waits, since when, and whether it is half placed.

    `known`: Kueue has a Workload of it, whose conditions are shown.
    """
    if waiting.queue:
        yield f"  waiting in queue {plain(waiting.queue)} since {to_rfc3339(waiting.since)}"
        if waiting.message and not known:
            yield f"  {plain(waiting.message)}"
        return
    yield f"  waiting for capacity since {to_rfc3339(waiting.since)}"
    if waiting.message:
        yield f"  {plain(shown(waiting.zone) or 'the platform')} says: {plain(waiting.message)}"
    if cluster_of(waiting.zone) and waiting.state == "Unschedulable" and instance_type:
        yield f"  if the cluster has no node pool for {instance_type}: add one, or submit the job with another type"
    if waiting.partial_since is not None:
        yield (
            f"  half placed for {phrases.age(waiting.partial_since, now)} (since {to_rfc3339(waiting.partial_since)}): "
            "some of its hosts have machines, and the others wait for theirs"
        )
