"""Quota files and operator settings whose exports to Kueue are tested."""

from __future__ import annotations

import pytest

import quota
from bastion.client.quota import kueue_flavors
from bastion.client.quota.kueue_export import Export, export
from bastion.core.model import daemon_settings
from bastion.core.model.clusters import ClusterSettings
from bastion.core.model.provisioning import Provisioning
from quota import Policy

LABEL, NAME = "team-bastion-5f0c5f0c", "team-bastion"

_HEAD = '[toml-schema]\nversion = "1"\n'

SMALL = f"""{_HEAD}
[total_resources]
v4 = 1024

[project_membership]
research = ["alice", "intern-.*"]
product = ["bob"]

[project_resources.research]
v4 = 0.6

[project_resources.product]
v4 = 0.4
"""

# Each rule, several types and tiers, and project ids that are no names in Kubernetes.
EVERY_RULE = f"""{_HEAD}
[[total_resources]]
v4 = 512
v5litepod = 256
v6e = 64

[[total_resources]]
v4 = 256
v6e = 32

[[total_resources]]
v5litepod = 128

[project_membership]
Research = ["alice"]
product = ["bob"]
visitors = ["carol"]
"team.one_two" = ["dave"]

[project_resources.Research]
v4 = 2
v5litepod = 1
v6e = 1

[project_resources.product]
v4 = 1
v5litepod = 1

[project_resources."team.one_two"]
v4 = 1
v6e = 3

[project_rules]
half_life_hours = 24
keep_idle_seconds = 30
grace_seconds = 45
maximum_runtime_hours = 48
max_queued_jobs = 100

[project_rules.Research]
fifo = true
borrowing_limit = {{ v4 = 100, v6e = 0 }}
lending_limit = {{ v4 = 33 }}

[project_rules.product]
hold = true
minimum_runtime_minutes = 10
lending_limit = {{ v4 = 0, v5litepod = 1000 }}

[project_rules.product.user_weights]
bob = 2.0
"""

# An odd pool of TensorCores, and shares that are never whole chips.
ODD = f"""{_HEAD}
[[total_resources]]
v4 = 1001
v5litepod = 97

[[total_resources]]
v4 = 333

[project_membership]
a = ["a"]
b = ["b"]
c = ["c"]
d = ["d"]
e = ["e"]
f = ["f"]
g = ["g"]

[project_resources]
a = {{ v4 = 1, v5litepod = 0.123456789 }}
b = {{ v4 = 1, v5litepod = 0.2 }}
c = {{ v4 = 1, v5litepod = 0.3333333333333333 }}
d = {{ v4 = 1, v5litepod = 1e-9 }}
e = {{ v4 = 1, v5litepod = 0.7 }}
f = {{ v4 = 1 }}
g = {{ v4 = 1, v5litepod = 3.14159 }}
"""

FILES = {"small": SMALL, "every-rule": EVERY_RULE, "odd-fractions": ODD}

SETTINGS = """
[clusters.training]
provider = "{provider}"
uid = "5f0c5f0c-0000-4000-8000-000000000000"
namespace = "training"
queue = "bastion-{{project}}"
agent_image = "registry.example/bastion:v1"

[defaults]
zones = ["k8s:training"]

[types.v6e.pod]
cpu = "100"
resources = {{ "hugepages-2Mi" = "1Gi", "example.com/nic" = "4" }}

[[tiers]]
model = "reserved"
reservation = "team-capacity"

[[tiers]]
model = "spot"

[[tiers]]
model = "on-demand"
"""


def policy(name: str) -> Policy:
    return quota.load(FILES[name].encode())


def big_policy(projects: int = 60) -> Policy:
    names = [f"project-{number:03}" for number in range(projects)]
    types = {"v4": 8192, "v5litepod": 4096, "v5p": 2050, "v6e": 1024}
    return Policy(
        tiers=(types, {"v4": 1022, "v6e": 77}, {"v5p": 514}),
        weights={
            name: {each: (7 * number + len(each)) % 11 / 10 + 0.1 for each in types}
            for number, name in enumerate(names)
        },
        members={name: (name,) for name in names},
    )


def settings(provider: str = "gke") -> Provisioning:
    return daemon_settings.load(SETTINGS.format(provider=provider).encode())


def without_common_labels(patch: pytest.MonkeyPatch, resource_type: str) -> None:
    """Let the machines of a type have no label in common, as p5 machines on EKS."""
    labels = kueue_flavors._base_labels

    def changed(asked: str, cluster: ClusterSettings) -> dict[str, str]:
        return {} if asked == resource_type else labels(asked, cluster)

    patch.setattr(kueue_flavors, "_base_labels", changed)


def exported(name: str) -> Export:
    return export(policy(name), settings(), cluster="training", label=LABEL, name=NAME)
