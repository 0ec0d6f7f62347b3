"""Defaults and validation by kind."""

from __future__ import annotations

from bastion.emulators.kubernetes.apiserver.resources import (
    CLAIMS,
    JOB_SETS,
    JOBS,
    NAMESPACES,
    NODES,
    PODS,
    QUOTAS,
    SERVICES,
    Resource,
)
from bastion.emulators.kubernetes.apiserver.rules.base import Custom, Rules, WithStatus
from bastion.emulators.kubernetes.apiserver.rules.pods import PodRules

_PLAIN = Rules()
_WITH_STATUS = WithStatus()
_BY_RESOURCE: dict[Resource, Rules] = {
    PODS: PodRules(),
    JOBS: _WITH_STATUS,
    JOB_SETS: Custom(),
    NODES: _WITH_STATUS,
    NAMESPACES: _WITH_STATUS,
    SERVICES: _WITH_STATUS,
    CLAIMS: _WITH_STATUS,
    QUOTAS: _WITH_STATUS,
}


def rules_of(resource: Resource) -> Rules:
    return _BY_RESOURCE.get(resource, _PLAIN)
