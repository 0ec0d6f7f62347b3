"""The state of a gang from its JobSet, Jobs, pods and Workload, as an ordered table: the first rule that matches wins.

`docs/reference/kubernetes-states.md` is rendered from `RULES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from bastion.adapters.kubernetes import failures, kueue, terms
from bastion.adapters.kubernetes.documents import Word
from bastion.adapters.kubernetes.kueue import SeenWorkload
from bastion.adapters.kubernetes.seen import SeenJob, SeenJobSet, SeenPod
from bastion.core.bucket import keys
from bastion.core.model.gangs import GangFailure, GangRef, GangState, GangStatus

_WAITING_MESSAGE_MAX_CHARS = 300
# Jobs and pods are watched apart: a Job may be seen to have failed before the pod that failed it.
_PODS_LATE_SECONDS = 60.0
# What an API server says of a pod that it will never take. Without such a word it failed, as with a webhook that is
# down, and the Job's controller tries again.
_DENIED = re.compile(r"\b(denied|is forbidden|is invalid|violates)\b", re.IGNORECASE)
# The operator mends it, and the gang goes on: a missing account (plugin/pkg/admission/serviceaccount/admission.go), a
# webhook that does not answer, a namespace that goes.
_PASSING = re.compile(r"error looking up service account|failed calling webhook|is being terminated", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What exists of one gang.

    Attributes:
        now: Seconds since the epoch.
        waited: Seconds since which a pod's container has been seen waiting for what may pass, such as its image.
        not_created: Why a Job cannot create its pods, if the API server said so.
        workload: Kueue's, if the gang is in a queue and Kueue has made one.
        namespace: Of the JobSet.
        without_kueue: Whether the settings name no queue, and the cluster has no Kueue any more.
    """

    jobset: SeenJobSet | None
    jobs: Sequence[SeenJob]
    pods: Sequence[SeenPod]
    now: float
    waited: Callable[[SeenPod], float]
    not_created: Word | None = None
    workload: SeenWorkload | None = None
    namespace: str = "default"
    without_kueue: bool = False

    @property
    def queue(self) -> str:
        return self.jobset.queue if self.jobset is not None else ""

    @property
    def hosts(self) -> int:
        """Hosts of one slice."""
        return self.jobset.hosts if self.jobset is not None else 1

    @property
    def expected_pods(self) -> int:
        return self.jobset.hosts * self.jobset.num_slices if self.jobset is not None else len(self.pods)


class Finding(NamedTuple):
    state: GangState
    message: str = ""
    failure: GangFailure | None = None
    waiting: str = ""
    partial: bool = False


class Rule(NamedTuple):
    """One row: `seen` and `state` for people, and the function that finds it."""

    seen: str
    state: str
    find: Callable[[Parts], Finding | None]


def _deleting(parts: Parts) -> Finding | None:
    rest: list[SeenJob | SeenPod] = [*parts.jobs, *parts.pods]
    going = parts.jobset.deleting if parts.jobset is not None else all(each.deleting for each in rest)
    if not going:
        return None
    # A pod on a node that cannot be reached stays until the node is gone: it may still run.
    left = sorted(pod.name + (f" on {pod.node}" if pod.node else "") for pod in parts.pods)
    what = "its JobSet is" if parts.jobset is not None else "what its JobSet left is"
    waits = f"; waiting for the end of {failures.some(left)}" if left else ""
    if parts.jobset is not None and parts.jobset.finalizers and not rest:
        waits = f"; waiting for whoever set the finalizer {failures.some(parts.jobset.finalizers)}"
    if not left and parts.workload is not None:
        waits = f"; waiting for Kueue to release Workload {parts.workload.name}"
    return Finding(GangState.DELETING, f"{what} being deleted{waits}")


def _orphaned(parts: Parts) -> Finding | None:
    if parts.jobset is not None:
        return None
    return _failed(
        "infrastructure",
        f"its JobSet was deleted or lost its label {terms.LABEL_BASTION}, not by the scheduler, which removes the rest",
    )


