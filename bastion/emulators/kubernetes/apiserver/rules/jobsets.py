"""JobSets: jobset v0.12.0 pkg/webhooks/jobset_webhook.go and the CRD in config/components/crd.

All feature gates of JobSet that are off by default are off. Defaults of the CRD come before those of the webhook.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from bastion.emulators.kubernetes.apiserver import names
from bastion.emulators.kubernetes.apiserver.rules.base import Custom, Object
from bastion.emulators.kubernetes.apiserver.statuses import Problem, invalid_value

_INT32_MAX = 2**31 - 1
_RULE_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")
_FAILURE_REASONS = (
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
)
_TOO_LONG = "must be no more than 63"
_TOO_LONG_NAMES = {
    "group": ".spec.replicatedJob[].groupName is too long, must be less than 63 characters",
    "job": "JobSet name is too long, job names generated for this JobSet will exceed 63 characters",
    "pod": "JobSet name is too long, pod names generated for this JobSet will exceed 63 characters",
    "subdomain": ".spec.network.subdomain is too long, must be less than 63 characters",
}
# Immutable by the CRD's CEL rules.
_FIXED = ("failurePolicy", "network", "startupPolicy", "successPolicy", "volumeClaimPolicies")
# What a suspended set lets change in its pods.
_POD_CHANGEABLE = ("nodeSelector", "tolerations", "schedulingGates")


class JobSetRules(Custom):
    webhook = "vjobset.kb.io"

    def default(self, document: Object) -> None:
        spec = document.setdefault("spec", {})
        for job in spec.get("replicatedJobs") or []:
            job.setdefault("groupName", "default")
            job.setdefault("replicas", 1)
            template = job.get("template", {}).get("spec", {})
            template.setdefault("completionMode", "Indexed")
            pod = template.get("template", {}).get("spec")
            if isinstance(pod, dict) and not pod.get("restartPolicy"):
                pod["restartPolicy"] = "OnFailure"
        spec.setdefault("successPolicy", {"operator": "All"})
        spec.setdefault("startupPolicy", {"startupPolicyOrder": "AnyOrder"})
        network = spec.setdefault("network", {})
        network.setdefault("enableDNSHostnames", True)
        network.setdefault("publishNotReadyAddresses", True)
        if policy := spec.get("failurePolicy"):
            policy.setdefault("restartStrategy", "Recreate")
            for index, rule in enumerate(policy.get("rules") or []):
                rule["name"] = rule.get("name") or f"failurePolicyRule{index}"

    def create_problems(self, document: Object) -> list[Problem]:
        spec = document["spec"]
        return _schema_problems(spec, spec.get("replicatedJobs") or [])

    def denials(self, document: Object) -> list[Problem]:
        spec = document["spec"]
        jobs = spec.get("replicatedJobs") or []
        found = _network_problems(spec["network"])
        if (spec.get("failurePolicy") or {}).get("restartStrategy") == "InPlaceRestart":
            found.append(
                _plain("InPlaceRestart restart strategy cannot be set when InPlaceRestart feature gate is disabled")
            )
        if jobs and jobs[0].get("dependsOn") is not None:
            found.append(_plain("DependsOn can't be set for the first ReplicatedJob"))
        if (manager := spec.get("managedBy")) is not None:
            found += _manager_problems(manager)
        known: set[str] = set()
        for index, job in enumerate(jobs):
            known.add(job["name"])
            found += _job_problems(document["metadata"].get("name") or "", job, index, known)
        for name in spec["successPolicy"].get("targetReplicatedJobs") or []:
            if name not in known:
                found.append(_plain(f"invalid replicatedJob name '{name}' does not appear in .spec.ReplicatedJobs"))
        return found + _policy_problems(spec.get("failurePolicy") or {}, known) + _coordinator_problems(spec, jobs)

    def update_problems(self, document: Object, old: Object) -> list[Problem]:
        new, before = document["spec"], old["spec"]
        found = _schema_problems(new, new.get("replicatedJobs") or [])
        for field in _FIXED:
            # A transition rule looks at fields that stay, not at those that come or go.
            if field in new and field in before and new[field] != before[field]:
                found.append(Problem("Rule", f"spec.{field}", "Value is immutable"))
        return found

    def update_denials(self, document: Object, old: Object) -> list[Problem]:
        new, before, found = document["spec"], old["spec"], []
        if _comparable(new, before) != before.get("replicatedJobs"):
            found.append(invalid_value("spec.replicatedJobs", new.get("replicatedJobs"), "field is immutable"))
        if new.get("managedBy") != before.get("managedBy"):
            found.append(invalid_value("spec.managedBy", new.get("managedBy"), "field is immutable"))
        return found


def _plain(text: str) -> Problem:
    """An error without a field, which the webhook wraps as an internal one."""
    return Problem("Internal", "", text)


def _schema_problems(spec: Object, jobs: list[Any]) -> list[Problem]:
    """List maps and CEL rules of the CRD."""
    found = []
    listed = [job.get("name") for job in jobs]
    for index, name in enumerate(listed):
        if name in listed[:index]:
            found.append(Problem("Duplicate", f"spec.replicatedJobs[{index}]", "", {"name": name}))
    ordered = (spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
    if ordered and any("dependsOn" in job for job in jobs):
        found.append(Problem("Rule", "spec", "StartupPolicy and DependsOn APIs are mutually exclusive"))
    if (seconds := spec.get("ttlSecondsAfterFinished")) is not None and seconds < 0:
        text = "spec.ttlSecondsAfterFinished in body should be greater than or equal to 0"
        found.append(invalid_value("spec.ttlSecondsAfterFinished", seconds, text))
    return found


def _network_problems(network: Object) -> list[Problem]:
    field, name = "spec.network.subdomain", network.get("subdomain") or ""
    if not name:
        return []
    texts = names.subdomain(name) + _labels_1035(name, "subdomain")
    return [invalid_value(field, name, why) for why in texts]


def _labels_1035(name: str, what: str) -> list[str]:
    return [_TOO_LONG_NAMES[what] if _TOO_LONG in why else why for why in names.label_1035(name)]


def _manager_problems(manager: str) -> list[Problem]:
    domain, slash, path = manager.partition("/")
    field, found = "spec.managedBy", []
    if not slash or not domain or not path:
        found.append(invalid_value(field, manager, 'must be a domain-prefixed path (such as "acme.io/foo")'))
    else:
        found += [invalid_value(field, domain, why) for why in names.subdomain(domain)]
    if len(manager) > 63:
        found.append(Problem("TooLong", field, "may not be more than 63 bytes"))
    return found


def _job_problems(set_name: str, job: Object, index: int, known: set[str]) -> list[Problem]:
    path, spec = f"spec.replicatedJobs[{index}]", job["template"].get("spec", {})
    parallelism, replicas = spec.get("parallelism", 1), job["replicas"]
    found = []
    if parallelism * replicas > _INT32_MAX:
        text = f"the product of replicas and parallelism must not exceed {_INT32_MAX} for replicatedJob '{job['name']}'"
        found.append(_plain(text))
    found += [
        invalid_value(f"{path}.groupName", job["groupName"], why) for why in _labels_1035(job["groupName"], "group")
    ]
    longest = f"{set_name}-{job['name']}-{replicas - 1}"
    found += [invalid_value(f"{path}.name", longest, why) for why in _labels_1035(longest, "job")]
    if spec.get("completionMode") == "Indexed" and spec.get("completions") is not None:
        pod = f"{longest}-{spec['completions'] - 1}-abcde"
        found += [invalid_value(f"{path}.name", longest, why) for why in _labels_1035(pod, "pod")]
    for dependency in job.get("dependsOn") or []:
        if dependency["name"] not in known:
            text = f"replicatedJob: {job['name']} cannot depend on replicatedJob: {dependency['name']}"
            found.append(_plain(text))
    return found


def _policy_problems(policy: Object, known: set[str]) -> list[Problem]:
    """validateFailurePolicy, with the gate RestartJob off."""
    rules = policy.get("rules") or []
    if any(rule.get("action") in ("RestartJob", "RestartJobAndIgnoreMaxRestarts") for rule in rules):
        text = (
            "RestartJob and RestartJobAndIgnoreMaxRestarts failure policy actions are not allowed when RestartJob"
            " feature gate is disabled"
        )
        return [_plain(text)]
    found, seen = [], [rule["name"] for rule in rules]
    for rule in rules:
        name = rule["name"]
        if len(name) > 128:
            text = (
                f"invalid failure policy rule name of length {len(name)}, the rule name must be at least 1 characters"
                " long and at most 128 characters long"
            )
            found.append(_plain(text))
        if _RULE_NAME.fullmatch(name) is None:
            text = (
                f"invalid failure policy rule name '{name}', a failure policy rule name must start with an alphabetic"
                " character, optionally followed by a string of alphanumeric characters or '_,:', and must end with an"
                " alphanumeric character or '_'"
            )
            found.append(_plain(text))
        for target in rule.get("targetReplicatedJobs") or []:
            if target not in known:
                text = (
                    f"invalid replicatedJob name '{target}' in failure policy does not appear in .spec.ReplicatedJobs"
                )
                found.append(_plain(text))
        for reason in rule.get("onJobFailureReasons") or []:
            if reason not in _FAILURE_REASONS:
                text = f"invalid job failure reason '{reason}' in failure policy is not a recognized job failure reason"
                found.append(_plain(text))
    for name in dict.fromkeys(seen):
        if seen.count(name) > 1:
            positions = " ".join(str(index) for index, other in enumerate(seen) if other == name)
            text = f"rule names are not unique, rules with indices [{positions}] all have the same name '{name}'"
            found.append(_plain(text))
    return found


def _coordinator_problems(spec: Object, jobs: list[Any]) -> list[Problem]:
    """validateCoordinator."""
    coordinator = spec.get("coordinator")
    if not coordinator:
        return []
    name = coordinator["replicatedJob"]
    job = next((job for job in jobs if job["name"] == name), None)
    if job is None:
        return [_plain(f"coordinator replicatedJob {name} does not exist")]
    index, pod_index = coordinator.get("jobIndex", 0), coordinator.get("podIndex", 0)
    if not 0 <= index < job["replicas"]:
        return [_plain(f"coordinator job index {index} is invalid for replicatedJob {name}")]
    inner = job["template"].get("spec", {})
    if inner.get("completionMode") != "Indexed" or inner.get("completions") is None:
        text = "job for coordinator pod must be indexed completion mode, and completions number must be set"
        return [_plain(text)]
    if not 0 <= pod_index < inner["completions"]:
        text = f"coordinator pod index {pod_index} is invalid for replicatedJob {name} job index {index}"
        return [_plain(text)]
    return []


def _comparable(new: Object, before: Object) -> Any:
    """The new replicated jobs, with what may change in a suspended set as it was."""
    jobs = copy.deepcopy(new.get("replicatedJobs"))
    if not (before.get("suspend") or new.get("suspend")):
        return jobs
    earlier = {job["name"]: job for job in before.get("replicatedJobs") or []}
    for job in jobs or []:
        if (old := earlier.get(job["name"])) is None:
            continue
        pod, was = (each["template"].get("spec", {}).get("template", {}) for each in (job, old))
        _restore(pod.get("spec", {}), was.get("spec", {}), _POD_CHANGEABLE)
        metadata, was_metadata = pod.setdefault("metadata", {}), was.get("metadata", {})
        _restore(metadata, was_metadata, ("labels", "annotations"))
        if not metadata and "metadata" not in was:
            del pod["metadata"]
    return jobs


def _restore(new: Object, old: Object, fields: tuple[str, ...]) -> None:
    for field in fields:
        if field in old:
            new[field] = old[field]
        else:
            new.pop(field, None)
