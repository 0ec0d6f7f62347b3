"""The daemon's client of a cluster against a real API server: `make kube`, then `pytest -m kube`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from bastion.adapters.kubernetes.api import KubernetesApi
from bastion.adapters.kubernetes.list_watch import ListWatch, Pace
from bastion.adapters.system_clock import SystemClock
from bastion.core.errors import CredentialsRefused, GangExists, ProvisionerRefused, ProvisionerUnavailable
from bastion.core.model.clusters import ClusterSettings
from tests.kube.real_server import RealServer, missing
from tests.support.cluster_api import JOBSETS, PODS, SELECTOR, pod
from tests.support.waiting import until

pytestmark = pytest.mark.kube
Connect = Callable[..., KubernetesApi]


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[RealServer]:
    if "kube" not in request.config.getoption("markexpr"):
        pytest.skip("the real API server is asked for by: pytest -m kube")
    if absent := missing():
        pytest.skip(absent)
    with RealServer() as found:
        yield found


@pytest.fixture
def connect(server: RealServer, tmp_path: Path) -> Connect:
    def api(token: str = server.token) -> KubernetesApi:
        file = tmp_path / "token"
        file.write_text(token)
        settings = ClusterSettings(name="west", server=server.server, ca_file=server.ca_file, token_file=str(file))
        return KubernetesApi(settings, clock=SystemClock())

    return api


def _name(item: Mapping[str, Any]) -> str:
    return str(item["metadata"]["uid"])


def test_what_does_not_exist_and_what_is_not_served_differ(connect: Connect) -> None:
    api = connect()
    assert api.get(f"{JOBSETS}/b-x-1") is None
    assert not api.delete(f"{JOBSETS}/b-x-1")
    for path in ("/apis/queues.example.com/v1/namespaces/default/workloads", JOBSETS.replace("v1alpha2", "v1alpha9")):
        for request in (api.list, api.get, api.delete, lambda path: api.create(path, {"metadata": {"name": "x"}})):
            target = f"{path}/x" if request in (api.get, api.delete) else path
            with pytest.raises(ProvisionerUnavailable, match="does not serve"):
                request(target)
    assert api.get("/api/v1/namespaces/kube-system") is not None


def test_creations_are_refused_with_the_servers_words(connect: Connect) -> None:
    api = connect()
    api.create(PODS, pod("taken"))
    with pytest.raises(GangExists, match="already exists"):
        api.create(PODS, pod("taken"))
    job_set = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "b-y-1"}}
    with pytest.raises(ProvisionerRefused, match=r"unknown field \"spec.nope\""):
        api.create(JOBSETS, job_set | {"spec": {"nope": 1}})
    with pytest.raises(ProvisionerRefused, match="must be of type array"):
        api.create(JOBSETS, job_set | {"spec": {"replicatedJobs": "x"}})
    with pytest.raises(CredentialsRefused):
        connect("wrong").list(PODS)


def test_only_the_object_with_the_uid_is_deleted_and_in_the_foreground(connect: Connect) -> None:
    api = connect()
    job_set = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "b-z-1"},
        "spec": {"replicatedJobs": [{"name": "slice", "template": {"spec": {"template": {"spec": pod("x")["spec"]}}}}]},
    }
    uid = api.create(JOBSETS, job_set)["metadata"]["uid"]
    assert not api.delete(f"{JOBSETS}/b-z-1", uid="another")
    assert api.delete(f"{JOBSETS}/b-z-1", uid=uid)
    found = api.get(f"{JOBSETS}/b-z-1")
    assert found is not None
    assert found["metadata"]["finalizers"] == ["foregroundDeletion"]


def test_a_list_whose_pages_expire_is_read_whole(connect: Connect, server: RealServer) -> None:
    api = connect()
    for number in range(5):
        api.create(PODS, pod(f"page-{number}", managed="pages"))
    read: list[str] = []

    def reduce(item: dict[str, Any]) -> str:
        if len(read) == 2:
            # Between two pages; history is lost up to the last write.
            api.create(PODS, pod("later"))
            server.restart()
        read.append(item["metadata"]["name"])
        return read[-1]

    listing = api.list_each(PODS, reduce, label_selector="bastion-managed=pages", limit=2)
    assert listing.items == [f"page-{number}" for number in range(5)]
    assert len(read) > 5


def test_a_cache_follows_over_a_lost_history_and_a_restart(connect: Connect, server: RealServer) -> None:
    api = connect()
    pace = Pace(backoff=0.1, backoff_max=0.5, watch=5.0)
    cache = ListWatch(api, PODS, label_selector=SELECTOR, shrink=_name, clock=SystemClock(), pace=pace)
    cache.start()
    try:
        assert cache.wait_synced(20)
        for name in ("kept", "gone"):
            api.create(PODS, pod(name))
        until(lambda: {"kept", "gone"} <= set(cache.snapshot()), 20)
        api.patch_labels(f"{PODS}/gone", {"bastion-managed": None})
        until(lambda: "gone" not in cache.snapshot(), 20)
        server.restart()
        api.create(PODS, pod("new"))
        until(lambda: {"kept", "new"} <= set(cache.snapshot()), 30)
        api.delete(f"{PODS}/kept", propagation="Background", uid=cache.snapshot()["kept"])
        until(lambda: "kept" not in cache.snapshot(), 20)
    finally:
        cache.close()
