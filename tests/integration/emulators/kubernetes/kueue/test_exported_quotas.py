"""Round trip: under full demand, Kueue gives each project the share that the quota file says, but for less than a job.

Only Kueue runs: JobSets that it starts make no pods.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from bastion.adapters.kubernetes import manifest
from bastion.client.quota.kueue_export import export
from bastion.client.quota.kueue_flavors import Flavor, flavors
from bastion.core.model import instance_types
from bastion.core.model.clusters import ClusterSettings
from bastion.core.model.gangs import GangRef, GangRequest, Place
from bastion.core.model.instance_types import InstanceType
from bastion.core.model.kueue import local_queue, priority_class
from bastion.emulators.kubernetes.apiserver import ApiServer
from bastion.emulators.kubernetes.client import ApiClient, Obj
from bastion.emulators.kubernetes.controllers.api_objects import KINDS, condition_of, is_true, status_of
from bastion.emulators.kubernetes.controllers.cluster import Cluster
from bastion.emulators.kubernetes.kueue.kueue import Kueue
from quota import Policy
from tests.support import kueue_exports
from tests.support.emulated_cluster import QUEUE
from tests.support.kueue_exports import FILES, NAME, settings
from tests.support.waiting import until

TPU = "google.com/tpu"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[Sequence[Obj]], ApiClient]]:
    """Starts Kueue with these objects."""
    with contextlib.ExitStack() as parts:

        def start(objects: Sequence[Obj]) -> ApiClient:
            server = parts.enter_context(ApiServer(tmp_path, kueue=True))
            client = ApiClient.connect(server.address)
            parts.callback(client.close)
            namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "training"}}
            for each in (namespace, *objects):
                path = "/api/v1/namespaces" if each is namespace else _path(each["kind"])
                client.create(path, each)
            cluster = Cluster(client, kueue=True)
            loop = Kueue(cluster).loop
            parts.enter_context(cluster.running())
            loop.start()
            parts.callback(loop.stop)
            return client

        yield start


Start = Callable[[Sequence[Obj]], ApiClient]


@pytest.mark.parametrize("name", FILES)
def test_each_project_gets_its_share_though_another_took_everything_first(name: str, start: Start) -> None:
    policy = kueue_exports.policy(name)
    where = settings()
    cluster = where.clusters["training"]
    found = flavors(policy, where, cluster, prefix=NAME)
    sizes = {
        each: _size([flavor for flavor in found if flavor.resource_type == each], len(policy.projects))
        for each in policy.resource_types
    }
    client = start(kueue_exports.exported(name).objects)
    _demand(client, policy, cluster, found, sizes)
    with contextlib.suppress(AssertionError):
        until(lambda: _shortest(client, policy, found, sizes) == {}, 30)
    assert _shortest(client, policy, found, sizes) == {}


def test_pods_of_a_type_are_not_counted_as_another_whose_machines_have_no_label_in_common(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    kueue_exports.without_common_labels(monkeypatch, "v4")
    policy = Policy(tiers=({"v4": 64, "v5litepod": 1},), weights={"a": {"v4": 1.0}}, members={"a": (".*",)})
    where = settings()
    client = start(export(policy, where, cluster="training", label="team", name=NAME).objects)
    for accelerator_type in ("v5litepod-8", "v4-8"):
        _submit(client, where.clusters["training"], "a", f"1-{accelerator_type}", accelerator_type)
    until(lambda: len(_admitted(client)) == 1)
    (workload,) = _admitted(client)
    assert workload["metadata"]["ownerReferences"][0]["name"] == "b-1-v4-8"
    until(lambda: "untolerated taint" in _waits_for(client, "b-1-v5litepod-8"))
    assert len(_admitted(client)) == 1


def _waits_for(client: ApiClient, jobset: str) -> str:
    for each in client.list(_path("Workload"))["items"]:
        if each["metadata"]["ownerReferences"][0]["name"] == jobset:
            return str((condition_of(each, "QuotaReserved") or {}).get("message"))
    return ""


def _size(tiers: list[Flavor], projects: int) -> InstanceType:
    """A size of which each tier has several, and most projects' shares one."""
    sizes = [each for each in instance_types.table().values() if each.resource_type == tiers[0].resource_type]
    most = min(tier.chips for tier in tiers) / (4 if projects < 5 else 2)
    return max((each for each in sizes if each.chips <= most), key=lambda each: each.chips)


def _demand(
    client: ApiClient,
    policy: Policy,
    cluster: ClusterSettings,
    found: tuple[Flavor, ...],
    sizes: dict[str, InstanceType],
) -> None:
    """The first project asks for more than the whole pool, and then each other one for more than its share."""
    for number, project in enumerate(policy.projects):
        if policy.rules(project).hold:
            continue
        for resource_type, size in sizes.items():
            if _is_left_out(policy, project, resource_type):
                continue
            pool = sum(flavor.chips for flavor in found if flavor.resource_type == resource_type)
            share = int(policy.share(project, resource_type) * pool)
            for copy in range((share if number else pool) // size.chips + 2):
                _submit(client, cluster, project, f"{number:02}{resource_type}-{copy}", size.accelerator_type)


def _submit(client: ApiClient, cluster: ClusterSettings, project: str, run: str, accelerator_type: str) -> None:
    request = GangRequest(
        ref=GangRef(name=f"b-{run}"),
        bastion="team",
        run=run,
        token="token",
        accelerator_type=accelerator_type,
        place=Place(zone="k8s:training", queue=local_queue(QUEUE, project)),
        priority_class=priority_class(5, again=False),
        image="registry.example/train:v1",
        agent_arguments="{}",
    )
    jobset = manifest.jobset(request, cluster, bastion="team", startup_script="true")
    client.create("/apis/jobset.x-k8s.io/v1alpha2/namespaces/training/jobsets", jobset)


def _path(kind: str) -> str:
    return KINDS["kueue.x-k8s.io/v1beta2", kind].path("training")


def _admitted(client: ApiClient) -> list[Obj]:
    return [
        each
        for each in client.list(_path("Workload"))["items"]
        if is_true(each, "Admitted") and not is_true(each, "Evicted")
    ]


def _shortest(
    client: ApiClient, policy: Policy, found: tuple[Flavor, ...], sizes: dict[str, InstanceType]
) -> dict[tuple[str, str], int]:
    """By project and flavor: the chips that a project lacks of its share, where a whole job would fit into them."""
    used: Counter[tuple[str, str]] = Counter()
    for workload in _admitted(client):
        (assigned,) = status_of(workload)["admission"]["podSetAssignments"]
        used[workload["spec"]["queueName"], assigned["flavors"][TPU]] += int(assigned["resourceUsage"][TPU])
    missing = {
        (project, flavor.name): flavor.to_chips(policy.share(project, flavor.resource_type) * flavor.units)
        - used[local_queue(QUEUE, project), flavor.name]
        for project in policy.projects
        for flavor in found
        if not policy.rules(project).hold and not _is_left_out(policy, project, flavor.resource_type)
    }
    for flavor in found:
        assert sum(amount for (_, name), amount in used.items() if name == flavor.name) <= flavor.chips
    return {
        key: amount
        for key, amount in missing.items()
        for flavor in found
        if flavor.name == key[1] and amount >= sizes[flavor.resource_type].chips
    }


def _is_left_out(policy: Policy, project: str, resource_type: str) -> bool:
    """With fifo, the job in front would hold back those of other types, which are as old to the second."""
    return policy.rules(project).fifo and resource_type != policy.resource_types[0]
