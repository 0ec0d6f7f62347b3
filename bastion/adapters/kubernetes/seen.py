"""What is kept of JobSets, Jobs and pods: the few facts from which the state of a gang follows.

Invariant: no document raises. Others may write objects with our labels, and one of them must not make a cluster silent;
what has the wrong type counts as absent. Strings that many objects share are interned.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from bastion.adapters.kubernetes import terms
from bastion.core.bucket import keys

_TEXT_MAX_CHARS = 500
_NOTHING: Final[Mapping[str, Any]] = {}
_LABELS_OF_OTHERS = ("jobset.sigs.k8s.io/", "batch.kubernetes.io/", "kueue.x-k8s.io/")


@dataclass(frozen=True, slots=True)
class Word:
    """A condition's or status's reason and message; both may be empty."""

    reason: str = ""
    message: str = ""

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.reason, self.message)))


_NO_WORD: Final = Word()


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
    metadata, spec = _map(item.get("metadata")), _map(item.get("spec"))
    slices = next(iter(_maps(spec.get("replicatedJobs"))), _NOTHING)
    job = _map(_map(slices.get("template")).get("spec"))
    conditions = _conditions(item)
    annotations, labels = _map(metadata.get("annotations")), _map(metadata.get("labels"))
    return SeenJobSet(
        name=_text(metadata.get("name")),
        uid=_text(metadata.get("uid")),
        run=sys.intern(_text(labels.get(terms.LABEL_RUN))),
        token=_text(annotations.get(terms.ANNOTATION_TOKEN)),
        labels={key: _text(value) for key, value in labels.items() if not key.startswith(_LABELS_OF_OTHERS)},
        num_slices=_count(slices.get("replicas")),
        hosts=_count(job.get("parallelism")),
        created_at=_instant(_text(metadata.get("creationTimestamp"))),
        valid_until_seconds=_seconds(_text(annotations.get(terms.ANNOTATION_VALID_UNTIL))),
        deleting=bool(metadata.get("deletionTimestamp")),
        suspended=bool(spec.get("suspend")),
        completed="Completed" in conditions,
        failed=conditions.get("Failed"),
    )


def job(item: Mapping[str, Any]) -> SeenJob:
    metadata, conditions = _map(item.get("metadata")), _conditions(item)
    return SeenJob(
        name=_text(metadata.get("name")),
        uid=_text(metadata.get("uid")),
        run=sys.intern(_run_of_part(_map(metadata.get("labels")))),
        deleting=bool(metadata.get("deletionTimestamp")),
        failed=conditions.get("Failed") or conditions.get("FailureTarget"),
        slice_index=_number(_text(_map(metadata.get("labels")).get(terms.LABEL_JOB_INDEX))),
        succeeded=_tally(_map(item.get("status")).get("succeeded")),
    )


def pod(item: Mapping[str, Any]) -> SeenPod:
    metadata, status = _map(item.get("metadata")), _map(item.get("status"))
    labels = _map(metadata.get("labels"))
    conditions = {_text(each.get("type")): each for each in _maps(status.get("conditions"))}
    scheduled, disrupted = conditions.get("PodScheduled", _NOTHING), conditions.get("DisruptionTarget", _NOTHING)
    waiting, ended = _container(status)
    return SeenPod(
        name=_text(metadata.get("name")),
        uid=_text(metadata.get("uid")),
        run=sys.intern(_run_of_part(labels)),
        slice_index=_number(_text(labels.get(terms.LABEL_JOB_INDEX))),
        worker=_number(_text(labels.get(terms.LABEL_COMPLETION_INDEX))),
        phase=sys.intern(_text(status.get("phase")) or "Pending"),
        deleting=bool(metadata.get("deletionTimestamp")),
        node=sys.intern(_text(_map(item.get("spec")).get("nodeName"))),
        unscheduled=_word(scheduled) if scheduled.get("status") == "False" else None,
        disrupted=_word(disrupted) if disrupted.get("status") == "True" else None,
        status=_word(status),
        waiting=waiting,
        ended=ended,
    )


def _run_of_part(labels: Mapping[str, Any]) -> str:
    run = _text(labels.get(terms.LABEL_RUN))
    return run if labels.get(terms.LABEL_JOBSET, keys.gang(run)) == keys.gang(run) else ""


def _container(status: Mapping[str, Any]) -> tuple[Word | None, tuple[str, int, str] | None]:
    """Return what the pod's container waits for and how it ended; an init container counts while it does not let it."""
    containers = [
        *(each for each in _maps(status.get("initContainerStatuses")) if not _succeeded(each)),
        *_maps(status.get("containerStatuses")),
    ]
    waiting: Word | None = None
    ended: tuple[str, int, str] | None = None
    for each in containers:
        state = _map(each.get("state"))
        word = _word(_map(state.get("waiting")))
        if waiting is None and word.reason not in ("", "PodInitializing"):
            waiting = word
        done = _map(state.get("terminated"))
        if ended is None and done:
            told, code = _word(done), done.get("exitCode")
            ended = (told.reason, code if isinstance(code, int) else 0, told.message)
    return waiting, ended


def _succeeded(container: Mapping[str, Any]) -> bool:
    return _map(_map(container.get("state")).get("terminated")).get("exitCode") == 0


def _conditions(item: Mapping[str, Any]) -> dict[str, Word]:
    """Return the conditions that are true, by type."""
    given = _maps(_map(item.get("status")).get("conditions"))
    return {_text(each.get("type")): _word(each) for each in given if each.get("status") == "True"}


def _word(document: Mapping[str, Any]) -> Word:
    reason, message = _text(document.get("reason")), _text(document.get("message"))
    return Word(sys.intern(reason), message[:_TEXT_MAX_CHARS]) if reason or message else _NO_WORD


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else _NOTHING


def _maps(value: object) -> Sequence[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else ()


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int:
    """Return a number of replicas; absent: 1, the API's default."""
    return value if isinstance(value, int) and value > 0 else 1


def _number(text: str) -> int:
    return int(text) if text.isdecimal() and len(text) < 9 else 0


def _tally(value: Any) -> int:
    return value if isinstance(value, int) and value > 0 else 0


def _seconds(text: str) -> float | None:
    return float(text) if text.isdecimal() and len(text) < 12 else None


def _instant(text: str) -> float:
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    except (ValueError, OverflowError):
        return 0.0
