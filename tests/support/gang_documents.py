"""Documents of a gang in a cluster, as the API server would list them, in each state that the adapter tells apart."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from bastion.adapters.kubernetes import seen, terms
from bastion.adapters.kubernetes.seen import Word
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

    @property
    def parts(self) -> Parts:
        return Parts(
            jobset=seen.jobset(self.jobset) if self.jobset is not None else None,
            jobs=[seen.job(each) for each in self.jobs],
            pods=[seen.pod(each) for each in self.pods],
            now=CREATED_AT + self.age,
            waited=lambda _pod: self.waited,
            not_created=self.not_created,
        )

    @property
    def status(self) -> GangStatus:
        return gang_status(NAME, "k8s:west", self.parts)

    def each_pod(self, change: Callable[[Json], object]) -> Documents:
        for each in self.pods:
            change(each)
        return self


def condition(kind: str, reason: str, message: str = "", *, status: str = "True") -> Json:
    return {"type": kind, "status": status, "reason": reason, "message": message}


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


_DISRUPTED = condition("DisruptionTarget", "TerminationByKubelet", "imminent node shutdown")
_EPHEMERAL = "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi."

# By name: the row of `state.RULES` that must find it, and how to make it.
CASES: dict[str, tuple[int, Callable[[], Documents]]] = {
    "going": (0, lambda: _changed(lambda d: deleting(d.jobset or {}))),
    "the rest goes": (0, lambda: _changed(_all_going)),
    "orphaned": (1, lambda: _changed(_without_jobset)),
    "suspended": (2, lambda: _changed(_suspended)),
    "pre-empted": (3, lambda: _changed(lambda d: ended(d.pods[1], 143, "Error", "", _DISRUPTED))),
    "a pod goes": (3, lambda: _changed(lambda d: deleting(d.pods[1]))),
    "out of memory": (3, lambda: _changed(lambda d: ended(d.pods[3], 137, "OOMKilled"))),
    "out of disk": (3, lambda: _changed(lambda d: evicted(d.pods[3], _EPHEMERAL))),
    "no Python": (3, lambda: _changed(lambda d: ended(d.pods[0], 64, "Error", "no Python 3.10 or later"))),
    "a host failed": (3, lambda: _changed(lambda d: ended(d.pods[0], 1))),
    "ended and gone": (3, lambda: _changed(_gone)),
    "bad image name": (4, lambda: _changed(lambda d: waiting(d.pods[0], "InvalidImageName", "bad"))),
    "no such image": (4, lambda: _changed(lambda d: _image(d, "x: not found", 121.0))),
    "registry down": (4, lambda: _changed(lambda d: _image(d, "i/o timeout", 601.0))),
    "over quota": (5, lambda: _changed(lambda d: _lacks_pods(d, "pods is forbidden: exceeded quota: team"))),
    "not admitted": (5, lambda: _changed(lambda d: _lacks_pods(d, "denied by policy: no spot"))),
    "half placed": (6, lambda: _changed(lambda d: unplaced(d.pods[3]))),
    "unplaced": (6, lambda: Documents().each_pod(unplaced)),
    "expired": (6, lambda: _changed(_expired)),
    "pulling": (7, lambda: _changed(lambda d: waiting(d.pods[0], "ContainerCreating"))),
    "registry not trusted yet": (7, lambda: _changed(lambda d: _image(d, "x: not found", 119.0))),
    "running": (8, Documents),
    "one ended": (8, lambda: _changed(lambda d: ended(d.pods[0], 0))),
    "completed": (9, lambda: Documents().each_pod(lambda pod: ended(pod, 0))),
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
