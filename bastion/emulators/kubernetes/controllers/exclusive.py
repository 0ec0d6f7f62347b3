"""JobSet's exclusive placement: one Job per topology domain, such as a node pool.

Upstream it is done by webhooks of pods (jobset pkg/webhooks/pod_webhook.go): the leader, index 0, gets affinities; the
followers get the leader's domain as a node selector, and are rejected before the leader is scheduled. Here the Job
controller asks `admit` before it creates a pod, with the same result and the same words; pods that others create are
not changed. Placements that a race made wrong cannot occur, so pkg/controllers/pod_controller.go has no counterpart.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    COMPLETION_INDEX,
    annotations_of,
    is_active,
    labels_of,
    name_of,
    node_name_of,
)

EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
_NODE_SELECTOR_STRATEGY = "alpha.jobset.sigs.k8s.io/node-selector"
_JOB_SET_NAME = "jobset.sigs.k8s.io/jobset-name"
_JOB_KEY = "jobset.sigs.k8s.io/job-key"
_PRIORITY = "jobset.sigs.k8s.io/priority"


class Denied(Exception):
    """The webhook's refusal, in the API server's words."""


def admit(pod: Obj, siblings: Iterable[Obj], node_of: Callable[[str], Obj | None]) -> Obj:
    """Return the pod as the webhooks change it. Raises Denied.

    Args:
        siblings: The pods of the same Job.
        node_of: A node by its name.
    """
    topology_key = annotations_of(pod).get(EXCLUSIVE)
    if not topology_key or _JOB_SET_NAME not in annotations_of(pod) or _NODE_SELECTOR_STRATEGY in annotations_of(pod):
        return pod
    pod = copy.deepcopy(pod)
    # Pods without a priority class have priority 0 (plugin/pkg/admission/priority).
    labels_of(pod)[_PRIORITY] = str(pod["spec"].get("priority") or 0)
    if annotations_of(pod).get(COMPLETION_INDEX) == "0":
        _set_affinities(pod, topology_key)
        return pod
    leaders = [each for each in siblings if annotations_of(each).get(COMPLETION_INDEX) == "0" and is_active(each)]
    node = node_of(node_name_of(leaders[0])) if len(leaders) == 1 else None
    if node is None:
        raise Denied(
            'admission webhook "vpod.kb.io" denied the request: follower pod node selector for topology domain not '
            f"found. missing selector: {topology_key}"
        )
    if topology_key not in labels_of(node):
        raise Denied(
            f'admission webhook "mpod.kb.io" denied the request: node does not have topology label: {topology_key} '
            f"(node {name_of(node)})"
        )
    pod["spec"]["nodeSelector"] = {
        **(pod["spec"].get("nodeSelector") or {}),
        topology_key: labels_of(node)[topology_key],
    }
    return pod


def _set_affinities(pod: Obj, topology_key: str) -> None:
    """With its own Job's pods only, and with no other Job of the same priority."""
    job_key = labels_of(pod)[_JOB_KEY]
    everywhere = {"topologyKey": topology_key, "namespaceSelector": {}}
    own = {"key": _JOB_KEY, "operator": "In", "values": [job_key]}
    foreign = [
        {"key": _JOB_KEY, "operator": "Exists"},
        {"key": _JOB_KEY, "operator": "NotIn", "values": [job_key]},
        {"key": _PRIORITY, "operator": "In", "values": [labels_of(pod)[_PRIORITY]]},
    ]
    affinity = pod["spec"].get("affinity") or {}
    for kind, expressions in (("podAffinity", [own]), ("podAntiAffinity", foreign)):
        terms = affinity.setdefault(kind, {})
        required = terms.get("requiredDuringSchedulingIgnoredDuringExecution") or []
        term = {"labelSelector": {"matchExpressions": expressions}, **everywhere}
        terms["requiredDuringSchedulingIgnoredDuringExecution"] = [*required, term]
    pod["spec"]["affinity"] = affinity
