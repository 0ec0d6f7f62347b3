"""Indexes, failure rules, node pools, evictions, and the work loop."""

from __future__ import annotations

import datetime
import threading
from typing import cast

import pytest

from bastion.core.errors import Refused
from bastion.emulators.kubernetes.client import ApiClient, ApiError, Obj
from bastion.emulators.kubernetes.controllers import events, indexes
from bastion.emulators.kubernetes.controllers.api_objects import timestamp
from bastion.emulators.kubernetes.controllers.disruptions import end_orphan, evict
from bastion.emulators.kubernetes.controllers.nodes import Pool, build_node
from bastion.emulators.kubernetes.controllers.pod_failures import matching_rule
from bastion.emulators.kubernetes.controllers.reconcile_loop import Loop
from tests.support.kubernetes_objects import NOW, a_job, a_node, a_pod


@pytest.mark.parametrize(
    ("found", "text"),
    [(set(), ""), ({0}, "0"), ({0, 1}, "0,1"), ({0, 1, 2}, "0-2"), ({1, 3, 4, 5, 7}, "1,3-5,7"), ({2, 3, 9}, "2,3,9")],
)
def test_indexes_are_written_and_read(found: set[int], text: str) -> None:
    assert indexes.render(found) == text
    assert indexes.parse(text, 10) == found


def test_indexes_beyond_the_completions_are_left_out() -> None:
    assert indexes.parse("0,2-5", 4) == {0, 2, 3}


@pytest.mark.parametrize(
    ("rule", "matched"),
    [
        ({"operator": "In", "values": [3]}, True),
        ({"operator": "In", "values": [4]}, False),
        ({"operator": "NotIn", "values": [0]}, True),
        ({"operator": "NotIn", "values": [3]}, False),
        ({"operator": "In", "values": [3], "containerName": "host"}, True),
        ({"operator": "In", "values": [3], "containerName": "other"}, False),
    ],
)
def test_failure_rules_by_exit_code(rule: Obj, *, matched: bool) -> None:
    pod = a_pod(a_job(), 0, "Failed", exit_code=3)
    action, _ = matching_rule({"rules": [{"action": "Ignore", "onExitCodes": rule}]}, pod)
    assert action == ("Ignore" if matched else None)


def test_exit_code_0_fails_nothing() -> None:
    pod = a_pod(a_job(), 0, "Failed", exit_code=0)
    rule = {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [1]}}
    assert matching_rule({"rules": [rule]}, pod) == (None, "")


def test_the_first_rule_that_matches_decides() -> None:
    pod = a_pod(a_job(), 0, "Failed", exit_code=3, conditions=("DisruptionTarget",))
    disrupted = {"action": "Count", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    coded = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [3]}}
    assert matching_rule({"rules": [disrupted, coded]}, pod)[0] == "Count"
    assert matching_rule({"rules": [coded, disrupted]}, pod)[0] == "FailJob"


def test_a_spot_pool_has_the_nodes_of_its_slices() -> None:
    pool = Pool.parse("v5litepod-16=2:spot")
    assert pool.names == ["v5litepod-16-spot-0", "v5litepod-16-spot-1"]
    node = build_node(pool, pool.names[1], 3, "ab12", now=NOW)
    labels = node["metadata"]["labels"]
    assert node["metadata"]["name"] == "gke-emulated-v5litepod-16-spot-1-3-ab12"
    assert labels["kubernetes.io/hostname"] == node["metadata"]["name"]
    assert labels["cloud.google.com/gke-nodepool"] == "v5litepod-16-spot-1"
    assert labels["cloud.google.com/gke-tpu-accelerator"] == "tpu-v5-lite-podslice"
    assert labels["cloud.google.com/gke-tpu-topology"] == "4x4"
    assert labels["cloud.google.com/gke-spot"] == "true"
    assert [taint["key"] for taint in node["spec"]["taints"]] == ["google.com/tpu", "cloud.google.com/gke-spot"]
    allocatable = node["status"]["allocatable"]
    assert (allocatable["google.com/tpu"], allocatable["cpu"], allocatable["pods"]) == ("4", "106400m", "110")


@pytest.mark.parametrize("name", ["v4-16", "v5litepod-1", "v5p-64", "v6e-32"])
def test_every_family_of_gke_can_be_a_pool(name: str) -> None:
    pool = Pool.parse(f"{name}=1")
    assert not pool.spot
    assert build_node(pool, pool.names[0], 0, "a", now=NOW)["status"]["capacity"]["cpu"] != "100000m"


