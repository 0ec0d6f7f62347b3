"""What differs between an export and a cluster: each field by its name, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from bastion.client.quota.kueue_drift import Difference, differences, read
from tests.support.kueue_exports import LABEL, exported

Json = dict[str, Any]
WANTED = exported("every-rule").objects
QUOTA = "spec.resourceGroups[google.com/tpu].flavors[team-bastion-v4-tier-0].resources[google.com/tpu]"


def present() -> list[Json]:
    """The cluster's objects: as exported, and with what servers and controllers add."""
    found = copy.deepcopy(list(WANTED))
    for each in found:
        each["metadata"] |= {"uid": "x", "resourceVersion": "7", "annotations": {"kubectl.kubernetes.io/x": "y"}}
        each["status"] = {"conditions": []}
    queue = one(found, "ClusterQueue", "bastion-product")["spec"]
    queue |= {"admissionChecksStrategy": {"admissionChecks": [{"name": "dws"}]}, "fairSharing": {"weight": 1}}
    quotas = queue["resourceGroups"][1]["flavors"][0]["resources"]
    quotas[0]["nominalQuota"] = "1M"
    return found


def one(found: list[Json], kind: str, name: str) -> Json:
    return next(each for each in found if (each["kind"], each["metadata"]["name"]) == (kind, name))


def tier(found: list[Json], number: int = 0) -> Json:
    return one(found, "ClusterQueue", "bastion-product")["spec"]["resourceGroups"][0]["flavors"][number]["resources"][0]


def test_what_the_export_does_not_decide_is_no_difference() -> None:
    assert list(differences(WANTED, present(), label=LABEL)) == []


CHANGES: dict[str, tuple[Callable[[list[Json]], object], str]] = {
    "a quota": (
        lambda found: tier(found).update(nominalQuota="63"),
        f"ClusterQueue bastion-product: {QUOTA}.nominalQuota is 63; the quota file says 64",
    ),
    "a queue that is being deleted": (
        lambda found: one(found, "ClusterQueue", "bastion-product")["metadata"].update(
            deletionTimestamp="2026-01-01T00:00:00Z"
        ),
        "ClusterQueue bastion-product: being deleted, once nothing uses it; then apply the export again",
    ),
    "a limit that is gone": (
        lambda found: tier(found).pop("lendingLimit"),
        f"ClusterQueue bastion-product: {QUOTA}.lendingLimit is absent; the quota file says 0",
    ),
    "a limit that was added": (
        lambda found: tier(found).update(borrowingLimit="8"),
        f"ClusterQueue bastion-product: {QUOTA}.borrowingLimit is 8; the quota file says absent",
    ),
    "a stopped queue": (
        lambda found: one(found, "LocalQueue", "bastion-product")["spec"].update(stopPolicy="HoldAndDrain"),
        "LocalQueue bastion-product: spec.stopPolicy is HoldAndDrain; the quota file says None",
    ),
    "a priority": (
        lambda found: one(found, "WorkloadPriorityClass", "bastion-priority-1").update(value=7),
        "WorkloadPriorityClass bastion-priority-1: value is 7; the quota file says 40",
    ),
    "a label": (
        lambda found: one(found, "Cohort", "team-bastion")["metadata"].pop("labels"),
        f"Cohort team-bastion: metadata.labels.bastion-managed is absent; the quota file says {LABEL}",
    ),
    "a missing object": (
        lambda found: found.remove(one(found, "LocalQueue", "bastion-product")),
        "LocalQueue bastion-product: missing",
    ),
    "an object that is left": (
        lambda found: found.append(
            {"kind": "ClusterQueue", "metadata": {"name": "gone", "labels": {"bastion-managed": LABEL}}}
        ),
        "ClusterQueue gone: not in the export; delete it by hand",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_each_change_is_one_line_that_names_the_field_and_both_values(name: str) -> None:
    change, line = CHANGES[name]
    found = present()
    change(found)
    assert [str(each) for each in differences(WANTED, found, label=LABEL)] == [line]


def test_the_order_of_tiers_counts() -> None:
    found = present()
    one(found, "ClusterQueue", "bastion-product")["spec"]["resourceGroups"][0]["flavors"].reverse()
    (line,) = map(str, differences(WANTED, found, label=LABEL))
    assert "the order of spec.resourceGroups[google.com/tpu].flavors is team-bastion-v6e-tier-1, " in line


def test_objects_of_others_are_no_difference() -> None:
    others = [
        {"kind": "ClusterQueue", "metadata": {"name": "others"}},
        {"kind": "ClusterQueue", "metadata": {"name": "east", "labels": {"bastion-managed": "another"}}},
    ]
    assert list(differences(WANTED, [*present(), *others], label=LABEL)) == []


def test_each_kind_is_listed_once_and_only_local_queues_in_the_namespace() -> None:
    asked: list[str] = []

    def items(path: str) -> list[Json]:
        asked.append(path)
        return [{"metadata": {"name": "x"}}]

    assert [each["kind"] for each in read(items, "training")] == list(dict.fromkeys(each["kind"] for each in WANTED))
    assert [path for path in asked if "namespaces" in path] == [
        "/apis/kueue.x-k8s.io/v1beta2/namespaces/training/localqueues"
    ]
    assert Difference(kind="a", name="b", field="c", wanted=1, found=2) != Difference(
        kind="a", name="b", field="c", wanted=1, found=3
    )
