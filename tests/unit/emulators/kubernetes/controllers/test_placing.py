"""Where pods fit, and what is said when they fit nowhere."""

from __future__ import annotations

import pytest

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.exclusive import Denied, admit
from bastion.emulators.kubernetes.controllers.jobset_jobs import build_job
from bastion.emulators.kubernetes.controllers.placing import Board, message
from bastion.emulators.kubernetes.controllers.quantities import milli, requests_of
from bastion.emulators.kubernetes.controllers.selectors import matches, tolerated
from tests.support.kubernetes_objects import a_job, a_job_set, a_node, a_pod

_TPU_TAINT = {"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}


def _pod(index: int = 0, *, selector: dict[str, str] | None = None, node: str = "", phase: str = "Pending") -> Obj:
    pod = a_pod(a_job(selector=selector or {"cloud.google.com/gke-nodepool": "p"}), index, phase)
    if node:
        pod["spec"]["nodeName"] = node
    return pod


def _why(board: Board, pod: Obj) -> tuple[str, str]:
    """What is said of the nodes, and of preemption."""
    choice = board.choose(pod)
    assert isinstance(choice, list)
    nodes, _, preemption = message(choice).partition(" no new claims to deallocate, preemption: ")
    return nodes, preemption


def test_nodes_are_filled_by_name_until_nothing_is_left() -> None:
    board = Board([a_node("n2"), a_node("n1")], [])
    for expected in ("n1", "n2"):
        assert board.choose(_pod()) == expected
        board.place(_pod(), expected)
    assert _why(board, _pod()) == (
        "0/2 nodes are available: 2 Insufficient google.com/tpu.",
        "0/2 nodes are available: 2 No preemption victims found for incoming pod.",
    )


def test_pods_that_have_ended_take_nothing() -> None:
    assert Board([a_node("n")], [_pod(node="n", phase="Succeeded")]).choose(_pod()) == "n"
    assert Board([a_node("n")], [_pod(node="n", phase="Running")]).choose(_pod()) != "n"


def test_every_reason_is_counted() -> None:
    foreign = {"key": "other", "value": "x", "effect": "NoSchedule"}
    cordoned = a_node("n3")
    cordoned["spec"]["unschedulable"] = True
    nodes = [a_node("n1", taints=(_TPU_TAINT, foreign)), a_node("n2", pool="q"), cordoned, a_node("n4", tpus=0)]
    assert _why(Board(nodes, []), _pod()) == (
        "0/4 nodes are available: 1 Insufficient google.com/tpu, 1 node(s) didn't match Pod's node affinity/selector, "
        "1 node(s) had untolerated taint(s), 1 node(s) were unschedulable.",
        "0/4 nodes are available: 4 Preemption is not helpful for scheduling.",
    )


def test_a_node_takes_a_limited_number_of_pods() -> None:
    small = _pod()
    small["spec"]["containers"][0]["resources"] = {}
    board = Board([a_node("n")], [{**small, "spec": {**small["spec"], "nodeName": "n"}}] * 3)
    assert _why(board, small)[0] == "0/1 nodes are available: 1 Too many pods."


def test_no_nodes_have_words_of_their_own() -> None:
    assert message([]) == "no nodes available to schedule pods"


def _member(job_set: str, index: int, siblings: list[Obj], nodes: dict[str, Obj], node: str = "") -> Obj:
    """A pod of an exclusive Job as it is admitted."""
    made = a_job_set(name=job_set, hosts=2)
    job = {**build_job(made, made["spec"]["replicatedJobs"][0], 0)}
    job["metadata"]["uid"] = job_set
    job["spec"]["template"]["spec"]["nodeSelector"] = {}
    pod = a_pod(job, index, "Running" if node else "Pending")
    pod = admit(pod, siblings, nodes.get)
    if node:
        pod["spec"]["nodeName"] = node
    return pod


def test_an_exclusive_job_follows_its_leader_and_keeps_others_away() -> None:
    nodes = {name: a_node(name, pool=name[0], tpus=8) for name in ("a1", "a2", "b1", "b2")}
    with pytest.raises(Denied, match="missing selector: cloud"):
        _member("one", 1, [_member("one", 0, [], nodes)], nodes)
    leader = _member("one", 0, [], nodes, node="b1")
    follower = _member("one", 1, [leader], nodes)
    assert follower["spec"]["nodeSelector"] == {"cloud.google.com/gke-nodepool": "b"}
    board = Board(nodes.values(), [leader])
    assert board.choose(follower) == "b1"
    stranger = _member("two", 0, [], nodes)
    assert board.choose(stranger) == "a1"
    placed = Board(nodes.values(), [leader, {**_member("three", 0, [], nodes, node="a2")}])
    assert _why(placed, stranger)[0] == "0/4 nodes are available: 4 node(s) didn't match pod anti-affinity rules."


def test_a_leader_that_failed_leads_nobody() -> None:
    nodes = {"a1": a_node("a1", pool="a")}
    leader = _member("one", 0, [], nodes, node="a1")
    leader["status"]["phase"] = "Failed"
    with pytest.raises(Denied):
        _member("one", 1, [leader], nodes)


@pytest.mark.parametrize(
    ("quantity", "expected"),
    [
        ("4", 4000),
        (4, 4000),
        ("500m", 500),
        ("1.5", 1500),
        ("2Ki", 2048000),
        ("1k", 1000000),
        ("1e3", 1000000),
        ("1n", 1),
    ],
)
def test_quantities(quantity: str, expected: int) -> None:
    assert milli(quantity) == expected


def test_a_bad_quantity_is_named() -> None:
    with pytest.raises(ValueError, match="'4 GB' is not a valid quantity"):
        milli("4 GB")


def test_init_containers_count_by_the_largest() -> None:
    pod = _pod()
    pod["spec"]["containers"] = [{"name": "a", "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}}] * 2
    pod["spec"]["initContainers"] = [{"name": "b", "resources": {"limits": {"cpu": "3", "memory": "1"}}}]
    assert requests_of(pod) == {"cpu": 3000, "memory": 1000, "pods": 1000}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (None, False),
        ({}, True),
        ({"matchLabels": {"a": "1"}}, True),
        ({"matchLabels": {"a": "2"}}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "b", "operator": "In", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "b", "operator": "NotIn", "values": ["1"]}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, False),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, True),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, False),
    ],
)
def test_label_selectors(selector: Obj | None, *, expected: bool) -> None:
    assert matches(selector, {"a": "1"}) is expected


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "google.com/tpu", "operator": "Exists"}, True),
        ({"key": "google.com/tpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "google.com/tpu", "operator": "Equal", "value": "present", "effect": "NoSchedule"}, True),
        ({"key": "google.com/tpu", "value": "absent"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_tolerations(toleration: Obj, *, expected: bool) -> None:
    assert (tolerated(_TPU_TAINT, [toleration]) is not None) is expected