def _suspended(parts: Parts) -> Finding | None:
    if parts.jobset is None or not parts.jobset.suspended or parts.queue:
        return None
    return _failed(
        "refused",
        "its JobSet was suspended; if the cluster's Kueue manages jobs without a queue name "
        "(manageJobsWithoutQueueName), exclude this namespace from it",
    )


def _evicted(parts: Parts) -> Finding | None:
    told = kueue.eviction(parts.workload) if parts.workload is not None else None
    return Finding(GangState.LOST, told.message, told) if told is not None else None


def _never_started(parts: Parts) -> Finding | None:
    if parts.jobset is None or not parts.jobset.suspended or parts.workload is None:
        return None
    told = kueue.never_started(parts.workload)
    return Finding(GangState.FAILED, told.message, told) if told is not None else None


def _queue_is_gone(parts: Parts) -> Finding | None:
    if parts.jobset is None or not parts.queue or not parts.jobset.suspended or not parts.without_kueue:
        return None
    return _failed(
        "infrastructure",
        f"it waited in queue {parts.queue} of Kueue, which the cluster and its settings have no more; the scheduler "
        "decides on the next attempt",
    )


def _left_its_queue(parts: Parts) -> Finding | None:
    if parts.jobset is None or not parts.queue or not parts.jobset.suspended or parts.jobset.has_queue_label:
        return None
    return _failed(
        "infrastructure",
        f"someone removed the label {terms.LABEL_QUEUE}={parts.queue} from its JobSet, and Kueue leaves a JobSet "
        "without it alone; the next attempt is queued again",
    )


def _not_admitted(parts: Parts) -> Finding | None:
    jobset = parts.jobset
    if jobset is None or not jobset.queue or not jobset.suspended:
        return None
    told = kueue.waits(parts.workload, age=parts.now - jobset.created_at, namespace=parts.namespace)
    # Kueue resumes the JobSet after it has admitted the Workload, and ends it before it suspends the JobSet.
    told = told or Word("Admitted", "Kueue has admitted it, and is about to start it")
    return Finding(GangState.WAITING, told.message, waiting=told.reason)


def _ended(parts: Parts) -> Finding | None:
    """A pod, a Job or the JobSet failed, or a pod is being taken away."""
    lost = _lost(parts.pods)
    failed = _failure(parts.jobset, parts.jobs)
    if not lost and failed is not None and _pods_are_late(parts):
        return None
    if not lost and failed is None:
        gone = _ended_and_gone(parts)
        return Finding(GangState.LOST, gone) if gone else None
    told = failures.of_job(lost, parts.hosts)
    if told is not None:
        return Finding(GangState.FAILED if told.cause == "refused" else GangState.LOST, told.message, told)
    # Peers of a lost pod are deleted with it: what failed, or was disrupted, explains more than what is deleted.
    lost.sort(key=lambda pod: (pod.disrupted is None, pod.phase != "Failed", pod.slice_index, pod.worker))
    message = failures.lost_words(lost[0]) if lost else str(failed)
    if failed is None and lost[0].deleting and lost[0].disrupted is None and _lacks_its_workload(parts):
        stopped = (
            f"Kueue stopped it, because it has no admitted Workload (deleted, replaced, or resumed by hand): {message}"
        )
        return Finding(GangState.LOST, stopped, GangFailure(cause="infrastructure", message=stopped))
    return Finding(GangState.LOST, message)


def _lacks_its_workload(parts: Parts) -> bool:
    """Whether Kueue stops a gang without an eviction (kueue: pkg/controller/jobframework/reconciler.go, steps 1 and 1.1
    of ReconcileGenericJob: the Workload is deleted, or there is none that admits the pods).
    """
    known = bool(parts.queue) and not parts.without_kueue
    return known and not kueue.admits(parts.workload)


def _pods_are_late(parts: Parts) -> bool:
    """Whether all pods are seen as before the failure. How they ended will say whose doing it was."""
    if len(parts.pods) < parts.expected_pods or all(pod.phase == "Succeeded" for pod in parts.pods):
        return False
    failed_at = [job.failed_at for job in parts.jobs if job.failed is not None]
    if parts.jobset is not None and parts.jobset.failed is not None:
        failed_at.append(parts.jobset.failed_at)
    return parts.now - max(failed_at) < _PODS_LATE_SECONDS


