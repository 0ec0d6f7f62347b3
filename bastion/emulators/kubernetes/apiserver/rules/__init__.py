"""Defaults and validation by kind."""

from __future__ import annotations

from bastion.emulators.kubernetes.apiserver.resources import (
    ADMISSION_CHECKS,
    CLAIMS,
    CLUSTER_QUEUES,
    COHORTS,
    CONFIG_MAPS,
    EVENTS,
    FLAVORS,
    JOB_SETS,
    JOBS,
    LEASES,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    PODS,
    QUOTAS,
    SECRETS,
    SERVICES,
    WORKLOAD_PRIORITIES,
    WORKLOADS,
    Resource,
)
from bastion.emulators.kubernetes.apiserver.rules import kueue, others
from bastion.emulators.kubernetes.apiserver.rules.base import Rules, WithStatus
from bastion.emulators.kubernetes.apiserver.rules.jobs import JobRules
from bastion.emulators.kubernetes.apiserver.rules.jobsets import JobSetRules
from bastion.emulators.kubernetes.apiserver.rules.pods import PodRules

_PLAIN = Rules()
_BY_RESOURCE: dict[Resource, Rules] = {
    ADMISSION_CHECKS: kueue.AdmissionCheckRules(),
    CLAIMS: others.ClaimRules(),
    CLUSTER_QUEUES: kueue.ClusterQueueRules(),
    COHORTS: kueue.CohortRules(),
    CONFIG_MAPS: others.ConfigMapRules(),
    EVENTS: others.EventRules(),
    FLAVORS: kueue.FlavorRules(),
    JOBS: JobRules(),
    JOB_SETS: JobSetRules(),
    LEASES: others.LeaseRules(),
    LOCAL_QUEUES: kueue.LocalQueueRules(),
    NAMESPACES: others.NamespaceRules(),
    NODES: others.NodeRules(),
    PODS: PodRules(),
    QUOTAS: WithStatus(),
    SECRETS: others.SecretRules(),
    SERVICES: others.ServiceRules(),
    WORKLOAD_PRIORITIES: kueue.KueueRules(),
    WORKLOADS: kueue.WorkloadRules(),
}


def rules_of(resource: Resource) -> Rules:
    return _BY_RESOURCE.get(resource, _PLAIN)
