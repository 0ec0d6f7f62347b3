"""What Kueue says of a gang: its Workload, shrunk, and what follows from it; pure.

Sources in kubernetes-sigs/kueue: apis/kueue/v1beta2/workload_types.go (conditions and reasons),
pkg/controller/jobframework/reconciler.go (how a JobSet follows its Workload), pkg/controller/core/
workload_controller.go (deactivation), pkg/workload/workload.go (SetQuotaReservation resets Evicted and Preempted),
pkg/workload/admissionchecks.go (SyncAdmittedCondition counts the time of earlier admissions).
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bastion.adapters.kubernetes import documents
from bastion.adapters.kubernetes.documents import NO_WORD, Word
from bastion.core.bucket import keys
from bastion.core.model.gangs import GangFailure
from bastion.core.model.kueue import AdmissionCheck, KueueStatus, WorkloadCondition

# A Workload of a gang is kept in about 2 KB, whatever it says.
_MESSAGE_MAX_CHARS = 300
_CHECK_MESSAGE_MAX_CHARS = 100
_CHECKS_MAX = 8  # as in Kueue's definition
_CONDITIONS = ("QuotaReserved", "Admitted", "PodsReady", "Evicted", "Preempted", "Finished")
# How long Kueue may take to make a Workload before people are told what to look at.
_PATIENCE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenWorkload:
    """What is kept of a Workload.

    Attributes:
        owner: The uid of its JobSet: an earlier JobSet of the same name had another.
        queue: Its LocalQueue, which someone may have changed since.
        active: False once it was deactivated, by hand or by Kueue.
        ran: Whether it has been admitted and is no longer, or is again: its first pods are gone.
    """

    name: str
    owner: str
    queue: str
    active: bool
    deleting: bool
    ran: bool
    conditions: tuple[WorkloadCondition, ...]
    checks: tuple[AdmissionCheck, ...]
    evictions: int

    @property
    def admitted(self) -> bool:
        return self.is_true("Admitted")

    def condition(self, kind: str) -> WorkloadCondition | None:
        return next((each for each in self.conditions if each.type == kind), None)

    def is_true(self, kind: str) -> bool:
        found = self.condition(kind)
        return found is not None and found.status


def shrink(item: Mapping[str, Any]) -> SeenWorkload | None:
    """Return what is kept of a Workload; None if it is of no gang, such as other people's."""
    metadata, status = documents.mapping(item.get("metadata")), documents.mapping(item.get("status"))
    owner = next(
        (
            documents.text(each.get("uid"))
            for each in documents.mappings(metadata.get("ownerReferences"))
            if each.get("kind") == "JobSet" and documents.text(each.get("name")).startswith(keys.gang(""))
        ),
        "",
    )
    if not owner:
        return None
    found = {
        documents.text(each.get("type")): _condition(each) for each in documents.mappings(status.get("conditions"))
    }
    spec = documents.mapping(item.get("spec"))
    stats = documents.mapping(status.get("schedulingStats"))
    admitted, evicted = found.get("Admitted"), found.get("Evicted")
    return SeenWorkload(
        name=documents.text(metadata.get("name")),
        owner=owner,
        queue=documents.text(spec.get("queueName")),
        active=spec.get("active") is not False,
        deleting=bool(metadata.get("deletionTimestamp")),
        # Kueue adds up the time in admission when an admission ends, and sets it back for its own time limit only.
        ran=status.get("accumulatedPastExecutionTimeSeconds") is not None
        or (evicted is not None and "MaximumExecutionTime" in evicted.reason)
        or (evicted is not None and evicted.status and admitted is not None and admitted.status),
        conditions=tuple(found[kind] for kind in _CONDITIONS if kind in found),
        checks=tuple(map(_check, documents.mappings(status.get("admissionChecks"))[:_CHECKS_MAX])),
        evictions=sum(documents.tally(each.get("count")) for each in documents.mappings(stats.get("evictions"))),
    )


