"""Kueue's kinds: the CRDs in config/components/crd and the webhooks in pkg/webhooks of Kueue v0.19.2."""

from __future__ import annotations

from collections.abc import Callable

from bastion.emulators.kubernetes.apiserver import names
from bastion.emulators.kubernetes.apiserver.rules.base import Custom, Object
from bastion.emulators.kubernetes.apiserver.rules.kueue_quotas import (
    SUBDOMAIN,
    group_denials,
    group_problems,
    pattern_problems,
)
from bastion.emulators.kubernetes.apiserver.statuses import (
    UNCHECKED,
    Problem,
    invalid_value,
    not_emulated,
    not_supported,
)

IN_USE = "kueue.x-k8s.io/resource-in-use"
_LABEL = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
_RESERVED = "is immutable while workload quota reserved"
_FLAVOR_MAX = 8  # labels, taints, tolerations


class KueueRules(Custom):
    """A refusal by one of Kueue's webhooks is a plain error: 403."""

    plain_denials = True


class Finalized(KueueRules):
    """A kind that others use: its webhook adds a finalizer, which Kueue's controllers remove."""

    def admit(self, document: Object) -> None:
        finalizers = document["metadata"].get("finalizers") or []
        if IN_USE not in finalizers:
            document["metadata"]["finalizers"] = [*finalizers, IN_USE]


class FlavorRules(Finalized):
    webhook = "vresourceflavor.kb.io"

    def create_problems(self, document: Object) -> list[Problem]:
        spec = document.get("spec") or {}
        if "topologyName" in spec:
            raise not_emulated("topology-aware scheduling (spec.topologyName)", "leave it out")
        counts = {field: len(spec.get(field) or ()) for field in ("nodeLabels", "nodeTaints", "tolerations")}
        found = [
            Problem("TooMany", f"spec.{field}", f"must have at most {_FLAVOR_MAX} items", count)
            for field, count in counts.items()
            if count > _FLAVOR_MAX
        ]
        if found:
            return [*found, UNCHECKED]
        text = "supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'"
        if any(taint["effect"] not in _EFFECTS for taint in spec.get("nodeTaints") or ()):
            found.append(Problem("Rule", "spec.nodeTaints", text))
        return found + _toleration_problems(spec.get("tolerations") or [])

    def update_problems(self, document: Object, _old: Object) -> list[Problem]:
        return self.create_problems(document)

    def denials(self, document: Object) -> list[Problem]:
        return names.labels_problems((document.get("spec") or {}).get("nodeLabels") or {}, "spec.nodeLabels")

    def update_denials(self, document: Object, _old: Object) -> list[Problem]:
        return self.denials(document)


class ClusterQueueRules(Finalized):
    webhook = "vclusterqueue.kb.io"

    def default(self, document: Object) -> None:
        spec = document.get("spec")
        if spec is None:
            return
        spec.setdefault("queueingStrategy", "BestEffortFIFO")
        spec.setdefault("stopPolicy", "None")
        fungibility = spec.setdefault("flavorFungibility", {})
        fungibility.setdefault("whenCanBorrow", "MayStopSearch")
        fungibility.setdefault("whenCanPreempt", "TryNextFlavor")
        preemption = spec.setdefault("preemption", {})
        preemption.setdefault("borrowWithinCohort", {}).setdefault("policy", "Never")
        for policy in ("reclaimWithinCohort", "withinClusterQueue"):
            preemption.setdefault(policy, "Never")
        _default_weight(spec)

    def create_problems(self, document: Object) -> list[Problem]:
        spec = document.get("spec") or {}
        for field in ("concurrentAdmissionPolicy", "admissionScope"):
            if field in spec:
                raise not_emulated(f"spec.{field} of a ClusterQueue", "leave it out")
        groups, found = spec.get("resourceGroups") or [], pattern_problems(spec, "cohortName", "spec", SUBDOMAIN)
        resources = [each for group in groups for flavor in group["flavors"] for each in flavor["resources"]]
        if "cohortName" not in spec and any("borrowingLimit" in each for each in resources):
            found.append(Problem("Rule", "spec", "borrowingLimit must be nil when cohort is empty"))
        preemption = spec.get("preemption") or {}
        borrowing = (preemption.get("borrowWithinCohort") or {}).get("policy", "Never")
        if preemption.get("reclaimWithinCohort") == "Never" and borrowing != "Never":
            text = "reclaimWithinCohort=Never and borrowWithinCohort.Policy!=Never"
            found.append(Problem("Rule", "spec.preemption", text))
        fungibility = spec.get("flavorFungibility") or {}
        if "preference" in fungibility and _policies(fungibility) != ("TryNextFlavor", "TryNextFlavor"):
            text = "preference can only be set when both whenCanBorrow and whenCanPreempt are TryNextFlavor"
            found.append(Problem("Rule", "spec.flavorFungibility", text))
        return found + group_problems(groups)

    def update_problems(self, document: Object, _old: Object) -> list[Problem]:
        return self.create_problems(document)

    def denials(self, document: Object) -> list[Problem]:
        spec = document.get("spec") or {}
        groups = spec.get("resourceGroups") or []
        found = group_denials(groups, parent="cohort" if not spec.get("cohortName") else "", lend_at_most_own=True)
        flavors = [flavor["name"] for group in groups for flavor in group["flavors"]]
        checks = (spec.get("admissionChecksStrategy") or {}).get("admissionChecks") or []
        for index, check in enumerate(checks):
            path = f"spec.admissionChecksStrategy.admissionChecks[{index}].onFlavors"
            for place, name in enumerate(check.get("onFlavors") or []):
                if name not in flavors:
                    found.append(not_supported(f"{path}[{place}]", name, sorted(flavors)))
        return found

    def update_denials(self, document: Object, _old: Object) -> list[Problem]:
        return self.denials(document)


