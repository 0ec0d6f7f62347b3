"""Who goes with a deleted owner, and who stays."""

from __future__ import annotations

import pytest

from bastion.emulators.kubernetes.client.requests import Propagation
from bastion.emulators.kubernetes.controllers.api_objects import JOB_FINALIZER, has_finalizer, owners_of
from tests.support.kubernetes_jobs import JOB_SETS, JOBS, job_set
from tests.support.kubernetes_machine import StartMachine
from tests.support.waiting import until


@pytest.mark.parametrize("propagation", ["Foreground", "Background"])
def test_a_gang_goes_with_its_job_set(start: StartMachine, propagation: Propagation) -> None:
    machine = start("v5litepod-16=2")
    machine.submit(job_set(slices=2))
    until(lambda: len(machine.running()) == 4, 20)
    machine.client.delete(f"{JOB_SETS}/b-one-1", propagation=propagation)
    until(lambda: machine.left() == [], 20)


def test_in_the_foreground_the_job_set_goes_last(start: StartMachine) -> None:
    machine = start("v5litepod-16=2")
    machine.submit(job_set())
    until(lambda: len(machine.running()) == 2, 20)
    versions: dict[str, int] = {}
    watches = {
        path: machine.client.watch(path, resource_version=machine.client.list(path)["metadata"]["resourceVersion"])
        for path in (JOB_SETS, JOBS, "/api/v1/namespaces/default/pods")
    }
    machine.client.delete(f"{JOB_SETS}/b-one-1", propagation="Foreground")
    for path, watch in watches.items():
        last = 2 if path.endswith("pods") else 1
        for event in watch:
            if event["type"] == "DELETED":
                versions[path] = int(event["object"]["metadata"]["resourceVersion"])
                last -= 1
                if not last:
                    break
        watch.release()
    assert versions["/api/v1/namespaces/default/pods"] < versions[JOBS] < versions[JOB_SETS]


def test_orphaned_jobs_run_on_without_their_job_set(start: StartMachine) -> None:
    machine = start("v5litepod-16=1")
    machine.submit(job_set())
    until(lambda: len(machine.running()) == 2, 20)
    machine.client.delete(f"{JOB_SETS}/b-one-1", propagation="Orphan")
    until(lambda: machine.is_gone(f"{JOB_SETS}/b-one-1"), 20)
    assert owners_of(machine.job("b-one-1-slice-0")) == []
    assert len(machine.running()) == 2


def test_pods_of_an_orphaning_job_keep_no_finalizer(start: StartMachine) -> None:
    machine = start("v5litepod-16=1")
    machine.submit(job_set())
    until(lambda: len(machine.running()) == 2, 20)
    machine.client.delete(f"{JOBS}/b-one-1-slice-0", propagation="Orphan")
    # The JobSet makes a new Job; the old one's pods are nobody's.
    until(lambda: [pod for pod in machine.pods() if not owners_of(pod)], 20)
    until(lambda: not any(has_finalizer(pod, JOB_FINALIZER) for pod in machine.pods() if not owners_of(pod)), 20)


def test_an_object_whose_owner_never_was_is_collected(start: StartMachine) -> None:
    machine = start()
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": "11111111-2222-3333-4444-555555555555"}
    path = "/api/v1/namespaces/default/configmaps"
    machine.client.create(
        path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "child", "ownerReferences": [owner]}}
    )
    until(lambda: machine.is_gone(f"{path}/child"), 20)


def test_an_object_with_another_owner_stays(start: StartMachine) -> None:
    machine = start()
    path = "/api/v1/namespaces/default/configmaps"
    owners = []
    for name in ("first", "second"):
        made = machine.client.create(path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
        uid = made["metadata"]["uid"]
        owners.append({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid})
    machine.client.create(
        path, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "child", "ownerReferences": owners}}
    )
    machine.client.delete(f"{path}/first")
    until(lambda: owners_of(machine.client.get(f"{path}/child")) == owners[1:], 20)