def _condition(document: Mapping[str, Any]) -> WorkloadCondition:
    return WorkloadCondition(
        type=sys.intern(documents.text(document.get("type"))),
        status=document.get("status") == "True",
        reason=sys.intern(documents.text(document.get("reason"))),
        message=documents.text(document.get("message"))[:_MESSAGE_MAX_CHARS],
        since=documents.instant(documents.text(document.get("lastTransitionTime"))),
    )


def _check(document: Mapping[str, Any]) -> AdmissionCheck:
    return AdmissionCheck(
        name=sys.intern(documents.text(document.get("name"))),
        state=sys.intern(documents.text(document.get("state"))),
        message=documents.text(document.get("message"))[:_CHECK_MESSAGE_MAX_CHARS],
    )


def status(queue: str, workload: SeenWorkload | None) -> KueueStatus:
    if workload is None:
        return KueueStatus(queue=queue)
    return KueueStatus(
        queue=workload.queue or queue,
        workload=workload.name,
        admitted=workload.admitted and not workload.ran,
        conditions=workload.conditions,
        checks=workload.checks,
        evictions=workload.evictions,
    )


def eviction(workload: SeenWorkload) -> GangFailure | None:
    """Return the failure of a gang whose pods Kueue has ended; None if it has not.

    A Workload that is admitted again still counts: the pods of the second admission are new ones.
    """
    if not workload.ran:
        return None
    # Of the next admission, Evicted keeps the message; the reason is then "QuotaReserved".
    told = workload.condition("Evicted")
    word = Word(told.reason, told.message) if told is not None else NO_WORD
    if not workload.active or word.reason.startswith("Deactivated"):
        return GangFailure(cause="infrastructure", message=f"Kueue deactivated it: {word}")
    return GangFailure(cause="evicted", message=f"Kueue evicted it: {word}" if str(word) else "Kueue evicted it")


def admits(workload: SeenWorkload | None) -> bool:
    """Whether a Workload lets the pods of its gang run."""
    return workload is not None and workload.admitted and not workload.deleting


def never_started(workload: SeenWorkload) -> GangFailure | None:
    """Return the failure of a gang that Kueue gave up unstarted, as for a flavor that contradicts its pods."""
    told = workload.condition("Finished")
    if told is None or not told.status:
        return None
    return GangFailure(cause="infrastructure", message=f"Kueue cannot start it: {Word(told.reason, told.message)}")


def waits(workload: SeenWorkload | None, *, age: float, namespace: str) -> Word | None:
    """Return why Kueue has not admitted a gang, in its words; None if it has.

    Args:
        workload: None if there is none yet.
        age: Seconds since the JobSet's creation.
        namespace: Of the JobSet.
    """
    if workload is None:
        hint = (
            f"; check that Kueue runs, manages JobSets in namespace {namespace}, and has the WorkloadPriorityClasses "
            "of bastion quota export"
        )
        return Word("NoWorkload", f"waiting for Kueue to make a Workload{hint if age > _PATIENCE_SECONDS else ''}")
    if not workload.active:
        return _words(workload.condition("Evicted"), Word("Deactivated", "The workload is deactivated"))
    if not workload.is_true("QuotaReserved"):
        return _words(workload.condition("QuotaReserved"), Word("PendingEvaluation", "Kueue has not considered it yet"))
    if workload.admitted:
        return None
    told = _words(
        workload.condition("Admitted"), Word("UnsatisfiedAdmissionChecks", "The workload has not all checks ready")
    )
    pending = [check for check in workload.checks if check.state != "Ready"]
    if not pending:
        return told
    return Word(told.reason, "; ".join(f"{check.name}: {check.message or check.state}" for check in pending))


def _words(condition: WorkloadCondition | None, otherwise: Word) -> Word:
    if condition is None or not (condition.reason or condition.message):
        return otherwise
    return Word(condition.reason, condition.message)
