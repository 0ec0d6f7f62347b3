"""What sets, Jobs and pods are refused for: each rule with one object that breaks it."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from bastion.emulators.kubernetes.apiserver.resources import JOB_SETS, JOBS, PODS, Resource
from bastion.emulators.kubernetes.apiserver.rules import rules_of
from tests.support.kubernetes_requests import job_set, pod

Object = dict[str, Any]


def _problems(resource: Resource, document: Object) -> list[str]:
    """Fields and texts of what is wrong with a new object."""
    document = copy.deepcopy(document)
    rules = rules_of(resource)
    document["metadata"].setdefault("uid", "u")
    rules.default(document)
    rules.prepare_create(document)
    return [problem.message() for problem in rules.create_problems(document) + rules.denials(document)]


def _set(document: Object, path: str, value: object) -> Object:
    document = copy.deepcopy(document)
    place: Any = document
    *steps, last = path.split(".")
    for step in steps:
        place = place[int(step)] if step.isdigit() else place.setdefault(step, {})
    if value is None:
        del place[last]
    else:
        place[int(last) if last.isdigit() else last] = value
    return document


_JOB = "spec.replicatedJobs.0"
_RULE: Object = {"action": "FailJobSet"}


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("metadata.name", "b" * 60, "job names generated for this JobSet will exceed 63 characters"),
        ("metadata.name", "b" * 50, "pod names generated for this JobSet will exceed 63 characters"),
        (f"{_JOB}.groupName", "Group", "spec.replicatedJobs[0].groupName: Invalid value"),
        (f"{_JOB}.replicas", 2**31, "must not exceed 2147483647"),
        (f"{_JOB}.dependsOn", [{"name": "other", "status": "Ready"}], "DependsOn can't be set for the first"),
        ("spec.network", {"subdomain": "a.b"}, "spec.network.subdomain: Invalid value"),
        ("spec.managedBy", "me", "must be a domain-prefixed path"),
        ("spec.successPolicy", {"operator": "All", "targetReplicatedJobs": ["x"]}, "invalid replicatedJob name 'x'"),
        ("spec.failurePolicy", {"restartStrategy": "InPlaceRestart"}, "InPlaceRestart feature gate is disabled"),
        ("spec.failurePolicy", {"rules": [{"action": "RestartJob"}]}, "RestartJob feature gate is disabled"),
        ("spec.failurePolicy", {"rules": [{**_RULE, "name": "1"}]}, "must start with an alphabetic character"),
        ("spec.failurePolicy", {"rules": [{**_RULE, "name": "a"}] * 2}, "indices [0 1] all have the same name 'a'"),
        ("spec.failurePolicy", {"rules": [{**_RULE, "onJobFailureReasons": ["Bad"]}]}, "failure reason 'Bad'"),
        ("spec.failurePolicy", {"rules": [{**_RULE, "targetReplicatedJobs": ["x"]}]}, "name 'x' in failure policy"),
        ("spec.coordinator", {"replicatedJob": "x"}, "coordinator replicatedJob x does not exist"),
        ("spec.coordinator", {"replicatedJob": "slice", "jobIndex": 1}, "coordinator job index 1 is invalid"),
        ("spec.coordinator", {"replicatedJob": "slice", "podIndex": 1}, "coordinator pod index 1 is invalid"),
        ("spec.startupPolicy", {"startupPolicyOrder": "InOrder"}, ""),
    ],
)
def test_sets_are_refused_as_the_webhook_refuses_them(path: str, value: object, text: str) -> None:
    assert _problems(JOB_SETS, job_set("b-one-1")) == []
    found = _problems(JOB_SETS, _set(job_set("b-one-1"), path, value))
    assert any(text in each for each in found) if text else found == []


def test_a_set_that_is_not_suspended_does_not_change() -> None:
    rules = rules_of(JOB_SETS)
    old = job_set("b-one-1")
    rules.default(old)
    pods = f"{_JOB}.template.spec.template.spec"
    placed = _set(old, f"{pods}.nodeSelector", {"a": "b"})
    assert [each.field for each in rules.update_denials(placed, old)] == ["spec.replicatedJobs"]
    suspended = _set(old, "spec.suspend", True)
    assert rules.update_denials(_set(placed, "spec.suspend", True), suspended) == []
    assert rules.update_denials(_set(old, "spec.suspend", True), old) == []
    assert rules.update_denials(_set(suspended, f"{pods}.hostname", "h"), suspended)
    assert rules.update_problems(_set(old, "spec.network", {"subdomain": "x"}), old)


_POD_RULES = {"rules": [{"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}}]}


def _job(**spec: object) -> Object:
    indexed = {"completionMode": "Indexed", "completions": 2, "parallelism": 2, "backoffLimit": 0}
    return {"metadata": {"name": "j"}, "spec": {**indexed, "template": {"spec": pod("x")["spec"]}, **spec}}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"parallelism": -1}, "spec.parallelism"),
        ({"completionMode": "Other"}, "spec.completionMode"),
        ({"maxFailedIndexes": 1}, "spec.backoffLimitPerIndex"),
        ({"podReplacementPolicy": "Other"}, "spec.podReplacementPolicy"),
        ({"podFailurePolicy": _POD_RULES, "podReplacementPolicy": "TerminatingOrFailed"}, "spec.podReplacementPolicy"),
        ({"selector": {"matchLabels": {"a": "b"}}}, "spec.selector"),
    ],
)
def test_jobs_are_refused(spec: Object, field: str) -> None:
    assert _problems(JOBS, _job(podFailurePolicy=_POD_RULES)) == []
    found = _problems(JOBS, _job(**spec))
    assert any(each.startswith(f"{field}:") for each in found), found


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"action": "FailJob"}, "specifying one of OnExitCodes and OnPodConditions is required"),
        ({"action": "Stop", "onPodConditions": [{"type": "A"}]}, "action: Unsupported value"),
        ({"action": "FailIndex", "onPodConditions": [{"type": "A"}]}, "requires the backoffLimitPerIndex"),
        ({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [2, 1]}}, "must be ordered"),
        ({"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1, 1]}}, "Duplicate value"),
        ({"action": "FailJob", "onExitCodes": {"operator": "In", "values": []}}, "at least one value is required"),
        (
            {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [1], "containerName": "other"}},
            "must be one of the container",
        ),
    ],
)
def test_pod_failure_policies_are_refused(rule: Object, text: str) -> None:
    found = _problems(JOBS, _job(podFailurePolicy={"rules": [rule]}))
    assert any(text in each for each in found), found


_CONTAINER = "spec.containers.0"


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("spec.containers", [], "spec.containers"),
        (f"{_CONTAINER}.name", "A", f"{_CONTAINER}.name"),
        (f"{_CONTAINER}.image", None, f"{_CONTAINER}.image"),
        (f"{_CONTAINER}.env", [{"name": "A=B"}], f"{_CONTAINER}.env.0.name"),
        (
            f"{_CONTAINER}.env",
            [{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.image"}}}],
            f"{_CONTAINER}.env.0.valueFrom.fieldRef.fieldPath",
        ),
        (f"{_CONTAINER}.volumeMounts", [{"name": "v", "mountPath": "/v"}], f"{_CONTAINER}.volumeMounts.0.name"),
        (f"{_CONTAINER}.resources", {"requests": {"google.com/tpu": 4}}, f"{_CONTAINER}.resources.limits"),
        (f"{_CONTAINER}.resources", {"limits": {"chips": 4}}, f"{_CONTAINER}.resources.limits"),
        ("spec.volumes", [{"name": "v"}, {"name": "v"}], "spec.volumes.1.name"),
        ("spec.volumes", [{"name": "v", "emptyDir": {}, "hostPath": {}}], "spec.volumes.0.hostPath"),
        ("spec.restartPolicy", "Sometimes", "spec.restartPolicy"),
        ("spec.terminationGracePeriodSeconds", -1, "spec.terminationGracePeriodSeconds"),
        ("spec.hostname", "a.b", "spec.hostname"),
        ("spec.tolerations", [{"operator": "Equal"}], "spec.tolerations.0.operator"),
        ("spec.tolerations", [{"key": "a", "operator": "Exists", "value": "b"}], "spec.tolerations.0.operator"),
        ("spec.nodeSelector", {"a b": "c"}, "spec.nodeSelector"),
    ],
)
def test_pods_are_refused(path: str, value: object, field: str) -> None:
    assert _problems(PODS, pod("p")) == []
    found = _problems(PODS, _set(pod("p"), path, value))
    shown = "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in field.split("."))[1:]
    assert any(each.startswith(f"{shown}:") for each in found), found
