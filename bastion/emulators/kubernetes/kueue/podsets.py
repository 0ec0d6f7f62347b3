"""A JobSet as pod sets of a Workload, and what an admission puts into its templates.

Sources: kueue pkg/controller/jobs/jobset/jobset_controller.go, pkg/podset/podset.go, pkg/util/equality/podset.go.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import name_of, status_of
from bastion.emulators.kubernetes.kueue.admission import checks_of

POD_SET_LABEL = "kueue.x-k8s.io/podset"
LOCAL_QUEUE_LABEL = "kueue.x-k8s.io/local-queue-name"
CLUSTER_QUEUE_LABEL = "kueue.x-k8s.io/cluster-queue-name"
WORKLOAD_ANNOTATION = "kueue.x-k8s.io/workload"


class Conflict(Exception):
    """An admission asks for something else than the templates: the Workload fails."""


def pod_sets_of(job_set: Obj) -> list[Obj]:
    return [
        {
            "name": replicated["name"],
            "count": _count(replicated),
            "template": copy.deepcopy(_template(replicated)),
            "topologyRequest": {
                "podIndexLabel": "batch.kubernetes.io/job-completion-index",
                "subGroupIndexLabel": "jobset.sigs.k8s.io/job-index",
                "subGroupCount": replicated.get("replicas", 1),
            },
        }
        for replicated in job_set["spec"]["replicatedJobs"]
    ]


def pods_per_job(replicated: Obj) -> int:
    spec = replicated["template"]["spec"]
    parallelism: int = spec.get("parallelism", 1)
    completions: int = spec.get("completions", parallelism)
    return min(parallelism, completions)


def _count(replicated: Obj) -> int:
    replicas: int = replicated.get("replicas", 1)
    return replicas * pods_per_job(replicated)


def _template(replicated: Obj) -> Obj:
    template: Obj = replicated["template"]["spec"]["template"]
    return template


def are_equal(wanted: Sequence[Obj], found: Sequence[Obj], *, with_tolerations: bool) -> bool:
    """ComparePodSetSlices: counts, containers, tolerations."""
    fields = ("initContainers", "containers", *(("tolerations",) if with_tolerations else ()))

    def shape(pod_set: Obj) -> list[Any]:
        spec = pod_set["template"].get("spec") or {}
        return [pod_set["count"], *(spec.get(field) or [] for field in fields)]

    return [shape(each) for each in wanted] == [shape(each) for each in found]


def injected(workload: Obj, flavor_of: Callable[[str], Obj]) -> list[Obj]:
    """What the admission adds to each template, in the order of the pod sets (getPodSetsInfoFromStatus).

    Raises Conflict.
    """
    admission = status_of(workload)["admission"]
    found = []
    for assignment in admission["podSetAssignments"]:
        labels = {POD_SET_LABEL: assignment["name"], LOCAL_QUEUE_LABEL: workload["spec"].get("queueName", "")}
        labels[CLUSTER_QUEUE_LABEL] = admission["clusterQueue"]
        info: Obj = {"nodeSelector": {}, "tolerations": [], "labels": labels}
        info["annotations"] = {WORKLOAD_ANNOTATION: name_of(workload)}
        for flavor in dict.fromkeys((assignment.get("flavors") or {}).values()):
            spec = flavor_of(flavor).get("spec") or {}
            info["nodeSelector"].update(spec.get("nodeLabels") or {})
            info["tolerations"] += spec.get("tolerations") or []
        for check in checks_of(workload):
            for update in check.get("podSetUpdates") or ():
                if update["name"] == assignment["name"]:
                    info = _joined(info, update)
        found.append(info)
    return found


def with_info(template: Obj, info: Obj) -> Obj:
    """A template with what an admission adds. Raises Conflict."""
    metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
    own = {**{name: metadata.get(name) for name in _METADATA}, **{name: spec.get(name) for name in _SPEC}}
    return _with(template, _joined(own, info))


_METADATA = ("annotations", "labels")
_SPEC = ("nodeSelector", "tolerations")


def _joined(own: Obj, more: Obj) -> Obj:
    """PodSetInfo.Merge."""
    result: Obj = {}
    for field in ("annotations", "labels", "nodeSelector"):
        mine, theirs = own.get(field) or {}, more.get(field) or {}
        for name in sorted(mine.keys() & theirs.keys()):
            if mine[name] != theirs[name]:
                raise Conflict(
                    f"invalid admission check PodSetUpdate: conflict for {field}: conflict for key={name}, "
                    f"value1={mine[name]}, value2={theirs[name]}"
                )
        result[field] = {**mine, **theirs}
    tolerations = list(own.get("tolerations") or ())
    tolerations += [each for each in more.get("tolerations") or () if each not in tolerations]
    return {**result, "tolerations": tolerations}


def restored(template: Obj, original: Obj) -> Obj:
    """RestorePodSpec: a template with labels, annotations, selectors and tolerations of its pod set."""
    metadata, spec = original.get("metadata") or {}, original.get("spec") or {}
    own = {**{name: metadata.get(name) for name in _METADATA}, **{name: spec.get(name) for name in _SPEC}}
    return _with(template, own)


def _with(template: Obj, fields: Obj) -> Obj:
    result = copy.deepcopy(template)
    for holder, names in (("metadata", _METADATA), ("spec", _SPEC)):
        place = result.setdefault(holder, {})
        for name in names:
            if fields.get(name):
                place[name] = fields[name]
            else:
                place.pop(name, None)
        if not place:
            del result[holder]
    return result


def with_templates(job_set: Obj, templates: Sequence[Obj]) -> list[Obj]:
    """The JobSet's `spec.replicatedJobs` with these pod templates."""
    jobs: list[Obj] = copy.deepcopy(job_set["spec"]["replicatedJobs"])
    for job, template in zip(jobs, templates, strict=True):
        job["template"]["spec"]["template"] = template
    return jobs


def templates_of(job_set: Obj) -> list[Obj]:
    return [_template(each) for each in job_set["spec"]["replicatedJobs"]]
