"""What is kept of JobSets, Jobs and pods: the few facts from which the state of a gang follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bastion.adapters.kubernetes import terms
from bastion.core.bucket import keys

_TEXT_MAX_CHARS = 500
_LABELS_OF_OTHERS = ("jobset.sigs.k8s.io/", "batch.kubernetes.io/", "kueue.x-k8s.io/")


@dataclass(frozen=True, slots=True)
class Word:
    """A condition's or status's reason and message; both may be empty."""

    reason: str = ""
    message: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.reason, self.message)))


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
    deleting: bool
    suspended: bool
    completed: bool
    failed: Word | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenJob:
    name: str
    uid: str
    run: str  # empty if it belongs to another JobSet, such as someone's copy of ours
    deleting: bool
    failed: Word | None  # also while its pods still end


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
    metadata, spec = item["metadata"], item.get("spec") or {}
    slices: Mapping[str, Any] = next(iter(spec.get("replicatedJobs") or ()), {})
    job = (slices.get("template") or {}).get("spec") or {}
    conditions = _conditions(item)
    annotations = metadata.get("annotations") or {}
    labels = metadata.get("labels") or {}
    return SeenJobSet(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        run=labels.get(terms.LABEL_RUN, ""),
        token=annotations.get(terms.ANNOTATION_TOKEN, ""),
        labels={key: value for key, value in labels.items() if not key.startswith(_LABELS_OF_OTHERS)},
        num_slices=int(slices.get("replicas", 1)),
        hosts=int(job.get("parallelism") or 1),
        created_at=_instant(metadata.get("creationTimestamp", "")),
        valid_until_seconds=_seconds(annotations.get(terms.ANNOTATION_VALID_UNTIL, "")),
        deleting=bool(metadata.get("deletionTimestamp")),
        suspended=bool(spec.get("suspend")),
        completed="Completed" in conditions,
        failed=conditions.get("Failed"),
    )


def job(item: Mapping[str, Any]) -> SeenJob:
    metadata, conditions = item["metadata"], _conditions(item)
    return SeenJob(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        run=_run_of_part(metadata.get("labels") or {}),
        deleting=bool(metadata.get("deletionTimestamp")),
        failed=conditions.get("Failed") or conditions.get("FailureTarget"),
    )


def pod(item: Mapping[str, Any]) -> SeenPod:
    metadata, status = item["metadata"], item.get("status") or {}
    labels = metadata.get("labels") or {}
    conditions = {each.get("type"): each for each in status.get("conditions") or ()}
    scheduled, disrupted = conditions.get("PodScheduled", {}), conditions.get("DisruptionTarget", {})
    waiting, ended = _container(status)
    return SeenPod(
        name=metadata["name"],
        uid=metadata.get("uid", ""),
        run=_run_of_part(labels),
        slice_index=_number(labels.get(terms.LABEL_JOB_INDEX, "")),
        worker=_number(labels.get(terms.LABEL_COMPLETION_INDEX, "")),
        phase=status.get("phase", "Pending"),
        deleting=bool(metadata.get("deletionTimestamp")),
        node=(item.get("spec") or {}).get("nodeName") or "",
        unscheduled=_word(scheduled) if scheduled.get("status") == "False" else None,
        disrupted=_word(disrupted) if disrupted.get("status") == "True" else None,
        status=_word(status),
        waiting=waiting,
        ended=ended,
    )


def _run_of_part(labels: Mapping[str, str]) -> str:
    run = labels.get(terms.LABEL_RUN, "")
    return run if labels.get(terms.LABEL_JOBSET, keys.gang(run)) == keys.gang(run) else ""


def _container(status: Mapping[str, Any]) -> tuple[Word | None, tuple[str, int, str] | None]:
    """Return what the pod's container waits for and how it ended; an init container counts while it does not let it."""
    containers = [
        *(each for each in status.get("initContainerStatuses") or () if not _succeeded(each)),
        *(status.get("containerStatuses") or ()),
    ]
    waiting: Word | None = None
    ended: tuple[str, int, str] | None = None
    for each in containers:
        state: Mapping[str, Any] = each.get("state") or {}
        if waiting is None and (state.get("waiting") or {}).get("reason") not in (None, "PodInitializing"):
            waiting = _word(state["waiting"])
        done = state.get("terminated")
        if ended is None and done:
            ended = (done.get("reason", ""), int(done.get("exitCode", 0)), _cut(done.get("message", "")))
    return waiting, ended


def _succeeded(container: Mapping[str, Any]) -> bool:
    done: Mapping[str, Any] = (container.get("state") or {}).get("terminated") or {}
    return done.get("exitCode") == 0


def _conditions(item: Mapping[str, Any]) -> dict[str, Word]:
    """Return the conditions that are true, by type."""
    given = (item.get("status") or {}).get("conditions") or ()
    return {each.get("type", ""): _word(each) for each in given if each.get("status") == "True"}


def _word(document: Mapping[str, Any]) -> Word:
    return Word(str(document.get("reason") or ""), _cut(str(document.get("message") or "")))


def _cut(text: str) -> str:
    return text[:_TEXT_MAX_CHARS]


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 9 else 0


def _seconds(text: str) -> float | None:
    return float(text) if text.isdecimal() and len(text) < 12 else None


def _instant(text: str) -> float:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except ValueError:
        return 0.0
