"""The pods of an Indexed Job: which are missing, and what is created (pkg/controller/job/indexed_job_utils.go)."""

from __future__ import annotations

import copy
from typing import Any

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    COMPLETION_INDEX,
    JOB_FINALIZER,
    annotations_of,
    controller_reference,
    name_of,
    namespace_of,
    uid_of,
)

_INDEX_VARIABLE = "JOB_COMPLETION_INDEX"


def index_of(pod: Obj) -> int | None:
    text = annotations_of(pod).get(COMPLETION_INDEX, "")
    return int(text) if text.isdigit() else None


def build(job: Obj, index: int) -> Obj:
    """The pod of an index, as pkg/controller/job/job_controller.go manageJob creates it.

    The labels of the Job's selector are usually in its template (pkg/registry/batch/job/strategy.go); an API server
    without that strategy leaves them out.
    """
    template: Obj = copy.deepcopy(job["spec"]["template"])
    metadata: dict[str, Any] = template.get("metadata") or {}
    selector = {
        "batch.kubernetes.io/controller-uid": uid_of(job),
        "batch.kubernetes.io/job-name": name_of(job),
        "controller-uid": uid_of(job),
        "job-name": name_of(job),
    }
    spec: Obj = template["spec"]
    spec["hostname"] = f"{name_of(job)}-{index}"
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        variables = container.get("env") or []
        if not any(variable["name"] == _INDEX_VARIABLE for variable in variables):
            source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{COMPLETION_INDEX}']"}}
            container["env"] = [*variables, {"name": _INDEX_VARIABLE, "valueFrom": source}]
    finalizers = metadata.get("finalizers") or []
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": _generate_name(name_of(job), index),
            "namespace": namespace_of(job),
            "labels": {**selector, **(metadata.get("labels") or {}), COMPLETION_INDEX: str(index)},
            "annotations": {**(metadata.get("annotations") or {}), COMPLETION_INDEX: str(index)},
            "finalizers": [*(each for each in finalizers if each != JOB_FINALIZER), JOB_FINALIZER],
            "ownerReferences": [controller_reference(job)],
        },
        "spec": spec,
    }


def _generate_name(job: str, index: int) -> str:
    # Pod names have at most 63 characters, five of them random: podGenerateNameWithIndex cuts the Job's name.
    tail = f"-{index}-"
    return job[: 63 - 5 - len(tail)] + tail
