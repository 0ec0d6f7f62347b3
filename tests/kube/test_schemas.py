"""The strict checks of manifests notice mistakes."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from tests.support.kubernetes_schemas import crd_documents, job_set_problems, object_problems

pytest.importorskip("kubernetes", reason="the official client's models: pip install 'bastion[kubernetes]'")

_POD_SPEC = {
    "restartPolicy": "Never",
    "terminationGracePeriodSeconds": 60,
    "nodeSelector": {"cloud.google.com/gke-tpu-topology": "2x4"},
    "containers": [
        {
            "name": "host",
            "image": "python:3.12",
            "command": ["/bin/bash", "-c", "true"],
            "env": [{"name": "UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}],
            "resources": {"requests": {"google.com/tpu": "4"}, "limits": {"google.com/tpu": "4"}},
            "volumeMounts": [{"name": "bastion", "mountPath": "/bastion"}],
        }
    ],
    "volumes": [{"name": "bastion", "emptyDir": {}}],
}
_POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}}, "spec": _POD_SPEC}
_JOB_SPEC = {"parallelism": 2, "completions": 2, "completionMode": "Indexed", "template": {"spec": _POD_SPEC}}
_JOB_SET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "b-aaaaaaaaaa-1", "labels": {"bastion-managed": "test"}},
    "spec": {
        "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
        "replicatedJobs": [{"name": "slice", "replicas": 2, "template": {"spec": _JOB_SPEC}}],
    },
}
_HOST = ("spec", "replicatedJobs", 0, "template", "spec", "template", "spec", "containers", 0)


def _job_set_problems(document: dict[str, Any]) -> list[str]:
    try:
        crd_documents()
    except FileNotFoundError as absent:
        pytest.skip(str(absent))
    return job_set_problems(document)


def _with(document: dict[str, Any], path: tuple[str | int, ...], value: object) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    place: Any = changed
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return changed


def test_correct_manifests_have_no_problems() -> None:
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}, "spec": _JOB_SPEC}
    event = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e"}, "involvedObject": {"kind": "Pod"}}
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "l"},
        "spec": {"leaseDurationSeconds": 15, "renewTime": "2026-01-02T03:04:05.678901Z"},
    }
    assert [object_problems(found) for found in (_POD, job, event, lease)] == [[], [], [], []]
    assert _job_set_problems(_JOB_SET) == []


_MISTAKES: list[tuple[tuple[str | int, ...], object, str]] = [
    (("metadata", "label"), {}, "label: unknown field"),
    (("metadata", "labels"), ["a"], "labels: ['a'] is not an object"),
    (("spec", "containers", 0, "comand"), [], "comand: unknown field"),
    (("spec", "containers", 0, "command"), "true", "command: 'true' is not a list"),
    (("spec", "containers", 0, "name"), 1, "name: 1 is not of type str"),
    (("spec", "containers", 0, "resources", "limits", "cpu"), 4, "cpu: 4 is not of type str"),
    (("spec", "terminationGracePeriodSeconds"), "60", "'60' is not of type int"),
    (("spec", "hostNetwork"), 1, "hostNetwork: 1 is not of type bool"),
    (("spec", "terminationGracePeriodSeconds"), True, "True is not of type int"),
    (("spec", "volumes", 0), {"emptyDir": {}}, "volumes[0].name: missing"),
    (("metadata", "creationTimestamp"), "yesterday", "'yesterday' is not a time"),
    (("kind",), "Pot", "knows no Pot of v1"),
]


@pytest.mark.parametrize(("path", "value", "problem"), _MISTAKES, ids=[case[2] for case in _MISTAKES])
def test_a_mistake_in_a_core_object_is_a_problem(path: tuple[str | int, ...], value: object, problem: str) -> None:
    (found,) = object_problems(_with(_POD, path, value))
    assert problem in found


_JOB_SET_MISTAKES: list[tuple[tuple[str | int, ...], object, str]] = [
    (("kind",), "JobSets", "not a jobset.x-k8s.io/v1alpha2 JobSet"),
    (("metadata", "label"), {}, "label: unknown field"),
    (("spec", "replicatedJob"), [], "replicatedJob: unknown field"),
    (("spec", "replicatedJobs", 0, "replicas"), "2", "'2' is not of type integer"),
    (("spec", "suspend"), "no", "of type boolean"),
    (("spec", "failurePolicy"), {"restartStrategy": "Never"}, "'Never' is none of Recreate"),
    (("spec", "replicatedJobs", 0), {"name": "slice"}, "template: missing"),
    ((*_HOST, "imagePullPolice"), "Always", "imagePullPolice: unknown field"),
    ((*_HOST, "command"), "true", "command: 'true' is not of type array"),
    ((*_HOST, "resources", "limits"), {"google.com/tpu": True}, "neither an integer nor a string"),
]


@pytest.mark.parametrize(("path", "value", "problem"), _JOB_SET_MISTAKES, ids=[case[2] for case in _JOB_SET_MISTAKES])
def test_a_mistake_in_a_job_set_is_a_problem(path: tuple[str | int, ...], value: object, problem: str) -> None:
    (found,) = _job_set_problems(_with(_JOB_SET, path, value))
    assert problem in found


@pytest.mark.parametrize("strange", [None, [], "JobSet", {}])
def test_what_is_not_a_job_set_is_a_problem_and_no_crash(strange: Any) -> None:
    assert _job_set_problems(strange)
