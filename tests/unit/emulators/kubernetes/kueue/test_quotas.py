"""Quota arithmetic (kueue pkg/cache/scheduler/resource_node.go), amounts as Kueue writes them, names of Workloads."""

from __future__ import annotations

import pytest

from bastion.emulators.kubernetes.kueue import amounts
from bastion.emulators.kubernetes.kueue.jobs import workload_name
from bastion.emulators.kubernetes.kueue.quotas import Node
from tests.support.kubernetes_jobs import job_set
from tests.support.kueue_objects import cluster_queue, group, kueue_object, quota
from tests.support.kueue_snapshots import cluster, parsed

_CPU = ("f", "cpu")


def _queue(name: str, nominal: int, borrow: int | None = None, lend: int | None = None) -> dict[str, object]:
    return cluster_queue(name, group(f=quota("cpu", nominal, borrow, lend)), cohort="co")


def test_a_cohort_has_quota_of_its_own_and_what_members_lend() -> None:
    cohort = kueue_object("Cohort", "co", spec={"resourceGroups": [group(f=quota("cpu", 4))]})
    found = cluster([_queue("a", 0), _queue("b", 6, None, 2), _queue("c", 0, 3)], cohorts=[cohort])
    a, b, c = (found.queues[name] for name in "abc")
    assert [each.available(_CPU) for each in (a, b, c)] == [6000, 10000, 3000]
    assert [each.capacity(_CPU) for each in (a, b, c)] == [6000, 10000, 3000]
    a.add({_CPU: 5000})
    assert [each.available(_CPU) for each in (a, b, c)] == [1000, 5000, 1000]
    assert b.own_available(_CPU) == 4000
    assert a.borrows_with(_CPU)


def test_what_exceeds_the_quota_that_is_not_lent_counts_in_the_cohort() -> None:
    found = cluster([_queue("a", 6, None, 2), _queue("b", 6)])
    a = found.queues["a"]
    cohort = a.parent
    assert isinstance(cohort, Node)
    a.add({_CPU: 3000})
    assert cohort.usage.get(_CPU, 0) == 0
    a.add({_CPU: 3000})
    assert cohort.usage[_CPU] == 2000
    a.remove({_CPU: 3000})
    assert (a.usage[_CPU], cohort.usage[_CPU]) == (3000, 0)


def test_too_much_use_leaves_nothing_available() -> None:
    found = cluster([_queue("a", 2, 0), _queue("b", 2)], using=[parsed("w b 0 f/cpu=6")])
    assert found.queues["a"].available(_CPU) == -2000
    assert not found.queues["a"].fits({_CPU: 1})


@pytest.mark.parametrize(
    ("resource", "value", "text"),
    [
        ("cpu", 1500, "1500m"),
        ("cpu", 2000, "2"),
        ("cpu", 2_000_000, "2k"),
        ("memory", 3 << 30, "3Gi"),
        ("memory", 1000, "1k"),
        ("google.com/tpu", 256, "256"),
        ("google.com/tpu", 4000, "4k"),
        ("google.com/tpu", 0, "0"),
    ],
)
def test_amounts_as_kueue_writes_them(resource: str, value: int, text: str) -> None:
    assert amounts.text(resource, value) == text


def test_a_limit_without_a_request_is_one() -> None:
    pod = {
        "containers": [
            {"name": "a", "resources": {"limits": {"cpu": "1500m", "google.com/tpu": "4"}, "requests": {"cpu": 1}}},
            {"name": "b", "resources": {"requests": {"memory": "1Gi"}}},
        ]
    }
    assert amounts.of_pod(pod) == {"cpu": 1000, "google.com/tpu": 4, "memory": 1 << 30}


def test_the_name_of_a_workload() -> None:
    """The same digest of Job, batch, name and uid gives the ef3a1 of workload_names_test.go."""
    made = job_set("b" * 300)
    made["metadata"]["uid"] = "uid"
    name = workload_name(made)
    assert len(name) == 253
    assert name.startswith("jobset-bbb")
    made["metadata"].update(name="one")
    assert workload_name(made) == "jobset-one-c7163"
