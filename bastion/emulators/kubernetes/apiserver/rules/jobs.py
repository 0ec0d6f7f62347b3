"""Jobs: kubernetes pkg/apis/batch/{v1/defaults.go,validation/validation.go}, pkg/registry/batch/job/strategy.go."""

from __future__ import annotations

import copy
from typing import Any

from bastion.emulators.kubernetes.apiserver import names
from bastion.emulators.kubernetes.apiserver.rules import pod_defaults
from bastion.emulators.kubernetes.apiserver.rules.base import Object, WithStatus
from bastion.emulators.kubernetes.apiserver.rules.failure_policy import failure_policy_problems
from bastion.emulators.kubernetes.apiserver.rules.pod_validation import spec_problems
from bastion.emulators.kubernetes.apiserver.statuses import (
    Problem,
    forbidden_field,
    invalid_value,
    not_supported,
    required,
)

UID_LABEL = "batch.kubernetes.io/controller-uid"
NAME_LABEL = "batch.kubernetes.io/job-name"
_OLD_LABELS = {"controller-uid": UID_LABEL, "job-name": NAME_LABEL}

_INT32_MAX = 2**31 - 1
_INDEXED_MAX = 100_000
_MODES = ("Indexed", "NonIndexed")
_REPLACEMENTS = ("Failed", "TerminatingOrFailed")
_NON_NEGATIVE = (
    "parallelism",
    "completions",
    "activeDeadlineSeconds",
    "backoffLimit",
    "ttlSecondsAfterFinished",
    "backoffLimitPerIndex",
    "maxFailedIndexes",
)
_FIXED = ("selector", "completionMode", "podFailurePolicy", "backoffLimitPerIndex", "managedBy", "successPolicy")
# What a suspended Job that never started lets change in its template.
_TEMPLATE_CHANGEABLE = ("nodeSelector", "tolerations", "schedulingGates", "affinity")


class JobRules(WithStatus):
    def default(self, document: Object) -> None:
        spec = document.setdefault("spec", {})
        fill(spec)
        metadata = document["metadata"]
        if not metadata.get("labels") and (labels := spec["template"].get("metadata", {}).get("labels")):
            metadata["labels"] = dict(labels)

    def prepare_create(self, document: Object) -> None:
        """generateSelector: the Job's uid selects its pods."""
        super().prepare_create(document)
        spec, metadata = document["spec"], document["metadata"]
        if spec.get("manualSelector") or spec.get("selector"):
            return
        labels = spec["template"].setdefault("metadata", {}).setdefault("labels", {})
        values = {UID_LABEL: metadata["uid"], NAME_LABEL: metadata.get("name", "")}
        labels.update({**values, **{old: values[new] for old, new in _OLD_LABELS.items()}})
        spec["selector"] = {"matchLabels": {UID_LABEL: metadata["uid"]}}

    def create_problems(self, document: Object) -> list[Problem]:
        spec = document["spec"]
        found = []
        if (
            not spec.get("manualSelector")
            and spec["selector"].get("matchLabels", {}).get(UID_LABEL) != (document["metadata"]["uid"])
        ):
            found.append(invalid_value("spec.selector", spec["selector"], "`selector` not auto-generated"))
        if spec.get("completionMode") == "Indexed" and spec.get("completions"):
            name = document["metadata"].get("name", "")
            # The last pod's hostname has to be a label.
            if names.label(hostname := f"{name}-{spec['completions'] - 1}"):
                text = f"will not able to create pod with invalid DNS label: {hostname}"
                found.append(invalid_value("metadata.name", name, text))
        return found + spec_problems_of_job(spec, "spec")

    def update_problems(self, document: Object, old: Object) -> list[Problem]:
        new, before = document["spec"], old["spec"]
        found = spec_problems_of_job(new, "spec")
        for field in _FIXED:
            if new.get(field) != before.get(field):
                found.append(invalid_value(f"spec.{field}", new.get(field), "field is immutable"))
        if new.get("completions") != before.get("completions") and not (
            new.get("completionMode") == "Indexed" and new.get("completions") == new.get("parallelism")
        ):
            found.append(invalid_value("spec.completions", new.get("completions"), "field is immutable"))
        if _comparable(new, before, old) != before["template"]:
            found.append(invalid_value("spec.template", new["template"], "field is immutable"))
        return found


