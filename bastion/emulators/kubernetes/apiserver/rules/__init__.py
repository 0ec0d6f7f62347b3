"""Defaults and validation by kind."""

from __future__ import annotations

from bastion.emulators.kubernetes.apiserver.resources import (
    CLAIMS,
    CONFIG_MAPS,
    EVENTS,
    JOB_SETS,
    JOBS,
    LEASES,
    NAMESPACES,
    NODES,
    PODS,
    QUOTAS,
    SECRETS,
    SERVICES,
    Resource,
)
from bastion.emulators.kubernetes.apiserver.rules import others
from bastion.emulators.kubernetes.apiserver.rules.base import Rules, WithStatus
from bastion.emulators.kubernetes.apiserver.rules.jobs import JobRules
from bastion.emulators.kubernetes.apiserver.rules.jobsets import JobSetRules
from bastion.emulators.kubernetes.apiserver.rules.pods import PodRules

_PLAIN = Rules()
_BY_RESOURCE: dict[Resource, Rules] = {
    CLAIMS: others.ClaimRules(),
    CONFIG_MAPS: others.ConfigMapRules(),
    EVENTS: others.EventRules(),
    JOBS: JobRules(),
    JOB_SETS: JobSetRules(),
    LEASES: others.LeaseRules(),
    NAMESPACES: others.NamespaceRules(),
    NODES: others.NodeRules(),
    PODS: PodRules(),
    QUOTAS: WithStatus(),
    SECRETS: others.SecretRules(),
    SERVICES: others.ServiceRules(),
}


def rules_of(resource: Resource) -> Rules:
    return _BY_RESOURCE.get(resource, _PLAIN)
