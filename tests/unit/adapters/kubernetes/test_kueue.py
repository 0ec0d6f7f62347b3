"""What Kueue says of a gang: in its own words, about its own JobSet, and cut."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from bastion.adapters.kubernetes import kueue
from bastion.core.model.gangs import GangState
from tests.support.gang_documents import (
    ADMITTED,
    CASES,
    CHECKING,
    CHECKS,
    EVICTED,
    INSUFFICIENT,
    PREEMPTED,
    QUEUE,
    condition,
    damaged,
    workload,
)

# Each phase of a gang in a queue: what it waits for, in Kueue's words.
WAITS = {
    "no Workload yet": (
        "NoWorkload",
        "waiting for Kueue to make a Workload; check that Kueue runs, manages JobSets in namespace default, and has "
        "the WorkloadPriorityClasses of bastion quota export",
    ),
    "not considered yet": ("PendingEvaluation", "Kueue has not considered it yet"),
    "no quota": ("WaitingForQuota", INSUFFICIENT),
    "no LocalQueue": ("Misconfigured", f"LocalQueue {QUEUE} doesn't exist"),
    "checks pending": ("UnsatisfiedAdmissionChecks", "dws: Waiting for resources"),
    "evicted before it ran": ("PendingEvaluation", "At least one admission check is false"),
    "deactivated before it ran": ("Deactivated", "The workload is deactivated"),
    "admitted": ("Admitted", "Kueue has admitted it, and is about to start it"),
    "admitted, no pods yet": ("PodsPending", ""),
}
ENDS = {
    "evicted": f"Kueue evicted it: Preempted: {PREEMPTED}",
    "evicted and admitted again": f"Kueue evicted it: QuotaReserved: Previously: {PREEMPTED}",
    "deactivated while it ran": "Kueue deactivated it: Deactivated: The workload is deactivated",
    "not started": "Kueue cannot start it: FailedToStart: "
    "invalid admission check PodSetUpdate: conflict for nodeSelector",
}


@pytest.mark.parametrize("case", WAITS)
def test_a_gang_that_waits_says_why_in_kueues_words(case: str) -> None:
    status = CASES[case][1]().status
    assert (status.state, status.waiting, status.waiting_message) == (GangState.WAITING, *WAITS[case])
    assert not status.partial


@pytest.mark.parametrize("case", ENDS)
def test_a_gang_that_kueue_ended_says_why_in_kueues_words(case: str) -> None:
    status = CASES[case][1]().status
    assert status.failure is not None
    assert status.failure.message == status.message == ENDS[case]


def test_a_new_gang_is_not_told_to_look_at_kueue() -> None:
    documents = CASES["no Workload yet"][1]()
    documents.age = 5.0
    assert documents.status.waiting_message == "waiting for Kueue to make a Workload"


def test_a_gang_in_a_queue_tells_all_that_kueue_says() -> None:
    documents = CASES["checks pending"][1]()
    assert documents.workload is not None
    evictions = [{"reason": "Preempted", "underlyingCause": "", "count": count} for count in (2, 1)]
    documents.workload["status"]["schedulingStats"] = {"evictions": evictions}
    told = documents.status.kueue
    assert told is not None
    assert (told.queue, told.workload, told.admitted, told.evictions) == (
        QUEUE,
        "jobset-b-aaaaaaaaaa-1-1a2b3",
        False,
        3,
    )
    assert [(each.type, each.status) for each in told.conditions] == [("QuotaReserved", True), ("Admitted", False)]
    assert told.conditions[0].message == "Quota reserved in ClusterQueue research"
    assert told.conditions[0].since == 1_800_000_030.0
    assert [(check.name, check.state) for check in told.checks] == [("budget", "Ready"), ("dws", "Pending")]


@pytest.mark.parametrize("case", [case for case, (row, _) in CASES.items() if CASES[case][1]().parts.queue])
def test_kueue_is_told_of_each_gang_in_a_queue(case: str) -> None:
    told = CASES[case][1]().status.kueue
    assert told is not None and told.queue == QUEUE
    assert told.admitted == case.startswith(("admitted", "a queued", "not started", "its Workload is being"))


def test_of_a_gang_in_no_queue_kueue_says_nothing() -> None:
    assert CASES["running"][1]().status.kueue is None


@pytest.mark.parametrize(
    "owners",
    [
        [],
        [{"kind": "Job", "name": "b-aaaaaaaaaa-1", "uid": "x"}],
        [{"kind": "JobSet", "name": "someone-elses", "uid": "x"}],
    ],
)
def test_a_workload_of_no_gang_is_not_kept(owners: list[dict[str, Any]]) -> None:
    document = workload(ADMITTED)
    document["metadata"]["ownerReferences"] = owners
    assert kueue.shrink(document) is None


def test_no_damage_to_a_workload_raises() -> None:
    for document in damaged(workload(EVICTED, checks=CHECKS)):
        found = kueue.shrink(document)
        if found is not None:
            assert kueue.status(QUEUE, found).queue
            kueue.waits(found, age=0.0, namespace="default")
            kueue.eviction(found)


def test_what_is_kept_of_a_workload_is_small() -> None:
    """A gang's share of the daemon's memory, with texts as long as Kueue writes them."""
    found = kueue.shrink(workload(EVICTED, checks=CHECKS))
    assert found is not None
    assert _size(found) < 2048
    long = [condition(each["type"], "R" * 10, "m" * 32_768) for each in [*EVICTED, *CHECKING]]
    checks = [{"name": f"check-{number}", "state": "Pending", "message": "m" * 32_768} for number in range(20)]
    largest = kueue.shrink(workload(long, checks=checks))
    assert largest is not None
    assert _size(largest) < 4096


def _size(found: kueue.SeenWorkload) -> int:
    """Bytes of the texts and of the objects around them; reasons and names are shared by all."""
    texts = [each.message for each in (*found.conditions, *found.checks)] + [found.name, found.owner]
    parts = [found, found.conditions, found.checks, *found.conditions, *found.checks]
    return sum(map(sys.getsizeof, [*texts, *parts]))
