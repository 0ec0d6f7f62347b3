"""API objects as an API server would return them, for pure functions."""

from __future__ import annotations

import datetime
from typing import Any

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import JOB_FINALIZER, timestamp
from bastion.emulators.kubernetes.controllers.job_pods import build
from tests.support.kubernetes_jobs import job_set, job_template

NOW = datetime.datetime(2026, 11, 23, 12, 0, tzinfo=datetime.timezone.utc)


def a_job(*, hosts: int = 2, status: Obj | None = None, deleting: bool = False, **spec: Any) -> Obj:
    template = job_template(hosts=hosts, **spec)
    metadata: Obj = {"name": "j", "namespace": "default", "uid": "job-uid", "resourceVersion": "1"}
    if deleting:
        metadata["deletionTimestamp"] = timestamp(NOW)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata,
        "spec": template["spec"],
        "status": status or {},
    }


def a_pod(
    job: Obj,
    index: int,
    phase: str = "Running",
    *,
    exit_code: int | None = None,
    deleting: bool = False,
    held: bool = True,
    ready: bool = False,
    conditions: tuple[str, ...] = (),
) -> Obj:
    """A pod of a Job; `held`: with the Job's finalizer; `conditions`: types that are True."""
    pod = build(job, index)
    pod["metadata"].update(name=f"j-{index}-abcde", uid=f"pod-{index}", resourceVersion="1")
    if deleting:
        pod["metadata"]["deletionTimestamp"] = timestamp(NOW)
    pod["metadata"]["finalizers"] = [JOB_FINALIZER] if held else []
    kinds = (*conditions, *(("Ready",) if ready else ()))
    pod["status"] = {"phase": phase, "conditions": [{"type": kind, "status": "True"} for kind in kinds]}
    if exit_code is not None:
        state = {"terminated": {"exitCode": exit_code}}
        pod["status"]["containerStatuses"] = [{"name": "host", "state": state}]
    return pod


def a_job_set(*, status: Obj | None = None, **arguments: Any) -> Obj:
    made = job_set(**arguments)
    made["metadata"].update(uid="set-uid", resourceVersion="1")
    return {**made, "status": status or {}}


def a_node(name: str, *, tpus: int = 4, pool: str = "p", taints: tuple[Obj, ...] = (), **labels: str) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": name, "labels": {"cloud.google.com/gke-nodepool": pool, **labels}},
        "spec": {"taints": list(taints)},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "3", "google.com/tpu": str(tpus)}},
    }


def with_condition(obj: Obj, kind: str, *, reason: str = "", message: str = "", at: str = "") -> Obj:
    condition = {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": at or timestamp(NOW),
    }
    status = obj.get("status") or {}
    return {**obj, "status": {**status, "conditions": [*(status.get("conditions") or ()), condition]}}