class CohortRules(KueueRules):
    webhook = "vcohort.kb.io"

    def default(self, document: Object) -> None:
        _default_weight(document.get("spec") or {})

    def create_problems(self, document: Object) -> list[Problem]:
        spec = document.get("spec") or {}
        if spec.get("parentName"):
            raise not_emulated("a cohort in a cohort (spec.parentName)", "leave it out")
        return group_problems(spec.get("resourceGroups") or [])

    def update_problems(self, document: Object, _old: Object) -> list[Problem]:
        return self.create_problems(document)

    def denials(self, document: Object) -> list[Problem]:
        groups = (document.get("spec") or {}).get("resourceGroups") or []
        return group_denials(groups, parent="parent", lend_at_most_own=False)

    def update_denials(self, document: Object, _old: Object) -> list[Problem]:
        return self.denials(document)


class LocalQueueRules(KueueRules):
    def default(self, document: Object) -> None:
        if spec := document.get("spec"):
            spec.setdefault("stopPolicy", "None")
            _default_weight(spec)

    def create_problems(self, document: Object) -> list[Problem]:
        return pattern_problems(document.get("spec") or {}, "clusterQueue", "spec", SUBDOMAIN)

    def update_problems(self, document: Object, old: Object) -> list[Problem]:
        found = self.create_problems(document)
        new, before = document.get("spec") or {}, old.get("spec") or {}
        if "clusterQueue" in new and "clusterQueue" in before and new["clusterQueue"] != before["clusterQueue"]:
            found.append(invalid_value("spec.clusterQueue", new["clusterQueue"], "field is immutable"))
        return found


class AdmissionCheckRules(KueueRules):
    def update_problems(self, document: Object, old: Object) -> list[Problem]:
        new, before = document.get("spec") or {}, old.get("spec") or {}
        if new.get("controllerName") != before.get("controllerName"):
            return [invalid_value("spec.controllerName", new.get("controllerName"), "field is immutable")]
        return []


class WorkloadRules(KueueRules):
    webhook = "vworkload.kb.io"

    def default(self, document: Object) -> None:
        if spec := document.get("spec"):
            spec.setdefault("active", True)
            for pod_set in spec.get("podSets") or []:
                pod_set.setdefault("count", 1)
                pod_set.setdefault("name", "main")

    def create_problems(self, document: Object) -> list[Problem]:
        spec = document.get("spec") or {}
        found = pattern_problems(spec, "queueName", "spec", SUBDOMAIN)
        pod_sets = spec.get("podSets")
        if pod_sets is not None and not pod_sets:
            text = "spec.podSets in body should have at least 1 items"
            found.append(invalid_value("spec.podSets", len(pod_sets), text))
        for index, pod_set in enumerate(pod_sets or []):
            found += pattern_problems(pod_set, "name", f"spec.podSets[{index}]", _LABEL)
            if "minCount" in pod_set:
                raise not_emulated("partial admission (spec.podSets[].minCount)", "leave it out")
        if "priorityClassRef" in spec and "priority" not in spec:
            text = "priority should not be nil when priorityClassRef is set"
            found.append(Problem("Rule", "spec", text))
        return found

    def update_problems(self, document: Object, old: Object) -> list[Problem]:
        found = self.create_problems(document)
        if not _has_quota(old):
            return found
        new, before = document.get("spec") or {}, old.get("spec") or {}
        if ("priorityClassRef" in new) != ("priorityClassRef" in before):
            found.append(Problem("Rule", "", f"priorityClassRef {_RESERVED}"))
        if _has_quota(document) and new.get("queueName") != before.get("queueName"):
            found.append(Problem("Rule", "", f"queueName {_RESERVED}"))
        return found

    def update_denials(self, document: Object, old: Object) -> list[Problem]:
        if _has_quota(old) and (document["spec"].get("podSets") != old["spec"].get("podSets")):
            return [invalid_value("spec.podSets", document["spec"].get("podSets"), "field is immutable")]
        return []


_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def _has_quota(workload: Object) -> bool:
    conditions = (workload.get("status") or {}).get("conditions") or []
    return any(each["type"] == "QuotaReserved" and each["status"] == "True" for each in conditions)


def _default_weight(spec: Object) -> None:
    if "fairSharing" in spec:
        spec["fairSharing"].setdefault("weight", 1)


def _policies(fungibility: Object) -> tuple[str, str]:
    return fungibility["whenCanBorrow"], fungibility["whenCanPreempt"]


def _toleration_problems(tolerations: list[Object]) -> list[Problem]:
    texts: tuple[tuple[str, Callable[[Object], bool]], ...] = (
        (
            "operator must be Exists when 'key' is empty, which means 'match all values and all keys'",
            lambda each: "key" in each or each.get("operator") == "Exists",
        ),
        (
            "supported toleration values: 'Equal'(default), 'Exists'",
            lambda each: each.get("operator", "Equal") in ("Equal", "Exists"),
        ),
        (
            "a value must be empty when 'operator' is 'Exists'",
            lambda each: each.get("operator") != "Exists" or "value" not in each,
        ),
        (
            "supported taint effect values: 'NoSchedule', 'PreferNoSchedule', 'NoExecute'",
            lambda each: each.get("effect", "NoSchedule") in _EFFECTS,
        ),
    )
    return [
        Problem("Rule", "spec.tolerations", text)
        for text, holds in texts
        if not all(holds(each) for each in tolerations)
    ]
