"""A bastion whose ROOT is on S3 has its hosts in clusters that bring the agent."""

from __future__ import annotations

from bastion.core.model import daemon_settings
from bastion.core.model.provisioning import BUILT_IN
from bastion.wiring.s3_hosts import problems_on_s3

CLUSTER = """
[clusters.here]
uid = "5f0c5f0c-0000-4000-8000-000000000000"
{agent_image}
[types.v4]
zones = ["k8s:here"]
[types.v4.pod]
image = "registry.example.com/train:v1"
{more}
[[tiers]]
model = "on-demand"
"""
AGENT = 'agent_image = "registry.example.com/bastion:v1"'


def problems(text: str) -> tuple[str, ...]:
    return problems_on_s3(daemon_settings.load(text.encode()))


def test_pods_with_an_init_container_are_fine() -> None:
    assert problems(CLUSTER.format(agent_image=AGENT, more="")) == ()


def test_pods_that_would_fetch_the_agent_themselves_are_not() -> None:
    (problem,) = problems(CLUSTER.format(agent_image="", more=""))
    assert problem.startswith("[clusters.here] has no agent_image, and pods cannot fetch the agent from S3; set ")


def test_without_settings_there_is_nothing_to_complain_about() -> None:
    assert problems_on_s3(BUILT_IN) == ()


def test_zones_of_cloud_tpu_are_named() -> None:
    text = 'project = "p"\n' + CLUSTER.format(
        agent_image=AGENT, more='[types.v5p]\nzones = ["us-east5-a"]\nservice_account = "w@p.iam.gserviceaccount.com"'
    )
    (problem,) = problems(text)
    assert problem.startswith("TPU VMs in us-east5-a have no credentials for a ROOT on S3; name clusters (k8s:NAME)")
