"""One scheduling cycle: the heads of the queues, at most one each, and what becomes of them
(kueue pkg/scheduler/scheduler.go: schedule, nominate, processEntry, makeClassicalIterator).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from bastion.emulators.kubernetes.kueue import preemption
from bastion.emulators.kubernetes.kueue.flavors import Assignment, assign
from bastion.emulators.kubernetes.kueue.preemption import Target
from bastion.emulators.kubernetes.kueue.snapshot import Info, Queue, Snapshot

# Admitted: quota is reserved. Preempting: others are evicted first. Skipped: others of this cycle came first.
Outcome = Literal["admitted", "preempting", "skipped", "waiting"]


@dataclass(slots=True, kw_only=True)
class Entry:
    """A Workload in a cycle.

    Attributes:
        message: Why it is not admitted.
        no_fit: Equal Workloads would not be admitted either.
    """

    info: Info
    assignment: Assignment = field(default_factory=Assignment)
    targets: list[Target] = field(default_factory=list)
    outcome: Outcome = "waiting"
    message: str = ""
    no_fit: bool = False


def run(heads: Iterable[Info], snapshot: Snapshot) -> list[Entry]:
    """Decide on the heads, in the order in which they are admitted; the snapshot is changed."""
    entries = [_nominate(info, snapshot) for info in heads]
    entries.sort(key=lambda entry: (entry.assignment.borrowing, -entry.info.priority, entry.info.timestamp))
    taken: dict[str, Info] = {}
    for entry in entries:
        _process(entry, snapshot, taken)
    return entries


def _nominate(info: Info, snapshot: Snapshot) -> Entry:
    """getInitialAssignments."""

    assignment = assign(info, snapshot, lambda *asked: preemption.simulate(asked[0], snapshot, *asked[1:]))
    entry = Entry(info=info, assignment=assignment, message=assignment.message())
    if assignment.may_preempt:
        entry.targets = preemption.targets(info, assignment, snapshot)
    return entry


def _process(entry: Entry, snapshot: Snapshot, taken: dict[str, Info]) -> None:
    """`taken`: what this cycle preempts already, by uid."""
    queue, assignment = snapshot.queues[entry.info.queue], entry.assignment
    if not assignment.fits and not assignment.may_preempt:
        entry.no_fit = True
        return
    if assignment.may_preempt and not entry.targets:
        entry.no_fit = True
        if queue.policy("reclaimWithinCohort") != "Any":
            queue.add(_reserved(queue, assignment))
        return
    if any(target.info.uid in taken for target in entry.targets):
        _skip(entry, "Workload has overlapping preemption targets with another workload")
        return
    if not _fits(queue, entry, snapshot, taken):
        _skip(entry, "Workload no longer fits after processing another workload")
        return
    taken.update({target.info.uid: target.info for target in entry.targets})
    queue.add(assignment.usage)
    entry.outcome = "admitted" if assignment.fits else "preempting"


def _skip(entry: Entry, message: str) -> None:
    entry.outcome, entry.message = "skipped", message


def _fits(queue: Queue, entry: Entry, snapshot: Snapshot, taken: dict[str, Info]) -> bool:
    gone = {**taken, **{target.info.uid: target.info for target in entry.targets}}
    for info in gone.values():
        snapshot.queues[info.queue].remove(info.usage)
    fits = queue.fits(entry.assignment.usage)
    for info in gone.values():
        snapshot.queues[info.queue].add(info.usage)
    return fits


def _reserved(queue: Queue, assignment: Assignment) -> dict[tuple[str, str], int]:
    """quotaResourcesToReserve: what a Workload that cannot preempt keeps from those of lower priority."""
    reserved = {}
    for resource, amount in assignment.usage.items():
        quota, used = queue.quota(resource), queue.usage.get(resource, 0)
        if assignment.borrowing == 0:
            reserved[resource] = max(0, min(amount, quota.nominal - used))
        elif quota.borrowing is None:
            reserved[resource] = amount
        else:
            reserved[resource] = min(amount, quota.nominal + quota.borrowing - used)
    return reserved
