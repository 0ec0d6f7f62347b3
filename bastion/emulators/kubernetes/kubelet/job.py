"""The Job that a pod belongs to: its pods share a block of addresses, and know each other's."""

from __future__ import annotations

from typing import Any

from bastion.emulators.kubernetes.client import ApiClient, ApiError
from bastion.emulators.kubernetes.kubelet.planning import Owner

Obj = dict[str, Any]

_INDEX = "batch.kubernetes.io/job-completion-index"


def group(pod: Obj) -> str:
    """The uid of its Job; of itself without an Indexed Job."""
    found = _controller(pod)
    return str(found["uid"]) if found is not None else str(pod["metadata"]["uid"])


def owner(pod: Obj, client: ApiClient) -> Owner | None:
    """The pod's place in its Job; None if the Job is gone, so that the pod goes soon, too. Raises ApiError."""
    found = _controller(pod)
    if found is None:
        return Owner(group=group(pod))
    try:
        job = client.get(f"/apis/batch/v1/namespaces/{pod['metadata']['namespace']}/jobs/{found['name']}")
    except ApiError as error:
        if error.code == 404:
            return None
        raise
    size = int(job["spec"].get("completions") or job["spec"].get("parallelism") or 1)
    return Owner(group=str(found["uid"]), index=int(pod["metadata"]["annotations"][_INDEX]), size=size)


def _controller(pod: Obj) -> Obj | None:
    if _INDEX not in (pod["metadata"].get("annotations") or {}):
        return None
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((each for each in owners if each.get("controller") and each["kind"] == "Job"), None)
