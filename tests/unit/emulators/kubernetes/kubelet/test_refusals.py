"""Which pods the emulator does not run, and what it names."""

from __future__ import annotations

import os
from typing import Any

import pytest

from bastion.emulators.kubernetes.kubelet.refusals import refusal

Obj = dict[str, Any]

# What an API server adds to a pod that asks for nothing.
DEFAULTS: Obj = {
    "restartPolicy": "Never",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "securityContext": {},
    "schedulerName": "default-scheduler",
    "enableServiceLinks": True,
    "preemptionPolicy": "PreemptLowerPriority",
    "priority": 0,
    "serviceAccount": "default",
    "serviceAccountName": "default",
    "hostNetwork": False,
    "tolerations": [{"operator": "Exists"}],
    "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
}
CONTAINER: Obj = {
    "name": "host",
    "image": "python",
    "command": ["true"],
    "imagePullPolicy": "Always",
    "terminationMessagePath": "/dev/termination-log",
    "terminationMessagePolicy": "File",
    "resources": {},
    "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
    "env": [{"name": "A", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}}],
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}


def refused(container: Obj | None = None, **spec: Any) -> str:
    return refusal({"spec": {**DEFAULTS, "containers": [{**CONTAINER, **(container or {})}], **spec}})


def test_a_plain_pod_is_run() -> None:
    assert refused() == ""
    assert refused({"securityContext": {"runAsUser": os.getuid()}}) == ""
    secret = {"sources": [{"secret": {"name": "s", "optional": True}}]}
    assert refused(volumes=[{"name": "v", "projected": secret}], containers=[CONTAINER]) == ""


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        ({"restartPolicy": "OnFailure"}, "spec.restartPolicy OnFailure"),
        ({"hostNetwork": True}, "spec.hostNetwork"),
        ({"activeDeadlineSeconds": 5}, "spec.activeDeadlineSeconds"),
        ({"shareProcessNamespace": True}, "spec.shareProcessNamespace"),
        ({"volumes": [{"name": "v", "hostPath": {"path": "/"}}]}, "a volume of kind hostPath (spec.volumes v)"),
        ({"volumes": [{"name": "v", "secret": {}}]}, "a volume of kind secret (spec.volumes v)"),
        (
            {"volumes": [{"name": "v", "projected": {"sources": [{"configMap": {"name": "c"}}]}}]},
            "a volume projected from configMap (spec.volumes v)",
        ),
        (
            {"volumes": [{"name": "v", "projected": {"sources": [{"secret": {"name": "s"}}]}}]},
            "a volume projected from a Secret that is not optional (spec.volumes v)",
        ),
        ({"initContainers": [{**CONTAINER, "restartPolicy": "Always"}]}, "spec.initContainers[0].restartPolicy"),
    ],
)
def test_fields_of_a_pod_that_are_not_emulated(spec: Obj, named: str) -> None:
    assert refused(**spec) == f"{named} is not emulated; remove it, or use a real cluster"


@pytest.mark.parametrize(
    ("container", "named"),
    [
        ({"livenessProbe": {"exec": {}}}, "spec.containers[0].livenessProbe"),
        ({"lifecycle": {"preStop": {}}}, "spec.containers[0].lifecycle"),
        ({"envFrom": [{"secretRef": {}}]}, "spec.containers[0].envFrom"),
        ({"securityContext": {"privileged": True}}, "spec.containers[0].securityContext.privileged"),
        ({"command": []}, "spec.containers[0] without a command"),
        ({"securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}, "capabilities.add SYS_ADMIN"),
        (
            {"env": [{"name": "A", "valueFrom": {"resourceFieldRef": {}}}]},
            "spec.containers[0].env A from resourceFieldRef",
        ),
        ({"volumeMounts": [{"name": "shm", "mountPath": "/x", "subPathExpr": "$(A)"}]}, "volumeMounts shm.subPathExpr"),
    ],
)
def test_fields_of_a_container_that_are_not_emulated(container: Obj, named: str) -> None:
    assert named in refused(container)
