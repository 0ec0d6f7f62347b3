"""A thousand pods without processes: what an idle daemon asks of the API server, and what its caches take."""

from __future__ import annotations

import contextlib
import gc
import json
import time
import tracemalloc
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the extra `kubernetes` is not installed")

from bastion.adapters.kubernetes import seen
from bastion.adapters.kubernetes.list_watch import Pace
from bastion.adapters.kubernetes.provisioner import KubernetesProvisioner
from bastion.adapters.kubernetes.watched_objects import WatchedObjects
from bastion.adapters.system_clock import SystemClock
from bastion.core.model.gangs import GangRef, GangRequest, GangState, Place
from bastion.emulators.kubernetes.client import ApiClient
from bastion.emulators.kubernetes.controllers.controllers import Controllers
from bastion.emulators.kubernetes.controllers.nodes import Pool
from tests.support.cluster_api import PODS, Cluster, running
from tests.support.fake_kubelet import FakeKubelet
from tests.support.waiting import until

RUN = "aaaaaaa000-1"
GANGS, HOSTS = 256, 4
TYPE = "v5litepod-16"
CACHED_BYTES_MAX = 2048  # of each pod
KINDS = ("pods", "jobs", "jobsets")
# Watches end often, as they do every few minutes.
PACE = Pace(watch=0.7, short_watch=0.2, backoff=0.1)


@dataclass
class Crowd:
    """All gangs ready. Controllers and kubelet are gone, so that each request is the provisioner's."""

    cluster: Cluster
    provisioner: KubernetesProvisioner
    documents: list[dict[str, Any]]
    client: ApiClient

    def listed(self) -> Counter[str]:
        """How often each kind was listed; a list of several pages counts once."""
        first = [each for each in self.cluster.lists() if "continue=" not in each]
        return Counter(kind for each in first for kind in KINDS if f"/{kind}?" in each)


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    with contextlib.ExitStack() as stack:
        cluster = stack.enter_context(running(tmp_path_factory.mktemp("cluster")))
        client = ApiClient.connect(cluster.server.address)
        stack.callback(client.close)
        settings = cluster.settings(uid=client.get("/api/v1/namespaces/kube-system")["metadata"]["uid"])
        provisioner = KubernetesProvisioner(
            settings, bastion="team", startup_script="exit 0", clock=SystemClock(), pace=PACE
        )
        stack.callback(provisioner.close)
        with contextlib.ExitStack() as makers:
            controllers = Controllers(client, [Pool.parse(f"{TYPE}=1")])
            controllers.open()
            makers.callback(controllers.close)
            makers.enter_context(FakeKubelet(client))
            provisioner.create(_request())
            until(lambda: _ready(provisioner) == 1, 60)
        _multiply(cluster)
        until(lambda: _ready(provisioner) == GANGS, 20)
        # A gang whose JobSet is not cached yet is looked up.
        until(lambda: len(provisioner._jobsets.snapshot()) == GANGS, 20)
        documents = client.list(PODS)["items"]
        assert len(documents) == GANGS * HOSTS
        yield Crowd(cluster, provisioner, documents, client)


def _multiply(cluster: Cluster) -> None:
    """Write the objects of the one gang again, under other names: controllers would need half a minute."""
    store = cluster.server._store
    assert store is not None
    originals = [each for each in store if RUN in each.name]
    for number in range(1, GANGS):
        for original in originals:
            copy = json.loads(original.encoded.decode().replace(RUN, f"aaaaaaa{number:03x}-1"))
            copy["metadata"]["uid"] = str(uuid.uuid4())
            store.put(original.resource, copy)


def _request() -> GangRequest:
    return GangRequest(
        ref=GangRef(name=f"b-{RUN}"),
        bastion="team",
        run=RUN,
        token="token",
        accelerator_type=TYPE,
        place=Place(),
        image="registry.example/train:v1",
        agent_arguments="{}",
    )


def _ready(provisioner: KubernetesProvisioner) -> int:
    return sum(gang.state is GangState.READY for gang in provisioner.list())


def test_an_idle_listing_sends_no_request_but_watches(crowd: Crowd) -> None:
    crowd.cluster.requests.clear()
    until(lambda: _ready(crowd.provisioner) == GANGS and len(crowd.cluster.watches()) >= 2 * len(KINDS), 20)
    assert crowd.cluster.watches() == crowd.cluster.requests


def test_a_watch_that_is_cut_goes_on_from_its_version_without_a_list(crowd: Crowd) -> None:
    crowd.cluster.requests.clear()
    crowd.cluster.server.cut_watches()
    until(lambda: len(crowd.cluster.watches()) >= len(KINDS), 20)
    assert _ready(crowd.provisioner) == GANGS
    assert crowd.listed() == Counter()


def test_a_watch_whose_version_is_too_old_lists_once(crowd: Crowd) -> None:
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "news-"}}
    crowd.client.create("/api/v1/namespaces/default/configmaps", config_map)
    crowd.cluster.requests.clear()
    crowd.cluster.server.expire_history()
    crowd.cluster.server.cut_watches()
    until(lambda: crowd.listed().keys() == set(KINDS), 20)
    after = len(crowd.cluster.watches())
    until(lambda: len(crowd.cluster.watches()) >= after + len(KINDS), 20)
    until(lambda: len([each for each in crowd.cluster.lists() if "/pods?" in each]) == 3, 20)  # pages of 500
    assert crowd.listed() == Counter(dict.fromkeys(KINDS, 1))
    assert _ready(crowd.provisioner) == GANGS


def test_a_tick_over_a_thousand_pods_is_short(crowd: Crowd) -> None:
    took = []
    for _ in range(5):
        began = time.perf_counter()
        assert len(crowd.provisioner.list()) == GANGS
        took.append(time.perf_counter() - began)
    assert min(took) < 0.1


def test_a_cached_pod_takes_two_kilobytes_at_most(crowd: Crowd) -> None:
    texts = [json.dumps(each) for each in crowd.documents[:256]]
    cache = WatchedObjects(seen.pod)
    gc.collect()
    tracemalloc.start()
    try:
        cache.replace([cache.entry(json.loads(text)) for text in texts], "1")
        gc.collect()
        used, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(cache) == len(texts)
    print(f"{used / len(texts):.0f} B a pod; its document has {sum(map(len, texts)) / len(texts):.0f} B")
    assert used / len(texts) <= CACHED_BYTES_MAX