def _comparable(new: Object, before: Object, old: Object) -> Any:
    """The new template, with what may change as it was."""
    template = copy.deepcopy(new["template"])
    status = old.get("status") or {}
    if before.get("suspend") and new.get("suspend") is not None and not status.get("startTime"):
        was = before["template"]
        for field in _TEMPLATE_CHANGEABLE:
            template["spec"].pop(field, None)
            if field in was["spec"]:
                template["spec"][field] = was["spec"][field]
        template["metadata"] = was.get("metadata", {})
    return template


def fill(spec: Object) -> None:
    """SetDefaults_Job, in place."""
    if spec.get("completions") is None and spec.get("parallelism") is None:
        spec["completions"] = spec["parallelism"] = 1
    if spec.get("parallelism") is None:
        spec["parallelism"] = 1
    if spec.get("backoffLimit") is None:
        spec["backoffLimit"] = 6 if spec.get("backoffLimitPerIndex") is None else _INT32_MAX
    spec.setdefault("completionMode", "NonIndexed")
    spec.setdefault("suspend", False)
    spec.setdefault("manualSelector", False)
    if spec.get("podReplacementPolicy") is None:
        spec["podReplacementPolicy"] = "Failed" if spec.get("podFailurePolicy") else "TerminatingOrFailed"
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or []:
        for pattern in rule.get("onPodConditions") or []:
            pattern.setdefault("status", "True")
    template = spec.setdefault("template", {})
    template.setdefault("metadata", {})
    pod_defaults.fill(template.setdefault("spec", {}))


def spec_problems_of_job(spec: Object, path: str) -> list[Problem]:
    """validateJobSpec and ValidateJobSpec's template."""
    found = [
        invalid_value(f"{path}.{field}", value, "must be greater than or equal to 0")
        for field in _NON_NEGATIVE
        if (value := spec.get(field)) is not None and value < 0
    ]
    found += _mode_problems(spec, path)
    policy = spec.get("podFailurePolicy")
    if spec.get("podReplacementPolicy") not in _REPLACEMENTS:
        found.append(not_supported(f"{path}.podReplacementPolicy", spec.get("podReplacementPolicy"), _REPLACEMENTS))
    elif policy and spec["podReplacementPolicy"] != "Failed":
        found.append(not_supported(f"{path}.podReplacementPolicy", spec["podReplacementPolicy"], ["Failed"]))
    pod, here = spec["template"]["spec"], f"{path}.template.spec"
    if policy:
        found += failure_policy_problems(policy, spec, f"{path}.podFailurePolicy")
    found += names.labels_problems(spec["template"]["metadata"].get("labels") or {}, f"{path}.template.labels")
    found += spec_problems(pod, here)
    if pod.get("restartPolicy") == "Always":
        found.append(required(f"{here}.restartPolicy", 'valid values: "OnFailure", "Never"'))
    elif policy and pod.get("restartPolicy") != "Never":
        text = 'only "Never" is supported when podFailurePolicy is specified'
        found.append(invalid_value(f"{here}.restartPolicy", pod.get("restartPolicy"), text))
    return found


def _mode_problems(spec: Object, path: str) -> list[Problem]:
    mode, found = spec.get("completionMode"), []
    if mode not in _MODES:
        found.append(not_supported(f"{path}.completionMode", mode, _MODES))
    if mode == "Indexed":
        if spec.get("completions") is None:
            found.append(required(f"{path}.completions", "when completion mode is Indexed"))
        if (spec.get("parallelism") or 0) > _INDEXED_MAX:
            text = f"must be less than or equal to {_INDEXED_MAX} when completion mode is Indexed"
            found.append(invalid_value(f"{path}.parallelism", spec["parallelism"], text))
    elif spec.get("backoffLimitPerIndex") is not None:
        text = "requires indexed completion mode"
        found.append(invalid_value(f"{path}.backoffLimitPerIndex", spec["backoffLimitPerIndex"], text))
    if spec.get("maxFailedIndexes") is not None and spec.get("backoffLimitPerIndex") is None:
        text = "when maxFailedIndexes is specified"
        found.append(required(f"{path}.backoffLimitPerIndex", text))
    if spec.get("successPolicy") and mode != "Indexed":
        found.append(forbidden_field(f"{path}.successPolicy", "requires indexed completion mode"))
    return found
