"""Machines that are reclaimed, fall silent or vanish, and what pods, Jobs and gangs say then."""

from __future__ import annotations

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    JOB,
    JOB_SET,
    NODE,
    condition_of,
    is_deleting,
    name_of,
    node_name_of,
)
from bastion.emulators.kubernetes.controllers.cluster import utc_now
from bastion.emulators.kubernetes.controllers.node_faults import (
    UNREACHABLE_TAINT,
    lose_node,
    preempt_node,
    remove_node,
)
from tests.support.kubernetes_jobs import job_set
from tests.support.kubernetes_machine import Machine, StartMachine
from tests.support.waiting import until

_JOB = JOB.path("default", "b-one-1-slice-0")


def _gang(machine: Machine, *, tolerated_seconds: int | None = None) -> Obj:
    """Start a gang of two hosts, which stay that long on a machine that does not answer; return the second."""
    made = job_set()
    if tolerated_seconds is not None:
        pod = made["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
        toleration = {"key": UNREACHABLE_TAINT, "operator": "Exists", "effect": "NoExecute"}
        pod["tolerations"].append({**toleration, "tolerationSeconds": tolerated_seconds})
    machine.submit(made)
    until(lambda: len(machine.running()) == 2, 20)
    return machine.running()[1]


def _fails_by(machine: Machine, pod: Obj) -> None:
    failed = machine.until_condition(_JOB, "FailureTarget")
    message = f"Pod default/{name_of(pod)} has condition DisruptionTarget matching FailJob rule at index 0"
    assert failed["message"] == message
    machine.until_condition(JOB_SET.path("default", "b-one-1"), "Failed")


def test_a_preempted_machine_fails_its_gang_and_comes_back(start: StartMachine) -> None:
    machine = start("v5litepod-16=1")
    pod = _gang(machine)
    preempt_node(machine.client, node_name_of(pod), now=utc_now(), grace_seconds=15)
    _fails_by(machine, pod)
    until(lambda: node_name_of(pod) not in [name_of(node) for node in machine.nodes()], 20)
    until(lambda: len(machine.nodes()) == 4, 20)


def test_a_lost_machine_keeps_its_pod_terminating_until_it_is_removed(start: StartMachine) -> None:
    machine = start("v5litepod-16=1")
    pod = _gang(machine, tolerated_seconds=0)
    lose_node(machine.client, node_name_of(pod), now=utc_now())

    def evicted() -> Obj | None:
        seen = next((each for each in machine.pods() if name_of(each) == name_of(pod)), None)
        assert seen is not None
        return seen if is_deleting(seen) else None

    until(evicted, 20)
    seen = evicted()
    assert seen is not None
    disrupted = condition_of(seen, "DisruptionTarget")
    assert disrupted is not None
    assert disrupted["reason"] == "DeletionByTaintManager"
    assert seen["status"]["phase"] == "Running"
    assert condition_of(machine.job("b-one-1-slice-0"), "FailureTarget") is None
    remove_node(machine.client, node_name_of(pod))
    _fails_by(machine, pod)


def test_a_pod_stays_on_a_lost_machine_while_it_tolerates_it(start: StartMachine) -> None:
    machine = start("v5litepod-16=1")
    pod = _gang(machine)
    lose_node(machine.client, node_name_of(pod), now=utc_now())
    until(lambda: (condition_of(machine.pods()[1], "Ready") or {})["status"] == "False", 20)
    assert not is_deleting(machine.pods()[1])


def test_pods_of_a_machine_that_vanishes_are_failed_by_the_cluster(start: StartMachine) -> None:
    machine = start("v5litepod-16=1")
    pod = _gang(machine)
    remove_node(machine.client, node_name_of(pod))
    _fails_by(machine, pod)


def test_a_held_pool_makes_no_machines(start: StartMachine) -> None:
    machine = start("v5litepod-16=1", repair_seconds=0.0)
    until(lambda: len(machine.nodes()) == 4, 20)
    pool = machine.controllers.node_pools.names[0]
    machine.controllers.node_pools.hold(pool)
    remove_node(machine.client, name_of(machine.nodes()[0]))
    until(lambda: len(machine.controllers.cluster.informer(NODE).items()) == 3, 20)
    machine.submit(job_set(hosts=4))
    until(lambda: len(machine.running()) == 3, 20)
    assert len(machine.nodes()) == 3
    machine.controllers.node_pools.hold(pool, held=False)
    until(lambda: len(machine.running()) == 4, 20)
