"""Kueue, where it decides: the names that gangs and the exported quota share, and what Kueue says of a gang."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

_NAME_MAX_CHARS = 63  # of a label's value, and of a LocalQueue
_PROJECT = "{project}"
_DIGEST = re.compile(r"-[0-9a-f]{8}$")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadCondition:
    """A condition of a gang's Workload in Kueue's own words, such as QuotaReserved or Admitted."""

    type: str
    status: bool
    reason: str
    message: str
    since: float  # seconds since the epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionCheck:
    """`state` is Pending, Ready, Retry or Rejected."""

    name: str
    state: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KueueStatus:
    """What Kueue says of a gang.

    Attributes:
        queue: Its LocalQueue.
        workload: Empty until Kueue has made one.
        admitted: Whether its pods may start.
    """

    queue: str
    workload: str = ""
    admitted: bool = False
    conditions: tuple[WorkloadCondition, ...] = ()
    checks: tuple[AdmissionCheck, ...] = ()
    evictions: int = 0


def local_queue(template: str, project_id: str) -> str:
    """Return the LocalQueue of a project: the cluster's `queue` setting with the project in it.

    A project whose name Kubernetes does not allow gets a similar name that no other project has.
    """
    name = template.replace(_PROJECT, _label(project_id))
    if len(name) <= _NAME_MAX_CHARS:
        return name
    return name[: _NAME_MAX_CHARS - 9].rstrip("-") + "-" + _digest(name)


def priority_class(priority: int, *, again: bool) -> str:
    """Return the WorkloadPriorityClass of an attempt; `again`: a later one, which goes before its equals.

    Kueue orders equals by the creation of their Workloads, and each attempt is a new one.
    """
    return f"bastion-priority-{priority}{'-again' if again else ''}"


def _label(text: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    # A name that ends like a digest may be what another project's name becomes.
    return text if plain == text and not _DIGEST.search(text) else f"{plain or 'project'}-{_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