def _lost(pods: Sequence[SeenPod]) -> list[SeenPod]:
    # A pod that was disrupted may end with code 0: its host has reported, but not why it was ended.
    return [
        pod
        for pod in pods
        if pod.phase == "Failed" or pod.deleting or (pod.phase == "Succeeded" and pod.disrupted is not None)
    ]


def _failure(jobset: SeenJobSet | None, jobs: Sequence[SeenJob]) -> Word | None:
    failed = next((job.failed for job in jobs if job.failed is not None), None)
    return failed or (jobset.failed if jobset is not None else None)


def is_ending(jobset: SeenJobSet, jobs: Sequence[SeenJob], pods: Sequence[SeenPod]) -> bool:
    """Whether pods of a gang end other than by reporting, or are about to: its JobSet is suspended."""
    return not jobset.deleting and bool(
        _lost(pods) or _failure(jobset, jobs) is not None or (jobset.suspended and pods)
    )


def _ended_and_gone(parts: Parts) -> str:
    """Say of which slice a pod ended with code 0 and was removed, as after a deletion by hand; empty if of none.

    Its Job counts it as a success and runs on without it.
    """
    for job in parts.jobs:
        pods = [pod for pod in parts.pods if pod.slice_index == job.slice_index]
        missing = parts.hosts - len(pods)
        gone = job.succeeded - sum(pod.phase == "Succeeded" for pod in pods)
        if 0 < missing <= gone:
            return f"a pod of {job.name} was deleted"
    return ""


def _cannot_start(parts: Parts) -> Finding | None:
    for pod in parts.pods:
        failure = failures.of_wait(pod.waiting, parts.waited(pod)) if pod.waiting is not None else None
        if failure is not None:
            return Finding(GangState.FAILED, failure.message, failure)
    return None


def _not_created(parts: Parts) -> Finding | None:
    if parts.not_created is None or len(parts.pods) >= parts.expected_pods:
        return None
    said = parts.not_created.message
    if "exceeded quota" in said:
        return _waits(parts, "PodQuotaExceeded", said)
    if _DENIED.search(said) and not _PASSING.search(said):
        return _failed("refused", f"its pods cannot be created: {said}")
    return _waits(parts, "PodsNotCreated", said)


def _unplaced(parts: Parts) -> Finding | None:
    bound = sum(bool(pod.node) for pod in parts.pods)
    if bound >= parts.expected_pods:
        return None
    told = next((pod.unscheduled for pod in parts.pods if not pod.node and pod.unscheduled is not None), None)
    return _waits(parts, (told.reason if told else "") or "PodsPending", told.message if told else "")


def _waits(parts: Parts, reason: str, message: str) -> Finding:
    jobset = parts.jobset
    if jobset is not None and jobset.valid_until_seconds is not None:
        waited = parts.now - jobset.created_at
        if waited > jobset.valid_until_seconds:
            return _failed("capacity", f"no more capacity within {waited:.0f} s: {message or reason}")
    partial = any(pod.node for pod in parts.pods)
    return Finding(GangState.WAITING, message, waiting=reason, partial=partial)


def _starting(parts: Parts) -> Finding | None:
    if all(pod.phase in ("Running", "Succeeded") for pod in parts.pods):
        return None
    waiting = next((pod.waiting for pod in parts.pods if pod.waiting is not None), None)
    return Finding(GangState.CREATING, str(waiting or ""))


def _running(parts: Parts) -> Finding | None:
    running = any(pod.phase == "Running" for pod in parts.pods)
    return Finding(GangState.READY) if running else None


def _completed(_parts: Parts) -> Finding:
    return Finding(GangState.LOST, "its pods ended")


