"""The training example: pre-empted on an emulated cluster, undisturbed on the emulated Cloud TPU."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator

import pytest

from bastion.emulators.kubernetes.controllers import node_faults
from tests.support.cluster_bastion import ClusterBastion, cluster_bastion
from tests.support.extras import needs
from tests.support.training_job import Training
from tests.support.waiting import until

needs("kubernetes", "jax", "orbax.checkpoint")
# Each costs the start of JAX on two hosts.
PREEMPTIONS = int(os.environ.get("BASTION_PREEMPTIONS", "0"))
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PREEMPTIONS, reason="`make long` runs it: BASTION_PREEMPTIONS=3"),
]

STEPS = 10 * (PREEMPTIONS + 1)
GRACE_SECONDS = 12  # less is left to a command: its host reports, too


@pytest.fixture(scope="module")
def bastion(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBastion]:
    with cluster_bastion(tmp_path_factory.mktemp("cluster"), "v4-16=2", zone=True) as bastion:
        yield bastion


def test_a_training_that_is_preempted_ends_like_one_on_cloud_tpu(bastion: ClusterBastion) -> None:
    undisturbed = Training(bastion.root, "undisturbed", steps=STEPS, instance_type="tpu-v5p-16")
    training = Training(bastion.root, "train", steps=STEPS, slow_attempts=PREEMPTIONS)
    for number in range(1, PREEMPTIONS + 1):
        run = training.stored_more_in(number)
        pods = bastion.known("train").pods()
        node = pods[number % 2]["spec"]["nodeName"]
        now = datetime.datetime.now(datetime.timezone.utc)
        node_faults.preempt_node(bastion.cluster.client, node, now=now, grace_seconds=GRACE_SECONDS)
        until(lambda before=run: training.runs()[-1] != before or training.result(), 100)
    until(lambda: training.result() and undisturbed.result(), 200)
    assert training.same_as(undisturbed) == ["infrastructure"] * PREEMPTIONS + ["succeeded"]
    assert all(attempt["zone"] == "k8s:test" for attempt in (training.result() or {})["attempts"])
    assert [attempt["zone"] for attempt in (undisturbed.result() or {})["attempts"]] == ["local"]
