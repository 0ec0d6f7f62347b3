"""Objects as tables, for people who read them in kubectl.

Sources: kubernetes pkg/printers/internalversion/printers.go, jobset config/components/crd (additionalPrinterColumns),
apiserver pkg/endpoints/handlers/response.go.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from bastion.emulators.kubernetes.apiserver import resources
from bastion.emulators.kubernetes.apiserver.resources import Resource
from bastion.emulators.kubernetes.apiserver.store import Object, Stored

Cell = Callable[[Object], object]

_NONE = "<none>"
_UNKNOWN = "<unknown>"
_ROLE = "node-role.kubernetes.io/"


class Column(NamedTuple):
    """One column; `wide`: with `-o wide` only."""

    name: str
    cell: Cell
    wide: bool = False


def is_wanted(accept: str) -> bool:
    """Whether a client prefers a table."""
    parameters = {part.strip() for part in accept.split(",")[0].split(";")}
    return {"application/json", "as=Table", "g=meta.k8s.io", "v=v1"} <= parameters


def table(resource: Resource, items: Iterable[Stored], metadata: Mapping[str, object], include: str) -> Object:
    """A Table. `include`: what rows have of their objects: Object, None, or by default their metadata."""
    columns = _COLUMNS.get(resource, _PLAIN)
    definitions = [
        {
            "name": column.name,
            "type": "string",
            "format": "name" if column.name == "Name" else "",
            "description": "",
            "priority": int(column.wide),
        }
        for column in columns
    ]
    rows = []
    for stored in items:
        row: Object = {"cells": [column.cell(stored.object) for column in columns]}
        if include == "Object":
            row["object"] = stored.copy()
        elif include != "None":
            partial = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1"}
            row["object"] = {**partial, "metadata": stored.object["metadata"]}
        rows.append(row)
    head = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": dict(metadata)}
    return {**head, "columnDefinitions": definitions, "rows": rows}


def encoded(stored: Stored, include: str) -> bytes:
    """One object as a table."""
    version = {"resourceVersion": stored.object["metadata"]["resourceVersion"]}
    return json.dumps(table(stored.resource, [stored], version, include)).encode()


def since(text: str | None) -> str:
    """The age of a moment: apimachinery pkg/util/duration, HumanDuration."""
    if not text:
        return _UNKNOWN
    then = datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
    return human((datetime.datetime.now(datetime.timezone.utc) - then).total_seconds())


def human(seconds: float) -> str:
    """A duration in two units at most."""
    whole = max(0, int(seconds))
    minutes, hours, days = whole // 60, whole // 3600, whole // 86400
    if whole < 120:
        return f"{whole}s"
    if minutes < 10:
        return f"{minutes}m{whole % 60}s" if whole % 60 else f"{minutes}m"
    if hours < 3:
        return f"{minutes}m"
    if hours < 8:
        return f"{hours}h{minutes % 60}m" if minutes % 60 else f"{hours}h"
    if days < 2:
        return f"{hours}h"
    if days < 8:
        return f"{days}d{hours % 24}h" if hours % 24 else f"{days}d"
    return f"{days}d"


def _at(*path: str, default: object = _NONE) -> Cell:
    def cell(document: Object) -> object:
        value: Any = document
        for part in path:
            value = value.get(part) if isinstance(value, dict) else None
        return default if value is None or value == "" else value

    return cell


def _text(*path: str) -> Cell:
    """As columns of custom kinds are: texts, null where there is nothing."""
    found = _at(*path, default=None)

    def cell(document: Object) -> str | None:
        value = found(document)
        if value is None:
            return None
        return str(value).lower() if isinstance(value, bool) else str(value)

    return cell


def _age(document: Object) -> str:
    return since(document["metadata"].get("creationTimestamp"))


def _condition(document: Object, kind: str) -> str:
    listed = (document.get("status") or {}).get("conditions") or []
    return next((str(each["status"]) for each in listed if each["type"] == kind), "")


def _containers(pod: Object) -> list[Object]:
    return list((pod.get("status") or {}).get("containerStatuses") or [])


def _pod_ready(pod: Object) -> str:
    return f"{sum(bool(each.get('ready')) for each in _containers(pod))}/{len(pod['spec'].get('containers') or [])}"


def _pod_status(pod: Object) -> str:
    """The reason that says most: of the pod, then of a container that waits or has ended."""
    status = pod.get("status") or {}
    shown = str(status.get("reason") or status.get("phase") or _UNKNOWN)
    for container in _containers(pod):
        state = container.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
        if reason := waiting.get("reason") or ended.get("reason"):
            shown = str(reason)
        elif ended:
            shown = f"ExitCode:{ended.get('exitCode')}"
    if pod["metadata"].get("deletionTimestamp"):
        return "Unknown" if status.get("reason") == "NodeLost" else "Terminating"
    return shown


def _pod_restarts(pod: Object) -> str:
    return str(sum(each.get("restartCount", 0) for each in _containers(pod)))


def _node_status(node: Object) -> str:
    ready = {"True": "Ready", "False": "NotReady", "Unknown": "NotReady", "": "Unknown"}[_condition(node, "Ready")]
    return f"{ready},SchedulingDisabled" if (node.get("spec") or {}).get("unschedulable") else ready


def _node_roles(node: Object) -> str:
    labels = node["metadata"].get("labels") or {}
    roles = [name.removeprefix(_ROLE) for name in labels if name.startswith(_ROLE)]
    return ",".join(sorted(roles)) or _NONE


def _job_status(job: Object) -> str:
    for kind, shown in (("Complete", "Complete"), ("Failed", "Failed")):
        if _condition(job, kind) == "True":
            return shown
    if job["metadata"].get("deletionTimestamp"):
        return "Terminating"
    for kind, shown in (("Suspended", "Suspended"), ("FailureTarget", "FailureTarget")):
        if _condition(job, kind) == "True":
            return shown
    return "SuccessCriteriaMet" if _condition(job, "SuccessCriteriaMet") == "True" else "Running"


def _job_completions(job: Object) -> str:
    spec = job.get("spec") or {}
    return f"{(job.get('status') or {}).get('succeeded', 0)}/{spec.get('completions') or spec.get('parallelism', 1)}"


def _job_duration(job: Object) -> str:
    status = job.get("status") or {}
    if not status.get("startTime"):
        return ""
    if not status.get("completionTime"):
        return since(status["startTime"])
    started, ended = (
        datetime.datetime.fromisoformat(status[field].replace("Z", "+00:00"))
        for field in ("startTime", "completionTime")
    )
    return human((ended - started).total_seconds())


def _event_age(event: Object) -> str:
    return since(event.get("lastTimestamp") or event.get("eventTime") or event.get("firstTimestamp"))


def _event_object(event: Object) -> str:
    involved = event.get("involvedObject") or {}
    return f"{str(involved.get('kind', '')).lower()}/{involved.get('name', '')}"


def _count(*path: str) -> Cell:
    def cell(document: Object) -> int:
        value: Any = document
        for part in path:
            value = (value or {}).get(part)
        return len(value or ())

    return cell


_NAME = Column("Name", lambda document: document["metadata"]["name"])
_AGE = Column("Age", _age)
_PLAIN = (_NAME, _AGE)

_COLUMNS: Mapping[Resource, tuple[Column, ...]] = {
    resources.PODS: (
        _NAME,
        Column("Ready", _pod_ready),
        Column("Status", _pod_status),
        Column("Restarts", _pod_restarts),
        _AGE,
        Column("IP", _at("status", "podIP"), wide=True),
        Column("Node", _at("spec", "nodeName"), wide=True),
        Column("Nominated Node", _at("status", "nominatedNodeName"), wide=True),
    ),
    resources.NODES: (
        _NAME,
        Column("Status", _node_status),
        Column("Roles", _node_roles),
        _AGE,
        Column("Version", _at("status", "nodeInfo", "kubeletVersion", default="")),
    ),
    resources.NAMESPACES: (_NAME, Column("Status", _at("status", "phase")), _AGE),
    resources.SERVICES: (
        _NAME,
        Column("Type", _at("spec", "type")),
        Column("Cluster-IP", _at("spec", "clusterIP")),
        _AGE,
    ),
    resources.EVENTS: (
        Column("Last Seen", _event_age),
        Column("Type", _at("type", default="")),
        Column("Reason", _at("reason", default="")),
        Column("Object", _event_object),
        Column("Message", lambda event: str(event.get("message", "")).strip()),
        Column("Name", _NAME.cell, wide=True),
    ),
    resources.CONFIG_MAPS: (_NAME, Column("Data", _count("data")), _AGE),
    resources.SECRETS: (_NAME, Column("Type", _at("type")), Column("Data", _count("data")), _AGE),
    resources.LEASES: (_NAME, Column("Holder", _at("spec", "holderIdentity", default="")), _AGE),
    resources.JOBS: (
        _NAME,
        Column("Status", _job_status),
        Column("Completions", _job_completions),
        Column("Duration", _job_duration),
        _AGE,
    ),
    resources.JOB_SETS: (
        _NAME,
        Column("TerminalState", _text("status", "terminalState")),
        Column("Restarts", _text("status", "restarts")),
        Column("Completed", lambda document: _condition(document, "Completed")),
        Column("Suspended", _text("spec", "suspend")),
        _AGE,
    ),
    resources.WORKLOADS: (
        _NAME,
        Column("Queue", _text("spec", "queueName")),
        Column("Reserved in", _text("status", "admission", "clusterQueue")),
        Column("Admitted", lambda document: _condition(document, "Admitted")),
        Column("Finished", lambda document: _condition(document, "Finished")),
        _AGE,
    ),
    resources.CLUSTER_QUEUES: (
        _NAME,
        Column("Cohort", _text("spec", "cohortName")),
        Column("Strategy", _text("spec", "queueingStrategy"), wide=True),
        Column("Pending Workloads", _text("status", "pendingWorkloads")),
        Column("Admitted Workloads", _text("status", "admittedWorkloads"), wide=True),
    ),
    resources.LOCAL_QUEUES: (
        _NAME,
        Column("ClusterQueue", _text("spec", "clusterQueue")),
        Column("Pending Workloads", _text("status", "pendingWorkloads")),
        Column("Admitted Workloads", _text("status", "admittedWorkloads")),
    ),
    resources.WORKLOAD_PRIORITIES: (_NAME, Column("Value", _text("value"))),
}
