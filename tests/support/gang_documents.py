"""Documents of a gang in a cluster, as the API server would list them, in each state that the adapter tells apart."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bastion.adapters.kubernetes import kueue, seen, terms
from bastion.adapters.kubernetes.documents import Word
from bastion.adapters.kubernetes.state import Parts, gang_status
from bastion.core.model.gangs import GangStatus

RUN = "aaaaaaaaaa-1"
NAME = f"b-{RUN}"
SLICES, HOSTS = 2, 2
# The JobSet's creation, and how long its request may wait.
CREATED_AT = 1_800_000_000.0
VALID_UNTIL_SECONDS = 600
Json = dict[str, Any]


@dataclass
class Documents:
    """What exists of the gang. By default each of its pods runs.

    Attributes:
        age: Seconds since the JobSet's creation.
        waited: Seconds for which each container has waited.
        not_created: Why a Job cannot create its pods.
    """

    jobset: Json | None = field(default_factory=lambda: _jobset())
    jobs: list[Json] = field(default_factory=lambda: [_job(index) for index in range(SLICES)])
    pods: list[Json] = field(default_factory=lambda: [_pod(host // HOSTS, host % HOSTS) for host in range(4)])
    age: float = 60.0
    waited: float = 0.0
    not_created: Word | None = None
    workload: Json | None = None
    without_kueue: bool = False

    @property
    def parts(self) -> Parts:
        return Parts(
            jobset=seen.jobset(self.jobset) if self.jobset is not None else None,
            jobs=[seen.job(each) for each in self.jobs],
            pods=[seen.pod(each) for each in self.pods],
            now=CREATED_AT + self.age,
            waited=lambda _pod: self.waited,
            not_created=self.not_created,
            workload=kueue.shrink(self.workload) if self.workload is not None else None,
            without_kueue=self.without_kueue,
        )

    @property
    def status(self) -> GangStatus:
        return gang_status(NAME, "k8s:west", self.parts)

    def each_pod(self, change: Callable[[Json], object]) -> Documents:
        for each in self.pods:
            change(each)
        return self


QUEUE = "bastion-research"


def condition(kind: str, reason: str, message: str = "", *, status: str = "True") -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2027-01-15T08:00:30Z",
    }


def deleting(document: Json) -> Json:
    document["metadata"]["deletionTimestamp"] = "2027-01-15T08:01:00Z"
    return document


def waiting(document: Json, reason: str, message: str = "") -> Json:
    """A placed pod whose container waits."""
    state = {"waiting": {"reason": reason, "message": message}}
    document["status"] = {"phase": "Pending", "containerStatuses": [{"name": "host", "state": state}]}
    return document


def unplaced(document: Json, message: str = "0/4 nodes are available.") -> Json:
    document["spec"].pop("nodeName", None)
    told = condition("PodScheduled", "Unschedulable", message, status="False")
    document["status"] = {"phase": "Pending", "conditions": [told]}
    return document


def ended(document: Json, code: int, reason: str = "", message: str = "", *conditions: Json) -> Json:
    done = {"exitCode": code, "reason": reason or ("Error" if code else "Completed"), "message": message}
    document["status"] = {
        "phase": "Failed" if code else "Succeeded",
        "conditions": list(conditions),
        "containerStatuses": [{"name": "host", "state": {"terminated": done}}],
    }
    return document


def evicted(document: Json, message: str) -> Json:
    document["status"] = {"phase": "Failed", "reason": "Evicted", "message": message}
    return document


def _labels(**more: str) -> Json:
    return {terms.LABEL_BASTION: "team", terms.LABEL_RUN: RUN, **more}


def _jobset() -> Json:
    return {
        "metadata": {
            "name": NAME,
            "uid": "jobset",
            "labels": _labels(),
            "annotations": {
                terms.ANNOTATION_TOKEN: "token",
                terms.ANNOTATION_VALID_UNTIL: str(VALID_UNTIL_SECONDS),
            },
            "creationTimestamp": "2027-01-15T08:00:00Z",
        },
        "spec": {
            "replicatedJobs": [
                {"name": terms.SLICE, "replicas": SLICES, "template": {"spec": {"parallelism": HOSTS}}},
            ]
        },
    }


def _job(index: int) -> Json:
    labels = _labels(**{terms.LABEL_JOB_INDEX: str(index)})
    return {"metadata": {"name": terms.job_name(NAME, index), "uid": f"job-{index}", "labels": labels}}


def _pod(slice_index: int, worker: int) -> Json:
    labels = _labels(**{terms.LABEL_JOB_INDEX: str(slice_index), terms.LABEL_COMPLETION_INDEX: str(worker)})
    name = f"{terms.job_name(NAME, slice_index)}-{worker}-abcde"
    return {
        "metadata": {"name": name, "uid": f"pod-{slice_index}-{worker}", "labels": labels},
        "spec": {"nodeName": f"node-{slice_index}-{worker}"},
        "status": {
            "phase": "Running",
            "conditions": [condition("PodScheduled", "")],
            "containerStatuses": [{"name": "host", "state": {"running": {}}}],
        },
    }


def _changed(change: Callable[[Documents], object]) -> Documents:
    documents = Documents()
    change(documents)
    return documents


def _without_jobset(documents: Documents) -> Documents:
    documents.jobset = None
    return documents


def _all_going(documents: Documents) -> None:
    _without_jobset(documents)
    for each in [*documents.jobs, *documents.pods]:
        deleting(each)


def _suspended(documents: Documents) -> None:
    assert documents.jobset is not None
    documents.jobset["spec"]["suspend"] = True


def workload(conditions: list[Json], *, active: bool = True, checks: list[Json] | None = None, **status: Any) -> Json:
    """The Workload that Kueue makes for the JobSet."""
    owner = {"apiVersion": terms.JOBSET_API, "kind": "JobSet", "name": NAME, "uid": "jobset", "controller": True}
    return {
        "metadata": {
            "name": f"jobset-{NAME}-1a2b3",
            "labels": {terms.LABEL_JOB_UID: "jobset"},
            "ownerReferences": [owner],
        },
        "spec": {"queueName": QUEUE, "active": active},
        "status": {"conditions": conditions, "admissionChecks": checks or [], **status},
    }


def _in_queue(
    documents: Documents,
    conditions: list[Json] | None,
    *,
    suspended: bool = False,
    pods: bool = True,
    change: Callable[[Json], object] = lambda _pod: None,
    **rest: Any,
) -> None:
    assert documents.jobset is not None
    documents.jobset["metadata"]["labels"][terms.LABEL_QUEUE] = QUEUE
    template = documents.jobset["spec"]["replicatedJobs"][0]["template"]
    template["metadata"] = {"annotations": {terms.ANNOTATION_QUEUE: QUEUE}}
    documents.jobset["spec"]["suspend"] = suspended
    if conditions is not None:
        past = {"accumulatedPastExecutionTimeSeconds": 0} if conditions in (STOPPED, ADMITTED_AGAIN) else {}
        documents.workload = workload(conditions, **rest, **past)
    documents.pods = documents.pods if pods else []
    documents.each_pod(change)


def _waits(documents: Documents, conditions: list[Json] | None, **rest: Any) -> None:
    """Suspended from the beginning: JobSet has made suspended Jobs, and they have no pods."""
    _in_queue(documents, conditions, suspended=True, pods=False, **rest)


def _evicted_with_a_failed_job(documents: Documents) -> None:
    _in_queue(documents, EVICTED, suspended=True)
    documents.jobs[0]["status"] = {"conditions": [condition("Failed", "BackoffLimitExceeded")]}
    ended(documents.pods[0], 143)


def _workload_goes(documents: Documents) -> None:
    _in_queue(documents, ADMITTED, change=deleting)
    assert documents.workload is not None
    deleting(documents.workload)


def _without_label(documents: Documents) -> None:
    _waits(documents, NO_QUOTA)
    assert documents.jobset is not None
    del documents.jobset["metadata"]["labels"][terms.LABEL_QUEUE]


def _without_kueue(documents: Documents) -> None:
    _waits(documents, None)
    documents.without_kueue = True


def _lacks_pods(documents: Documents, message: str) -> None:
    documents.pods = documents.pods[:1]
    documents.not_created = Word("FailedCreate", message)


def _expired(documents: Documents) -> None:
    unplaced(documents.pods[3])
    documents.age = VALID_UNTIL_SECONDS + 1


def _gone(documents: Documents) -> None:
    """A pod was deleted by hand: its agent reported, it ended with code 0, and its Job counts a success."""
    documents.jobs[0]["status"] = {"succeeded": 1}
    del documents.pods[1]


def _image(documents: Documents, message: str, waited: float) -> None:
    waiting(documents.pods[2], "ImagePullBackOff", message)
    documents.waited = waited


def _kept(documents: Documents) -> None:
    documents.jobs = documents.pods = []
    assert documents.jobset is not None
    deleting(documents.jobset)["metadata"]["finalizers"] = ["example.com/never", "foregroundDeletion"]


def _config_error(documents: Documents, waited: float) -> None:
    said = "services have not yet been read at least once, cannot construct envvars"
    waiting(documents.pods[1], "CreateContainerConfigError", said)
    documents.waited = waited


# Events of Jobs whose pods cannot be created now.
_WEBHOOK_DOWN = (
    'Error creating: Internal error occurred: failed calling webhook "mpod.kb.io": failed to call webhook: Post '
    '"https://jobset-webhook-service.jobset-system.svc:443/mutate--v1-pod?timeout=10s": connect: connection refused'
)
_NO_ACCOUNT = (
    'Error creating: pods "x" is forbidden: error looking up service account default/bastion-worker: serviceaccount '
    '"bastion-worker" not found'
)
_DISRUPTED = condition("DisruptionTarget", "TerminationByKubelet", "imminent node shutdown")
_EPHEMERAL = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."

_RESERVED = condition("QuotaReserved", "QuotaReserved", "Quota reserved in ClusterQueue research")
ADMITTED = [_RESERVED, condition("Admitted", "Admitted", "The workload is admitted")]
PREEMPTED = "Preempted to accommodate a workload (UID: u, JobUID: j) due to reclamation within the cohort"
# Kueue says so before it suspends the JobSet; later it takes the quota back.
EVICTED = [*ADMITTED, condition("Evicted", "Preempted", PREEMPTED)]
ADMITTED_AGAIN = [*ADMITTED, condition("Evicted", "QuotaReserved", f"Previously: {PREEMPTED}", status="False")]
DEACTIVATED = [condition("Evicted", "Deactivated", "The workload is deactivated")]
STOPPED = [*DEACTIVATED, condition("Admitted", "NoReservation", "The workload has no reservation", status="False")]
TOO_LONG = [condition("Evicted", "DeactivatedDueToMaximumExecutionTimeExceeded", "The workload is deactivated")]
CONTRADICTION = condition(
    "Finished", "FailedToStart", "invalid admission check PodSetUpdate: conflict for nodeSelector"
)
INSUFFICIENT = (
    "couldn't assign flavors to pod set slice: insufficient unused quota for google.com/tpu in flavor v4, 8 more"
)
NO_QUOTA = [condition("QuotaReserved", "WaitingForQuota", INSUFFICIENT, status="False")]
NO_QUEUE = [condition("QuotaReserved", "Misconfigured", f"LocalQueue {QUEUE} doesn't exist", status="False")]
CHECKING = [
    _RESERVED,
    condition("Admitted", "UnsatisfiedAdmissionChecks", "The workload has not all checks ready", status="False"),
]
RETRY = [
    condition("QuotaReserved", "PendingEvaluation", "At least one admission check is false", status="False"),
    condition("Evicted", "AdmissionCheck", "At least one admission check is false"),
]
CHECKS = [
    {"name": "budget", "state": "Ready", "message": "enough"},
    {"name": "dws", "state": "Pending", "message": "Waiting for resources"},
]

# By name: the row of `state.RULES` that must find it, and how to make it.
CASES: dict[str, tuple[int, Callable[[], Documents]]] = {
    "going": (0, lambda: _changed(lambda d: deleting(d.jobset or {}))),
    "the rest goes": (0, lambda: _changed(_all_going)),
    "kept by a finalizer": (0, lambda: _changed(_kept)),
    "orphaned": (1, lambda: _changed(_without_jobset)),
    "suspended": (2, lambda: _changed(_suspended)),
    "evicted": (3, lambda: _changed(lambda d: _in_queue(d, EVICTED, suspended=True))),
    "evicted, its pods run": (3, lambda: _changed(lambda d: _in_queue(d, EVICTED))),
    "evicted, its Job failed": (3, lambda: _changed(_evicted_with_a_failed_job)),
    "evicted and admitted again": (3, lambda: _changed(lambda d: _in_queue(d, ADMITTED_AGAIN))),
    "deactivated while it ran": (3, lambda: _changed(lambda d: _in_queue(d, STOPPED, suspended=True, active=False))),
    "too long for Kueue": (3, lambda: _changed(lambda d: _in_queue(d, TOO_LONG, suspended=True, active=False))),
    "not started": (4, lambda: _changed(lambda d: _waits(d, [*ADMITTED, CONTRADICTION]))),
    "a queued pod goes": (5, lambda: _changed(lambda d: _in_queue(d, ADMITTED, change=deleting))),
    "its Workload was deleted": (5, lambda: _changed(lambda d: _in_queue(d, [], suspended=True, change=deleting))),
    "its Workload is being deleted": (5, lambda: _changed(_workload_goes)),
    "its node fails while it has no Workload": (
        5,
        lambda: _changed(lambda d: _in_queue(d, None, change=lambda pod: ended(pod, 143, "Error", "", _DISRUPTED))),
    ),
    "Kueue is gone": (6, lambda: _changed(_without_kueue)),
    "its label was removed": (7, lambda: _changed(_without_label)),
    "no Workload yet": (8, lambda: _changed(lambda d: _waits(d, None))),
    "not considered yet": (8, lambda: _changed(lambda d: _waits(d, []))),
    "no quota": (8, lambda: _changed(lambda d: _waits(d, NO_QUOTA))),
    "no LocalQueue": (8, lambda: _changed(lambda d: _waits(d, NO_QUEUE))),
    "checks pending": (8, lambda: _changed(lambda d: _waits(d, CHECKING, checks=CHECKS))),
    "evicted before it ran": (8, lambda: _changed(lambda d: _waits(d, RETRY, checks=CHECKS))),
    "deactivated before it ran": (8, lambda: _changed(lambda d: _waits(d, DEACTIVATED, active=False))),
    "admitted": (8, lambda: _changed(lambda d: _waits(d, ADMITTED))),
    "admitted, no pods yet": (11, lambda: _changed(lambda d: _in_queue(d, ADMITTED, pods=False))),
    "admitted, and runs": (13, lambda: _changed(lambda d: _in_queue(d, ADMITTED))),
    "pre-empted": (5, lambda: _changed(lambda d: ended(d.pods[1], 143, "Error", "", _DISRUPTED))),
    "a pod goes": (5, lambda: _changed(lambda d: deleting(d.pods[1]))),
    "out of memory": (5, lambda: _changed(lambda d: ended(d.pods[3], 137, "OOMKilled"))),
    "out of disk": (5, lambda: _changed(lambda d: evicted(d.pods[3], _EPHEMERAL))),
    "no Python": (5, lambda: _changed(lambda d: ended(d.pods[0], 64, "Error", "no Python 3.10 or later"))),
    "a host failed": (5, lambda: _changed(lambda d: ended(d.pods[0], 1))),
    "ended and gone": (5, lambda: _changed(_gone)),
    "wrong pod settings": (9, lambda: _changed(lambda d: _config_error(d, 121.0))),
    "bad image name": (9, lambda: _changed(lambda d: waiting(d.pods[0], "InvalidImageName", "bad"))),
    "no such image": (9, lambda: _changed(lambda d: _image(d, "x: not found", 121.0))),
    "registry down": (9, lambda: _changed(lambda d: _image(d, "i/o timeout", 601.0))),
    "over quota": (10, lambda: _changed(lambda d: _lacks_pods(d, "pods is forbidden: exceeded quota: team"))),
    "not admitted": (10, lambda: _changed(lambda d: _lacks_pods(d, "denied by policy: no spot"))),
    "not admitted to the pod's namespace": (
        10,
        lambda: _changed(lambda d: _lacks_pods(d, 'pods "x" is forbidden: violates PodSecurity "restricted"')),
    ),
    "webhook down": (10, lambda: _changed(lambda d: _lacks_pods(d, _WEBHOOK_DOWN))),
    "no account": (10, lambda: _changed(lambda d: _lacks_pods(d, _NO_ACCOUNT))),
    "half placed": (11, lambda: _changed(lambda d: unplaced(d.pods[3]))),
    "unplaced": (11, lambda: Documents().each_pod(unplaced)),
    "expired": (11, lambda: _changed(_expired)),
    "pulling": (12, lambda: _changed(lambda d: waiting(d.pods[0], "ContainerCreating"))),
    "node has not read its services yet": (12, lambda: _changed(lambda d: _config_error(d, 119.0))),
    "registry not trusted yet": (12, lambda: _changed(lambda d: _image(d, "x: not found", 119.0))),
    "running": (13, Documents),
    "one ended": (13, lambda: _changed(lambda d: ended(d.pods[0], 0))),
    "completed": (14, lambda: Documents().each_pod(lambda pod: ended(pod, 0))),
}


def damaged(document: Json) -> list[Json]:
    """The document with each of its values, one at a time, gone or of another type."""
    found: list[Json] = []
    for path in _paths(document):
        for junk in (None, "x", -7, [], {}, [None, 3], {"x": None}, True):
            changed = copy.deepcopy(document)
            holder: Any = changed
            for step in path[:-1]:
                holder = holder[step]
            holder[path[-1]] = junk
            found.append(changed)
    return found


def _paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [each for key, below in items for each in ((*path, key), *_paths(below, (*path, key)))]
