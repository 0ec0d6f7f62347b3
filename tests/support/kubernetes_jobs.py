"""JobSets as the bastion writes them, short."""

from __future__ import annotations

from typing import Any

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import JOB, JOB_SET

JOB_SETS = JOB_SET.path("default")
JOBS = JOB.path("default")

_TOPOLOGY = "alpha.jobset.sigs.k8s.io/exclusive-topology"


def job_template(*, hosts: int = 2, chips: int = 4, selector: dict[str, str] | None = None, **spec: Any) -> Obj:
    container = {
        "name": "host",
        "image": "python:3.12",
        "command": ["/bin/bash", "-c", "sleep 1000"],
        "resources": {"requests": {"google.com/tpu": str(chips)}, "limits": {"google.com/tpu": str(chips)}},
    }
    pod = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 5,
        "nodeSelector": selector or {"cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice"},
        "tolerations": [{"key": "google.com/tpu", "operator": "Exists", "effect": "NoSchedule"}],
        "containers": [container],
    }
    disrupted = {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    failed = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}}
    return {
        "metadata": {"labels": {"bastion-run": "r"}},
        "spec": {
            "parallelism": hosts,
            "completions": hosts,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",
            "podFailurePolicy": {"rules": [disrupted, failed]},
            "template": {"metadata": {"labels": {"bastion-run": "r"}}, "spec": pod},
            **spec,
        },
    }


def job_set(name: str = "b-one-1", *, slices: int = 1, hosts: int = 2, **spec: Any) -> Obj:
    replicated = {"name": "slice", "replicas": slices, "template": job_template(hosts=hosts)}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": name,
            "namespace": "default",
            "labels": {"bastion-managed": "test", "bastion-run": "r"},
            "annotations": {_TOPOLOGY: "cloud.google.com/gke-nodepool"},
        },
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "replicatedJobs": [replicated],
            **spec,
        },
    }