@pytest.mark.parametrize(
    ("text", "labels", "taints"),
    [
        (
            "gpu-h100-8=1",
            {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb", "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            ["nvidia.com/gpu"],
        ),
        ("h100-8=1:generic", {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}, []),
        (
            "gpu-h100-8=1:eks:spot",
            {"node.kubernetes.io/instance-type": "p5.48xlarge", "eks.amazonaws.com/capacityType": "SPOT"},
            [],
        ),
    ],
)
def test_a_pool_of_gpus_is_labeled_as_its_provider_does(text: str, labels: dict[str, str], taints: list[str]) -> None:
    pool = Pool.parse(text)
    node = build_node(pool, pool.names[0], 0, "a", now=NOW)
    assert labels.items() <= node["metadata"]["labels"].items()
    assert [taint["key"] for taint in node["spec"]["taints"]] == taints
    allocatable = node["status"]["allocatable"]
    assert (allocatable["nvidia.com/gpu"], "google.com/tpu" in allocatable) == ("8", False)
    assert allocatable.get("vpc.amazonaws.com/efa") == ("32" if pool.provider == "eks" else None)


@pytest.mark.parametrize(
    "text",
    [
        "v5litepod-16",
        "v5litepod-16=0",
        "v5litepod-16=2:cheap",
        "v3-8=1",
        "nonsense=1",
        "",
        "gpu-l4-1=1:eks",
        "gpu-h100-8=1:eks:gke",
        "gpu-gb200-4=1",
    ],
)
def test_a_bad_pool_is_refused(text: str) -> None:
    with pytest.raises(Refused, match="is not a valid node pool"):
        Pool.parse(text)


def _tainted(**taint: str) -> Obj:
    key = "node.kubernetes.io/unreachable"
    return a_node("n", taints=({"key": key, "effect": "NoExecute", "timeAdded": timestamp(NOW), **taint},))


def test_a_pod_is_evicted_when_it_no_longer_tolerates_its_node() -> None:
    pod = a_pod(a_job(), 0)
    assert evict(pod, _tainted(), now=NOW, default_seconds=60).again_seconds == 60
    late = NOW + datetime.timedelta(seconds=60)
    outcome = evict(pod, _tainted(), now=late, default_seconds=60)
    assert [write.method for write in outcome.writes] == ["patch", "delete"]
    assert evict(pod, _tainted(key="other"), now=NOW, default_seconds=60).writes
    pod["spec"]["tolerations"] = [{"operator": "Exists", "tolerationSeconds": 90}]
    assert evict(pod, _tainted(), now=late, default_seconds=60).again_seconds == 30
    pod["spec"]["tolerations"] = [{"operator": "Exists"}]
    outcome = evict(pod, _tainted(), now=late, default_seconds=60)
    assert (outcome.writes, outcome.again_seconds) == ((), None)


def test_a_pod_without_its_node_fails_and_goes() -> None:
    mark, removal = end_orphan(a_pod(a_job(), 0), now=NOW, node_is_gone=True).writes
    assert mark.body["status"]["phase"] == "Failed"
    (condition,) = mark.body["status"]["conditions"]
    assert (condition["reason"], condition["message"]) == ("DeletionByPodGC", "PodGC: node no longer exists")
    assert removal.grace_seconds == 0
    ended = end_orphan(a_pod(a_job(), 0, "Succeeded"), now=NOW, node_is_gone=True)
    assert [write.method for write in ended.writes] == ["delete"]


def test_a_loop_retries_what_failed_and_looks_again_when_asked() -> None:
    calls: list[str] = []
    done = threading.Event()

    def reconcile(key: str) -> float | None:
        calls.append(key)
        if len(calls) == 1:
            raise ApiError(409, "Conflict", "changed")
        if len(calls) == 2:
            raise ValueError("a bug")
        if len(calls) == 3:
            return 0.01
        done.set()
        return None

    loop = Loop("test", reconcile)
    loop.start()
    loop.add("a")
    assert done.wait(20)
    loop.stop()
    assert calls == ["a"] * 4


def test_a_key_that_waits_is_reconciled_once_and_at_its_earliest_time() -> None:
    calls: list[str] = []
    done = threading.Event()

    def reconcile(key: str) -> None:
        calls.append(key)
        if key == "last":
            done.set()

    loop = Loop("test", reconcile)
    for _ in range(3):
        loop.add("a", after_seconds=100)
        loop.add("a")
    loop.add("never", after_seconds=100)
    loop.add("last")
    loop.start()
    assert done.wait(20)
    loop.stop()
    assert calls == ["a", "last"]


class _Written:
    """A client that keeps what is written."""

    def __init__(self) -> None:
        self.created: list[Obj] = []
        self.patched: list[tuple[str, Obj]] = []

    def create(self, _path: str, obj: Obj) -> Obj:
        self.created.append(obj)
        return obj

    def patch(self, path: str, patch: Obj) -> Obj:
        self.patched.append((path, patch))
        return patch


def test_many_similar_events_become_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_REPEAT_SECONDS", 0.0)
    written = _Written()
    recorder = events.Recorder(cast(ApiClient, written), lambda: NOW)
    job = a_job()
    for number in range(12):
        recorder.record(job, "FailedCreate", f"pod {number}", warning=True)
    recorder.record(job, "FailedCreate", "pod 3", warning=True)
    messages = [event["message"] for event in written.created]
    combined = "(combined from similar events): pod "
    assert messages == [*(f"pod {number}" for number in range(10)), combined + "10"]
    paths = [path.rpartition("/")[2] for path, _ in written.patched]
    assert paths == [written.created[10]["metadata"]["name"], written.created[3]["metadata"]["name"]]
    assert written.patched[0][1]["message"] == combined + "11"
    assert [patch["count"] for _, patch in written.patched] == [2, 2]


def test_a_repeated_event_is_not_reported_each_time() -> None:
    written = _Written()
    recorder = events.Recorder(cast(ApiClient, written), lambda: NOW)
    for _ in range(3):
        recorder.record(a_node("n"), "Gone", "m" * 2000, warning=False)
    (event,) = written.created
    assert written.patched == []
    assert (event["metadata"]["namespace"], len(event["message"]), event["type"]) == ("default", 1024, "Normal")
