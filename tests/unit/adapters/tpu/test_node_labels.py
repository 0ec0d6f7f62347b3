"""The labels of a Cloud TPU node: ours, and the user's where Google Cloud takes them."""

from __future__ import annotations

from bastion.adapters.tpu.client import CloudTpuSettings
from bastion.adapters.tpu.nodes import node_message
from bastion.core.model.gangs import GangRef, GangRequest


def test_a_node_has_our_labels_and_those_of_the_job_that_google_cloud_takes() -> None:
    settings = CloudTpuSettings(project="p", zone="z", bastion="team-bastion", startup_script="true")
    request = GangRequest(
        ref=GangRef(name="b-aaaaaaaaaa-1"),
        bastion="team-bastion",
        run="aaaaaaaaaa-1",
        token="token",
        accelerator_type="v4-8",
        agent_arguments="{}",
        user_labels={"team": "red", "Team": "red", "version": "1.2", "bastion-run": "other"},
    )
    labels = dict(node_message(settings, request).labels)
    assert labels == {"bastion-managed": "team-bastion", "bastion-run": "aaaaaaaaaa-1", "team": "red"}