RULES: Final = (
    Rule("the JobSet is being deleted, or only Jobs and pods are left, and go", "DELETING", _deleting),
    Rule("only Jobs and pods are left, and stay", "FAILED, infrastructure", _orphaned),
    Rule("the JobSet is suspended, and asked for no queue of Kueue", "FAILED, refused", _suspended),
    Rule(
        "in a queue: Kueue evicted or deactivated the Workload after it was admitted",
        "LOST, evicted; if it was deactivated: infrastructure",
        _evicted,
    ),
    Rule("in a queue: Kueue finished the Workload without starting it", "FAILED, infrastructure", _never_started),
    Rule("a pod, a Job or the JobSet failed, or a pod is deleted or disrupted", "LOST or FAILED, by class", _ended),
    Rule(
        "in a queue: the JobSet is suspended, and neither settings nor cluster have Kueue any more",
        "FAILED, infrastructure",
        _queue_is_gone,
    ),
    Rule(
        "in a queue: the JobSet is suspended, and someone removed its label `kueue.x-k8s.io/queue-name`",
        "FAILED, infrastructure",
        _left_its_queue,
    ),
    Rule(
        "in a queue: the JobSet is suspended: there is no Workload yet, it was deactivated before it was admitted, its "
        "quota is not reserved, its admission checks are not ready, or Kueue is about to start it",
        "WAITING, with Kueue's reason and message",
        _not_admitted,
    ),
    Rule("a container waits for good", "FAILED, by class", _cannot_start),
    Rule(
        "a Job cannot create its pods",
        "WAITING: `PodQuotaExceeded`, or `PodsNotCreated` for what may pass; FAILED, refused, if they are denied",
        _not_created,
    ),
    Rule(
        "a pod is not placed or not created yet",
        "WAITING, with the scheduler's reason; FAILED, capacity, once the request is no longer valid",
        _unplaced,
    ),
    Rule("all pods are placed, not all have started", "CREATING", _starting),
    Rule("all pods have started, and one runs", "READY", _running),
    Rule("all pods have ended with code 0", "LOST; its reports are read again, and win", _completed),
)


def gang_status(name: str, zone: str, parts: Parts) -> GangStatus:
    """Return the status of a gang of which at least one part exists."""
    found = next(finding for rule in RULES if (finding := rule.find(parts)) is not None)
    jobset = parts.jobset
    ref = GangRef(name=name, zone=zone, num_slices=jobset.num_slices if jobset is not None else 1)
    rest: list[SeenJob | SeenPod] = [*parts.jobs, *parts.pods]
    return GangStatus(
        ref=ref,
        run=jobset.run if jobset is not None else rest[0].run,
        token=jobset.token if jobset is not None else "",
        state=found.state,
        waiting=found.waiting,
        waiting_message=found.message[:_WAITING_MESSAGE_MAX_CHARS] if found.state is GangState.WAITING else "",
        partial=found.partial,
        failure=found.failure,
        message=found.message,
        nodes=_slices(ref, parts, found.state),
        labels=jobset.labels if jobset is not None else {},
        kueue=kueue.status(parts.queue, parts.workload) if parts.queue else None,
    )


def name_of(run: str) -> str:
    """Return the name of a run's gang."""
    return keys.gang(run)


def _slices(ref: GangRef, parts: Parts, gang: GangState) -> Mapping[str, GangState]:
    """Return the state of each slice with a pod."""
    by_slice: dict[int, list[SeenPod]] = {}
    for pod in parts.pods:
        if pod.slice_index < ref.num_slices:
            by_slice.setdefault(pod.slice_index, []).append(pod)
    if gang is GangState.DELETING:
        return {ref.node(index): gang for index in sorted(by_slice)}
    return {ref.node(index): _slice(pods, parts.hosts) for index, pods in sorted(by_slice.items())}


def _slice(pods: Sequence[SeenPod], hosts: int) -> GangState:
    if any(pod.phase == "Failed" or pod.disrupted is not None for pod in pods):
        return GangState.LOST
    if any(pod.deleting for pod in pods):
        return GangState.DELETING
    if len(pods) < hosts or not all(pod.node for pod in pods):
        return GangState.WAITING
    started = all(pod.phase in ("Running", "Succeeded") for pod in pods)
    return GangState.READY if started else GangState.CREATING


def _failed(cause: str, message: str) -> Finding:
    return Finding(GangState.FAILED, message, GangFailure(cause=cause, message=message))
