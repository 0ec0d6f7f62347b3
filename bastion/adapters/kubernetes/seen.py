"""What is kept of JobSets, Jobs and pods: the few facts from which the state of a gang follows.

Invariant: no document raises. Others may write objects with our labels, and one of them must not make a cluster silent;
what has the wrong type counts as absent. Strings that many objects share are interned.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bastion.adapters.kubernetes import documents, terms
from bastion.adapters.kubernetes.documents import Word
from bastion.core.bucket import keys

_LABELS_OF_OTHERS = ("jobset.sigs.k8s.io/", "batch.kubernetes.io/", "kueue.x-k8s.io/")


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenJobSet:
    name: str
    uid: str
    run: str
    token: str
    labels: Mapping[str, str]
    num_slices: int
    hosts: int  # of one slice
    created_at: float  # seconds since the epoch, by the API server's clock
    valid_until_seconds: float | None
    queue: str  # LocalQueue that we asked for; empty: none
    has_queue_label: bool  # without it Kueue leaves the JobSet alone
    deleting: bool
    finalizers: Sequence[str]  # but that of a foreground deletion
    suspended: bool
    completed: bool
    failed: Word | None
    failed_at: float = 0.0  # as of a Job


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenJob:
    name: str
    uid: str
    run: str  # empty if it is no part of a JobSet of ours, such as someone's copy
    deleting: bool
    failed: Word | None  # also while its pods still end
    failed_at: float = 0.0  # seconds since the epoch, by the API server's clock; 0: it did not, or does not say when
    slice_index: int = 0
    succeeded: int = 0  # pods that ended with code 0, also those that are gone since


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenPod:
    """One pod. `waiting` is of its container; `ended` is the container's reason, exit code and message."""

    name: str
    uid: str
    run: str
    slice_index: int
    worker: int
    phase: str
    deleting: bool
    node: str  # empty while it is not placed
    unscheduled: Word | None  # why it is not placed
    disrupted: Word | None  # condition DisruptionTarget
    status: Word  # reason and message of the whole pod, such as Evicted
    waiting: Word | None
    ended: tuple[str, int, str] | None


def jobset(item: Mapping[str, Any]) -> SeenJobSet:
    metadata, spec = documents.mapping(item.get("metadata")), documents.mapping(item.get("spec"))
    slices = next(iter(documents.mappings(spec.get("replicatedJobs"))), documents.NOTHING)
    template = documents.mapping(slices.get("template"))
    job, lasting = documents.mapping(template.get("spec")), documents.mapping(template.get("metadata"))
    conditions = documents.conditions(item)
    annotations, labels = documents.mapping(metadata.get("annotations")), documents.mapping(metadata.get("labels"))
    return SeenJobSet(
        name=documents.text(metadata.get("name")),
        uid=documents.text(metadata.get("uid")),
        run=sys.intern(documents.text(_lasting_labels(item).get(terms.LABEL_RUN))),
        token=documents.text(annotations.get(terms.ANNOTATION_TOKEN)),
        labels={key: documents.text(value) for key, value in labels.items() if not key.startswith(_LABELS_OF_OTHERS)},
        num_slices=documents.count(slices.get("replicas")),
        hosts=documents.count(job.get("parallelism")),
        created_at=documents.instant(documents.text(metadata.get("creationTimestamp"))),
        valid_until_seconds=documents.seconds(documents.text(annotations.get(terms.ANNOTATION_VALID_UNTIL))),
        queue=sys.intern(documents.text(documents.mapping(lasting.get("annotations")).get(terms.ANNOTATION_QUEUE))),
        has_queue_label=bool(labels.get(terms.LABEL_QUEUE)),
        deleting=bool(metadata.get("deletionTimestamp")),
        finalizers=_finalizers(metadata),
        suspended=bool(spec.get("suspend")),
        completed="Completed" in conditions,
        failed=conditions.get("Failed"),
        failed_at=documents.instant(documents.since(item, "Failed")),
    )


def job(item: Mapping[str, Any]) -> SeenJob:
    metadata, conditions = documents.mapping(item.get("metadata")), documents.conditions(item)
    failed = "Failed" if "Failed" in conditions else "FailureTarget"
    return SeenJob(
        name=documents.text(metadata.get("name")),
        uid=documents.text(metadata.get("uid")),
        run=sys.intern(_run_of_part(metadata)),
        deleting=bool(metadata.get("deletionTimestamp")),
        failed=conditions.get(failed),
        failed_at=documents.instant(documents.since(item, failed)),
        slice_index=documents.number(
            documents.text(documents.mapping(metadata.get("labels")).get(terms.LABEL_JOB_INDEX))
        ),
        succeeded=documents.tally(documents.mapping(item.get("status")).get("succeeded")),
    )


