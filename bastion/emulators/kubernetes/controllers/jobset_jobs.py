"""The Jobs and the headless service of a JobSet (jobset v0.12.0 pkg/controllers/jobset_controller.go)."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    annotations_of,
    controller_reference,
    name_of,
    namespace_of,
    status_of,
    uid_of,
)
from bastion.emulators.kubernetes.controllers.exclusive import EXCLUSIVE

PREFIX = "jobset.sigs.k8s.io/"
REPLICATED_JOB = PREFIX + "replicatedjob-name"
RESTART_ATTEMPT = PREFIX + "restart-attempt"
_NODE_SELECTOR_STRATEGY = "alpha.jobset.sigs.k8s.io/node-selector"


def job_name(job_set: Obj, replicated_job: str, index: int) -> str:
    return f"{name_of(job_set)}-{replicated_job}-{index}"


def replicas_of(replicated_job: Obj) -> int:
    replicas: int = replicated_job.get("replicas", 1)
    return replicas


def subdomain_of(job_set: Obj) -> str:
    return (job_set["spec"].get("network") or {}).get("subdomain") or name_of(job_set)


def has_hostnames(job_set: Obj) -> bool:
    return bool((job_set["spec"].get("network") or {}).get("enableDNSHostnames"))


def build_service(job_set: Obj) -> Obj:
    network = job_set["spec"].get("network") or {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": subdomain_of(job_set),
            "namespace": namespace_of(job_set),
            "ownerReferences": [controller_reference(job_set)],
        },
        "spec": {
            "clusterIP": "None",
            "selector": {PREFIX + "jobset-name": name_of(job_set)},
            "publishNotReadyAddresses": network.get("publishNotReadyAddresses", True),
        },
    }


def build_job(job_set: Obj, replicated_job: Obj, index: int) -> Obj:
    template: Obj = copy.deepcopy(replicated_job["template"])
    facts = _facts(job_set, replicated_job, index)
    spec = template["spec"]
    exclusive = _exclusive(job_set, replicated_job)
    pod_template = spec["template"]
    pod_template["metadata"] = _marked(pod_template.get("metadata") or {}, facts, exclusive)
    if has_hostnames(job_set):
        pod_template["spec"]["subdomain"] = subdomain_of(job_set)
    spec["suspend"] = bool(job_set["spec"].get("suspend"))
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            **_marked(template.get("metadata") or {}, facts, exclusive),
            "name": job_name(job_set, replicated_job["name"], index),
            "namespace": namespace_of(job_set),
            "ownerReferences": [controller_reference(job_set)],
        },
        "spec": spec,
    }


def _marked(metadata: Obj, facts: dict[str, str], exclusive: dict[str, str]) -> dict[str, Any]:
    """labelAndAnnotateObject: the same facts as labels and as annotations."""
    return {
        "labels": {**(metadata.get("labels") or {}), **facts},
        "annotations": {**(metadata.get("annotations") or {}), **facts, **exclusive},
    }


def _facts(job_set: Obj, replicated_job: Obj, index: int) -> dict[str, str]:
    everything: list[Obj] = job_set["spec"]["replicatedJobs"]
    group = replicated_job.get("groupName", "default")
    in_group = [each for each in everything if each.get("groupName", "default") == group]
    key = f"{namespace_of(job_set)}/{job_name(job_set, replicated_job['name'], index)}"
    facts = {
        "jobset-name": name_of(job_set),
        "jobset-uid": uid_of(job_set),
        "replicatedjob-name": replicated_job["name"],
        "restart-attempt": str(status_of(job_set).get("restarts", 0)),
        "replicatedjob-replicas": str(replicas_of(replicated_job)),
        "global-replicas": str(sum(map(replicas_of, everything))),
        "job-index": str(index),
        "job-key": hashlib.sha1(key.encode(), usedforsecurity=False).hexdigest(),
        "job-global-index": str(_before(everything, replicated_job) + index),
        "group-name": group,
        "group-replicas": str(sum(map(replicas_of, in_group))),
        "job-group-index": str(_before(in_group, replicated_job) + index),
    }
    if coordinator := job_set["spec"].get("coordinator"):
        host = f"{coordinator['replicatedJob']}-{coordinator.get('jobIndex', 0)}-{coordinator.get('podIndex', 0)}"
        facts["coordinator"] = f"{name_of(job_set)}-{host}.{subdomain_of(job_set)}"
    return {PREFIX + name: value for name, value in facts.items()}


def _before(replicated_jobs: list[Obj], replicated_job: Obj) -> int:
    """How many Jobs the replicated jobs before this one have."""
    names = [each["name"] for each in replicated_jobs]
    return sum(map(replicas_of, replicated_jobs[: names.index(replicated_job["name"])]))


def _exclusive(job_set: Obj, replicated_job: Obj) -> dict[str, str]:
    names = (EXCLUSIVE, _NODE_SELECTOR_STRATEGY)
    found: dict[str, str] = {}
    for own in (annotations_of(job_set), (replicated_job["template"].get("metadata") or {}).get("annotations") or {}):
        if EXCLUSIVE in own:
            found.update({name: own[name] for name in names if name in own})
    return found
