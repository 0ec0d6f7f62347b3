"""Gangs in queues of Kueue, through the adapter: they wait, are admitted, evicted, deactivated, and end."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("kubernetes", reason="the extra `kubernetes` is not installed")

from bastion.adapters.kubernetes import terms
from bastion.adapters.kubernetes.provisioner import KubernetesProvisioner
from bastion.adapters.kubernetes.workloads import Workloads
from bastion.core.errors import MissingPermission, ProvisionerUnavailable
from bastion.core.model.gangs import GangRef, GangState
from bastion.emulators.kubernetes.apiserver.faults import Fault, forbidden
from bastion.emulators.kubernetes.client import ApiClient, ApiError, Obj
from bastion.emulators.kubernetes.controllers.api_objects import condition_of
from tests.support import cluster_api
from tests.support.emulated_cluster import QUEUE, uid_of
from tests.support.gang_documents import EVICTED, workload
from tests.support.kueue_cluster import KueueCluster, kueue_cluster, provisioner, request
from tests.support.waiting import until

REF = GangRef(name="b-aaaaaaaaaa-1")
WORKLOADS, PODS = terms.collection("workloads", "default"), terms.collection("pods", "default")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[KueueCluster]:
    with kueue_cluster(tmp_path) as made:
        yield made


def test_a_gang_is_evicted_for_an_owner_and_its_next_attempt_goes_before_its_equals(cluster: KueueCluster) -> None:
    first, second = cluster.ask("aaaaaaaaaa-1"), cluster.ask("bbbbbbbbbb-1")
    for ref in (first, second):
        cluster.until_is(ref, GangState.READY)
    third = cluster.ask("cccccccccc-1")
    cluster.until_waits(third)
    until(lambda: cluster.until_waits(third).waiting_message == _reserved(cluster, third)["message"])
    waiting = cluster.until_waits(third)
    assert waiting.kueue is not None
    assert (waiting.kueue.queue, waiting.kueue.admitted) == ("bastion-research", False)

    owner = cluster.ask("dddddddddd-1", "product")
    cluster.until_is(owner, GangState.READY)
    until(lambda: sum(each.state is GangState.LOST for each in cluster.provisioner.list()) == 1, 20)
    lost = next(each for each in cluster.provisioner.list() if each.state is GangState.LOST)
    assert lost.ref in (first, second)
    assert lost.failure is not None and lost.failure.cause == "evicted"
    assert lost.failure.message.startswith("Kueue evicted it: Preempted: Preempted to accommodate a workload")
    asked = cluster.provisioner.get(lost.ref)
    assert asked is not None and (asked.state, asked.failure) == (lost.state, lost.failure)

    cluster.provisioner.delete(lost.ref)
    cluster.until_gone(lost.ref)
    again = cluster.ask(f"{lost.run[:-1]}2", again=True)
    cluster.until_waits(again)
    cluster.finish(owner)
    cluster.until_is(owner, GangState.LOST)
    cluster.until_is(again, GangState.READY)
    cluster.until_is(third, GangState.WAITING)
    cluster.finish(again)
    cluster.until_is(third, GangState.READY)


def _reserved(cluster: KueueCluster, ref: GangRef) -> Obj:
    """As the cluster has it by now."""
    return condition_of(cluster.workload(ref), "QuotaReserved") or {"message": ""}


def test_an_eviction_is_told_although_the_cache_of_workloads_is_behind_and_one_request_suffices(
    cluster: KueueCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = cluster.ask("aaaaaaaaaa-1")
    cluster.until_is(ref, GangState.READY)
    before = Workloads.snapshot
    kept = cluster.provisioner._workloads.snapshot()
    cluster.api.requests.clear()
    monkeypatch.setattr(Workloads, "snapshot", lambda self, jobsets=(): before(self, jobsets) and kept)
    cluster.keep_pods()
    cluster.stop("research", "HoldAndDrain")
    lost = cluster.until_is(ref, GangState.LOST)
    for _ in range(5):
        assert lost.failure is not None and lost.failure.cause == "evicted"
        assert lost.failure.message == "Kueue evicted it: ClusterQueueStopped: The ClusterQueue is stopped"
        lost = cluster.until_is(ref, GangState.LOST)
    cluster.release_pods()
    # Also when the pods are gone, and the JobSet is suspended as before it ran.
    until(lambda: len(cluster.provisioner._pods.snapshot()) == 0, 20)
    lost = cluster.until_is(ref, GangState.LOST)
    assert lost.failure is not None and lost.failure.cause == "evicted"
    asked = [each for each in cluster.api.requests if each.startswith(f"GET {WORKLOADS}") and "job-uid" in each]
    assert len(asked) == 1


def test_a_cluster_that_does_not_tell_of_an_eviction_costs_a_listing_no_more_than_its_limit(
    cluster: KueueCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    for run in ("aaaaaaaaaa-1", "bbbbbbbbbb-1"):
        cluster.until_is(cluster.ask(run), GangState.READY)
    with provisioner(cluster.settings, call_seconds=0.3) as impatient:
        until(lambda: _lists(impatient, 2), 20)
        before = Workloads.snapshot
        kept = impatient._workloads.snapshot()
        monkeypatch.setattr(Workloads, "snapshot", lambda self, jobsets=(): before(self, jobsets) and kept)
        cluster.api.faults += [("job-uid", Fault(delay_seconds=4))] * 10
        cluster.keep_pods()
        cluster.stop("research", "HoldAndDrain")
        took: list[float] = []

        def silent() -> bool:
            began = time.monotonic()
            try:
                impatient.list()
            except ProvisionerUnavailable:
                return True
            finally:
                took.append(time.monotonic() - began)
            return False

        until(silent, 20)
        assert max(took) < 3.0
        cluster.api.faults.clear()
        cluster.release_pods()


def test_a_stopped_queue_is_told_in_kueues_words(cluster: KueueCluster) -> None:
    cluster.stop("research", "Hold")
    ref = cluster.ask("aaaaaaaaaa-1")
    cluster.until_waits(ref, "ClusterQueue bastion-research")
    cluster.stop("research", "None")
    cluster.until_is(ref, GangState.READY)


def test_a_queue_that_does_not_exist_is_told_in_kueues_words(cluster: KueueCluster) -> None:
    ref = cluster.ask("aaaaaaaaaa-1", "strangers")
    cluster.until_waits(ref, "LocalQueue bastion-strangers doesn't exist")


def test_who_was_deactivated_before_it_ran_waits_and_afterwards_is_lost(cluster: KueueCluster) -> None:
    refs = [cluster.ask("aaaaaaaaaa-1"), cluster.ask("bbbbbbbbbb-1")]
    for ref in refs:
        cluster.until_is(ref, GangState.READY)
    waits = cluster.ask("cccccccccc-1")
    cluster.until_waits(waits)
    cluster.deactivate(waits)
    status = cluster.until_waits(waits, "The workload is deactivated")
    assert status.waiting == "Deactivated"
    cluster.deactivate(refs[0])
    lost = cluster.until_is(refs[0], GangState.LOST)
    until(lambda: (found := cluster.status(refs[0])) is not None and found.failure is not None, 20)
    lost = cluster.until_is(refs[0], GangState.LOST)
    assert lost.failure is not None and lost.failure.cause == "infrastructure"
    cluster.until_waits(waits, "The workload is deactivated")


def test_a_gang_whose_workload_was_deleted_under_it_is_lost_and_says_that_kueue_stopped_it(
    cluster: KueueCluster,
) -> None:
    ref = cluster.ask("aaaaaaaaaa-1")
    cluster.until_is(ref, GangState.READY)
    # Else they are soon gone, and Kueue starts the gang again.
    cluster.keep_pods()
    cluster.stop("research", "Hold")
    cluster.people.delete(f"{WORKLOADS}/{cluster.workload(ref)['metadata']['name']}")
    lost = cluster.until_is(ref, GangState.LOST)
    cluster.release_pods()
    assert lost.failure is not None and lost.failure.cause == "infrastructure"
    assert lost.failure.message.startswith(
        "Kueue stopped it, because it has no admitted Workload (deleted, replaced, or resumed by hand): pod b-"
    )


def test_a_gang_whose_pods_fail_is_lost_for_that_and_not_evicted(cluster: KueueCluster) -> None:
    ref = cluster.ask("aaaaaaaaaa-1")
    cluster.until_is(ref, GangState.READY)
    (pod,) = cluster.people.list(PODS)["items"]
    cluster.kubelet.finish(pod, 1)
    # The Job may be known to have failed before its pod is.
    until(lambda: "ended with code 1" in (lost := cluster.until_is(ref, GangState.LOST)).message or lost.failure, 20)
    assert cluster.until_is(ref, GangState.LOST).failure is None


def test_a_gang_waits_on_without_our_annotations_and_ends_for_another_attempt_without_its_label(
    cluster: KueueCluster,
) -> None:
    cluster.stop("research", "Hold")
    ref = cluster.ask("aaaaaaaaaa-1")
    told = cluster.until_waits(ref)
    path = f"{terms.collection('jobsets', 'default')}/{ref.name}"
    jobs = cluster.people.get(path)["spec"]["replicatedJobs"]
    del jobs[0]["template"]["metadata"]["annotations"]
    with pytest.raises(ApiError, match="field is immutable"):
        cluster.people.patch(path, {"spec": {"replicatedJobs": jobs}})
    cluster.people.patch(path, {"metadata": {"annotations": None}})
    found = cluster.provisioner.get(ref)
    assert found is not None and (found.state, found.waiting_message) == (told.state, told.waiting_message)
    cluster.people.patch(path, {"metadata": {"labels": {terms.LABEL_QUEUE: None}}})
    left = cluster.until_is(ref, GangState.FAILED)
    assert left.failure is not None and left.failure.cause == "infrastructure"
    assert "removed the label kueue.x-k8s.io/queue-name=bastion-research from its JobSet" in left.failure.message


def test_a_gang_in_a_queue_is_followed_although_the_cluster_has_no_queue_any_more(cluster: KueueCluster) -> None:
    cluster.stop("research", "Hold")
    ref = cluster.ask("aaaaaaaaaa-1")
    told = cluster.until_waits(ref)
    with provisioner(dataclasses.replace(cluster.settings, queue="")) as other:
        assert list(other.list()) == [told]


# -- clusters without Kueue, or without permission ----------------------------------------------------------------


def test_a_cluster_without_kueue_is_silent_and_says_what_to_install(tmp_path: Path) -> None:
    with cluster_api.running(tmp_path) as api:
        people = ApiClient.connect(api.server.address)
        uid = uid_of(people)
        people.close()
        with (
            provisioner(api.settings(uid=uid, queue=QUEUE)) as made,
            pytest.raises(ProvisionerUnavailable, match=r"install Kueue: https://kueue.sigs"),
        ):
            made.list()
        before = len(api.requests)
        with provisioner(api.settings(uid=uid)) as made:
            assert made.list() == []
            made.create(request(REF, place=dataclasses.replace(request(REF).place, queue="")))
            until(lambda: len(made.list()) == 1)
            assert made.get(REF) is not None
        assert [each for each in api.requests[before:] if "kueue" in each] == []


def test_a_gang_that_waits_in_a_queue_ends_once_settings_and_cluster_have_kueue_no_more(tmp_path: Path) -> None:
    with (
        cluster_api.running(tmp_path, kueue=True) as api,
        contextlib.closing(ApiClient.connect(api.server.address)) as people,
        provisioner(api.settings(uid=(uid := uid_of(people)), queue=QUEUE)) as made,
    ):
        made.create(request(REF))
    with cluster_api.running(tmp_path) as api:
        with (
            provisioner(api.settings(uid=uid, queue=QUEUE)) as made,
            pytest.raises(
                ProvisionerUnavailable, match=r"`bastion local up --kubernetes --kueue`\), or remove `queue`"
            ),
        ):
            made.list()
        with provisioner(api.settings(uid=uid), call_seconds=1.0) as made:
            for found in (*made.list(), made.get(REF)):
                assert found is not None and found.failure is not None
                assert (found.state, found.failure.cause) == (GangState.FAILED, "infrastructure")
                assert "the scheduler decides on the next attempt" in found.failure.message
            api.faults.append((f"GET {terms.collection('jobsets', 'default')}/", Fault(delay_seconds=4)))
            with pytest.raises(ProvisionerUnavailable):
                made.get(REF)
            until(lambda: _lists(made), 20)  # the type that is missing does not keep the place silent
            made.delete(REF)


def _lists(made: KubernetesProvisioner, gangs: int = 1) -> bool:
    try:
        return len(made.list()) == gangs
    except ProvisionerUnavailable:
        return False


def test_a_missing_permission_names_what_to_grant(tmp_path: Path) -> None:
    with cluster_api.running(tmp_path, kueue=True) as api:
        people = ApiClient.connect(api.server.address)
        uid = uid_of(people)
        people.close()
        api.faults += [(f"GET {WORKLOADS}", forbidden("list", "workloads", "kueue.x-k8s.io"))] * 50
        with (
            provisioner(api.settings(uid=uid, queue=QUEUE)) as made,
            pytest.raises(MissingPermission, match=r"list workloads.kueue.x-k8s.io in namespace default"),
        ):
            made.list()


def test_the_workload_of_an_earlier_jobset_of_that_name_says_nothing(tmp_path: Path) -> None:
    with cluster_api.running(tmp_path, kueue=True) as api:
        people = ApiClient.connect(api.server.address)
        try:
            with provisioner(api.settings(uid=uid_of(people), queue=QUEUE)) as made:
                made.create(request(REF))
                old = {"apiVersion": terms.KUEUE_API, "kind": "Workload", **workload(EVICTED)}
                old["spec"]["podSets"] = [{"name": "slice", "count": 1, "template": {"spec": {"containers": []}}}]
                old["metadata"]["ownerReferences"][0]["name"] = REF.name
                status = old.pop("status")
                old = people.create(WORKLOADS, old)
                people.request("PUT", f"{WORKLOADS}/{old['metadata']['name']}/status", {**old, "status": status})
                until(lambda: bool(made.list()) and len(made._workloads.snapshot()) == 1)
                for found in (*made.list(), made.get(REF)):
                    assert found is not None
                    assert (found.state, found.waiting) == (GangState.WAITING, "NoWorkload")
        finally:
            people.close()