def pod(item: Mapping[str, Any]) -> SeenPod:
    metadata, status = documents.mapping(item.get("metadata")), documents.mapping(item.get("status"))
    labels = documents.mapping(metadata.get("labels"))
    conditions = {documents.text(each.get("type")): each for each in documents.mappings(status.get("conditions"))}
    scheduled, disrupted = (
        conditions.get("PodScheduled", documents.NOTHING),
        conditions.get("DisruptionTarget", documents.NOTHING),
    )
    waiting, ended = _container(status)
    return SeenPod(
        name=documents.text(metadata.get("name")),
        uid=documents.text(metadata.get("uid")),
        run=sys.intern(_run_of_part(metadata)),
        slice_index=documents.number(documents.text(labels.get(terms.LABEL_JOB_INDEX))),
        worker=documents.number(documents.text(labels.get(terms.LABEL_COMPLETION_INDEX))),
        phase=sys.intern(documents.text(status.get("phase")) or "Pending"),
        deleting=bool(metadata.get("deletionTimestamp")),
        node=sys.intern(documents.text(documents.mapping(item.get("spec")).get("nodeName"))),
        unscheduled=documents.word(scheduled) if scheduled.get("status") == "False" else None,
        disrupted=documents.word(disrupted) if disrupted.get("status") == "True" else None,
        status=documents.word(status),
        waiting=waiting,
        ended=ended,
    )


def manager(item: Mapping[str, Any]) -> str:
    """Return the bastion whose JobSet this is; empty for nobody's."""
    return documents.text(_lasting_labels(item).get(terms.LABEL_BASTION))


def _lasting_labels(jobset: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the labels of the JobSet's Jobs, which nobody can edit, unless it is a copy of another; then its own."""
    slices = documents.mappings(documents.mapping(jobset.get("spec")).get("replicatedJobs"))
    template = documents.mapping(next(iter(slices), documents.NOTHING).get("template"))
    labels, name = _labels(template), documents.text(documents.mapping(jobset.get("metadata")).get("name"))
    return labels if name and name == keys.gang(documents.text(labels.get(terms.LABEL_RUN))) else _labels(jobset)


def _run_of_part(metadata: Mapping[str, Any]) -> str:
    """Return the run that a Job or pod is part of; empty for copies, which have our labels but not their names."""
    labels = documents.mapping(metadata.get("labels"))
    run = documents.text(labels.get(terms.LABEL_RUN))
    gang = keys.gang(run)
    if labels.get(terms.LABEL_JOBSET, gang) != gang:
        return ""
    return run if documents.text(metadata.get("name")).startswith(f"{gang}-{terms.SLICE}-") else ""


def _finalizers(metadata: Mapping[str, Any]) -> Sequence[str]:
    found = metadata.get("finalizers")
    given = found if isinstance(found, list) else []
    return tuple(documents.text(each) for each in given if each != "foregroundDeletion")


def _labels(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return documents.mapping(documents.mapping(item.get("metadata")).get("labels"))


def _container(status: Mapping[str, Any]) -> tuple[Word | None, tuple[str, int, str] | None]:
    """Return what the pod's container waits for and how it ended; an init container counts while it does not let it."""
    containers = [
        *(each for each in documents.mappings(status.get("initContainerStatuses")) if not _succeeded(each)),
        *documents.mappings(status.get("containerStatuses")),
    ]
    waiting: Word | None = None
    ended: tuple[str, int, str] | None = None
    for each in containers:
        state = documents.mapping(each.get("state"))
        word = documents.word(documents.mapping(state.get("waiting")))
        if waiting is None and word.reason not in ("", "PodInitializing"):
            waiting = word
        done = documents.mapping(state.get("terminated"))
        if ended is None and done:
            told, code = documents.word(done), done.get("exitCode")
            ended = (told.reason, code if isinstance(code, int) else 0, told.message)
    return waiting, ended


def _succeeded(container: Mapping[str, Any]) -> bool:
    return documents.mapping(documents.mapping(container.get("state")).get("terminated")).get("exitCode") == 0
