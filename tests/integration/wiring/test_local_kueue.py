"""The queues that the local bastion makes of the quota file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import quota
from bastion.core.bucket import keys
from bastion.emulators.kubernetes.address import locate
from bastion.testing.memory_store import MemoryStore
from bastion.wiring.local_kueue import write_queues
from tests.support.emulated_cluster import emulated_cluster

SETTINGS = b"""
[clusters.test]
kubeconfig = "/k"
uid = "11111111-1111"
queue = "bastion-{project}"
[types.v4]
zones = ["k8s:test"]
[[tiers]]
model = "on-demand"
"""
QUOTA = """
[toml-schema]
version = "1"
[total_resources]
v4 = 32
[project_membership]
a = [".*"]
[project_resources.a]
v4 = 1.0
"""


def test_queues_follow_the_quota_file(tmp_path: Path) -> None:
    store, said = MemoryStore(), list[str]()
    store.put(keys.DAEMON_SETTINGS, SETTINGS, generation=0)
    with emulated_cluster(tmp_path / "cluster", "v4-8=1", policy=quota.load(QUOTA.encode())) as cluster:
        address = locate(tmp_path / "cluster")
        assert address is not None

        def write(text: str) -> Any:
            present = store.head(keys.PROJECT_QUOTAS)
            store.put(keys.PROJECT_QUOTAS, text.encode(), generation=present.generation if present else 0)
            write_queues(store, address, cluster="test", label="test", name="test", say=said.append)
            return cluster.client.get("/apis/kueue.x-k8s.io/v1beta2/clusterqueues/bastion-a")["spec"]

        held = write(QUOTA.replace("[project_membership]", "[project_rules.a]\nhold = true\n[project_membership]"))
        assert held["stopPolicy"] == "Hold"
        released = write(QUOTA.replace("v4 = 32", "v4 = 64"))
        assert released["stopPolicy"] == "None"
        amounts = [
            resource["nominalQuota"]
            for group in released["resourceGroups"]
            for flavor in group["flavors"]
            for resource in flavor["resources"]
            if resource["name"] == "google.com/tpu"
        ]
        assert amounts == ["32"]
        assert said == []
        assert write("not = [ toml") == released
        assert "the cluster's queues stay as they are" in said.pop()
        write(QUOTA.replace("a = [", "b = [").replace("project_resources.a", "project_resources.b"))
        (left,) = said
        assert "ClusterQueue bastion-a" in left
        assert "--kubeconfig=/k delete clusterqueue/bastion-a" in left
