"""A quota file as Kueue's objects: they add up to the pool, say what the rules say, and name what Kueue does not do."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import pytest

from bastion.client.quota.kueue_export import Export, choose_cluster, export
from bastion.client.quota.kueue_flavors import flavors
from bastion.core.errors import Refused
from bastion.core.model import daemon_settings, instance_types, kueue
from quota import Policy
from tests.support import kueue_exports
from tests.support.kueue_exports import FILES, LABEL, NAME, SETTINGS, big_policy, exported, policy, settings

PROVIDERS = ("gke", "generic")


def of_kind(found: Export, kind: str) -> list[dict[str, Any]]:
    return [each for each in found.objects if each["kind"] == kind]


def quotas(item: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each flavor of an accelerator, and its quota."""
    for group in item["spec"]["resourceGroups"]:
        for flavor in group["flavors"]:
            for resource in flavor["resources"]:
                if resource["name"] in ("google.com/tpu", "nvidia.com/gpu"):
                    yield flavor["name"], resource


def queue_of(found: Export, project: str) -> dict[str, dict[str, Any]]:
    name = kueue.local_queue("bastion-{project}", project)
    (queue,) = (each for each in of_kind(found, "ClusterQueue") if each["metadata"]["name"] == name)
    return dict(quotas(queue))


def chips(units: int, resource_type: str) -> int:
    size = next(each for each in instance_types.table().values() if each.resource_type == resource_type)
    return units * size.chips // size.amount


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("given", [*(policy(name) for name in FILES), big_policy()], ids=[*FILES, "big"])
def test_the_quotas_of_each_flavor_add_up_to_the_pool_exactly(given: Policy, provider: str) -> None:
    where = settings(provider)
    found = export(given, where, cluster="training", label=LABEL, name=NAME)
    total: dict[str, int] = {}
    for each in (*of_kind(found, "ClusterQueue"), *of_kind(found, "Cohort")):
        for flavor, quota in quotas(each):
            total[flavor] = total.get(flavor, 0) + int(quota["nominalQuota"])
    pool = {
        each.name: chips(given.tiers[each.tier][each.resource_type], each.resource_type)
        for each in flavors(given, where, where.clusters["training"], prefix=NAME)
    }
    assert total == pool
    assert len(pool) == sum(len(tier) for tier in given.tiers)


@pytest.mark.parametrize("given", [*(policy(name) for name in FILES), big_policy()], ids=[*FILES, "big"])
def test_a_projects_quota_is_its_share_rounded_down_in_each_tier(given: Policy) -> None:
    found = export(given, settings(), cluster="training", label=LABEL, name=NAME)
    for project in given.projects:
        queue = queue_of(found, project)
        for resource_type in given.resource_types:
            parts = [int(queue[name]["nominalQuota"]) for name in queue if name.startswith(f"{NAME}-{resource_type}")]
            whole = chips(given.entitlement(project, resource_type), resource_type)
            assert 0 <= whole - sum(parts) <= len(parts) - (len(parts) == 1)


def test_the_limits_of_a_project_are_never_exceeded_and_a_limit_of_lending_never_exceeds_the_quota() -> None:
    found = exported("every-rule")
    research = queue_of(found, "Research")
    v4 = [research[f"{NAME}-v4-tier-{tier}"] for tier in (0, 1)]
    assert sum(int(each["borrowingLimit"]) for each in v4) == 50
    assert sum(int(each["lendingLimit"]) for each in v4) == 16
    assert [research[f"{NAME}-v6e-tier-{tier}"]["borrowingLimit"] for tier in (0, 1)] == ["0", "0"]
    assert "borrowingLimit" not in research[f"{NAME}-v5litepod-tier-0"]
    product = queue_of(found, "product")
    assert [product[f"{NAME}-v4-tier-{tier}"]["lendingLimit"] for tier in (0, 1)] == ["0", "0"]
    for each in of_kind(found, "ClusterQueue"):
        for _, quota in quotas(each):
            assert int(quota.get("lendingLimit", 0)) <= int(quota["nominalQuota"])


def test_the_rules_choose_the_order_and_whether_jobs_start() -> None:
    found = {each["metadata"]["name"]: each["spec"] for each in of_kind(exported("every-rule"), "ClusterQueue")}
    research = found[kueue.local_queue("bastion-{project}", "Research")]
    assert (research["queueingStrategy"], research["stopPolicy"]) == ("StrictFIFO", "None")
    assert (found["bastion-product"]["queueingStrategy"], found["bastion-product"]["stopPolicy"]) == (
        "BestEffortFIFO",
        "Hold",
    )
    assert {spec["preemption"]["reclaimWithinCohort"] for spec in found.values()} == {"Any"}


def test_every_project_has_the_queue_that_its_jobs_name() -> None:
    given = policy("every-rule")
    found = of_kind(exported("every-rule"), "LocalQueue")
    names = [kueue.local_queue("bastion-{project}", project) for project in given.projects]
    assert [each["metadata"]["name"] for each in found] == names
    assert [each["spec"]["clusterQueue"] for each in found] == names
    assert {each["metadata"]["namespace"] for each in found} == {"training"}
    assert all(each["metadata"]["labels"] == {"bastion-managed": LABEL} for each in exported("every-rule").objects)


@pytest.mark.parametrize("project", ["a.b", "A-b", "x" * 63, "x" * 62 + "Y"])
def test_no_project_name_is_another_ones_queue(project: str) -> None:
    queue = kueue.local_queue("bastion-{project}", project)
    assert kueue.local_queue("bastion-{project}", queue.removeprefix("bastion-")) != queue


def test_an_attempt_after_the_first_goes_before_its_equals_and_behind_the_next_priority() -> None:
    found = {each["metadata"]["name"]: each["value"] for each in of_kind(exported("small"), "WorkloadPriorityClass")}
    values = [
        found[kueue.priority_class(priority, again=again)] for priority in range(5, 0, -1) for again in (False, True)
    ]
    assert values == sorted(set(values))
    assert len(found) == len(values)


def test_a_flavor_has_what_its_type_and_tier_add_to_the_pods() -> None:
    found = {each["metadata"]["name"]: each["spec"] for each in of_kind(exported("every-rule"), "ResourceFlavor")}
    assert found[f"{NAME}-v4-tier-0"] == {
        "nodeLabels": {
            "cloud.google.com/gke-tpu-accelerator": "tpu-v4-podslice",
            "cloud.google.com/reservation-name": "team-capacity",
        }
    }
    spot = found[f"{NAME}-v4-tier-1"]
    assert spot["nodeLabels"]["cloud.google.com/gke-spot"] == "true"
    (toleration,) = spot["tolerations"]
    assert toleration["key"] == "cloud.google.com/gke-spot"
    assert "tolerations" not in found[f"{NAME}-v5litepod-tier-2"]
    assert found[f"{NAME}-other"] == {}


def test_whatever_pods_request_is_covered() -> None:
    for queue in of_kind(exported("every-rule"), "ClusterQueue"):
        covered = [name for group in queue["spec"]["resourceGroups"] for name in group["coveredResources"]]
        assert covered == [
            "google.com/tpu", "cpu", "memory", "ephemeral-storage", "example.com/nic", "hugepages-2Mi",
        ]  # fmt: skip


@pytest.mark.parametrize("provider", PROVIDERS)
def test_kueue_can_tell_all_types_of_a_cluster_apart(provider: str) -> None:
    types = instance_types.kubernetes_types()
    given = Policy(tiers=(dict.fromkeys(types, 64),), weights={"a": dict.fromkeys(types, 1.0)}, members={})
    where = settings(provider)
    offered = {each for each in types if each in where.resource_types}
    assert {each.resource_type for each in flavors(given, where, where.clusters["training"], prefix="x")} == offered


def test_every_size_of_a_type_has_as_many_units_a_chip() -> None:
    found: dict[str, set[Fraction]] = {}
    for size in instance_types.table().values():
        found.setdefault(size.resource_type, set()).add(Fraction(size.amount, size.chips))
    assert {resource_type for resource_type, ratios in found.items() if len(ratios) != 1} == set()


# -- what Kueue does not do ---------------------------------------------------------------------------------------


def test_only_what_a_file_uses_is_told() -> None:
    assert exported("small").notes == (
        "users of a project are not balanced: Kueue orders its jobs by priority and age, whatever half_life_hours and "
        "user_weights say",
    )


def test_each_rule_that_kueue_does_not_have_is_told_with_its_projects() -> None:
    told = "\n".join(exported("every-rule").notes)
    for words in (
        "a job runs in one tier (v4, v5litepod, v6e)",
        "borrowing_limit is split between the tiers of a type (project Research)",
        "lending_limit is split between the tiers of a type (project Research, product)",
        "users of a project are not balanced: Kueue orders its jobs by priority and age, whatever half_life_hours and "
        "user_weights say (project product, team.one_two, visitors)",
        "minimum_runtime_minutes has no effect",
        "keep_idle_seconds has no effect: Kueue lends what a project returns at once",
        "grace_seconds has no effect on evictions",
    ):
        assert words in told
    assert "max" not in told, "the daemon keeps these"


def test_units_that_are_no_whole_chip_are_told() -> None:
    told = exported("odd-fractions").notes
    assert told[:2] == (
        "1001 v4 in tier 0 are 500 chips; 1 v4 are left out, because Kueue counts whole chips",
        "333 v4 in tier 1 are 166 chips; 1 v4 are left out, because Kueue counts whole chips",
    )


def test_a_type_in_several_clusters_is_told() -> None:
    table = SETTINGS.format(provider="gke")
    second = table[: table.index("[defaults]")].replace("clusters.training", "clusters.east")
    where = daemon_settings.load((second + table.replace('["k8s:training"]', '["k8s:training", "k8s:east"]')).encode())
    found = export(policy("small"), where, cluster="training", label=LABEL, name=NAME)
    assert "v4 is also in k8s:east: this cluster gets all of its quota" in found.notes[0]
    with pytest.raises(Refused, match="several clusters; choose one with --cluster: east, training"):
        choose_cluster(where, "")


def test_a_type_that_is_left_out_is_told_with_its_places_or_that_it_has_none() -> None:
    table = SETTINGS.format(provider="gke").replace('[defaults]\nzones = ["k8s:training"]\n', "")
    table = table.replace(
        "[types.v6e.pod]",
        '[types.v4]\nzones = ["k8s:training"]\n[types.v6e]\nzones = ["us-a"]\nservice_account = ""\n[types.v6e.pod]',
    )
    units = {"v4": 8, "v5p": 8, "v6e": 8}
    found = Policy(tiers=(units, {"v3": 0}), weights={"a": dict.fromkeys(units, 1.0)}, members={"a": ("a",)})
    notes = export(
        found, daemon_settings.load(b'project = "p"\n' + table.encode()), cluster="training", label=LABEL, name=NAME
    ).notes
    assert notes[:2] == (
        "v5p is left out, because it is not in this cluster: no job of it can run; add zones to [types.v5p] in "
        "config/daemon.toml, or remove it from the quota file",
        "v6e is left out, because it is not in this cluster: its jobs run in us-a",
    )
    assert "left out" not in "".join(notes[2:])


# -- refused ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (('queue = "bastion-{project}"', ""), "the scheduler decides in cluster training, not Kueue"),
        (('"bastion-{project}"', '"everyone"'), 'set queue = "everyone-{project}"'),
        (('["k8s:training"]', '["k8s:training"]\n[types.v4]\nzones = ["k8s:east"]'), "no resource type of the quota"),
    ],
)
def test_an_export_that_would_mean_something_else_is_refused(change: tuple[str, str], said: str) -> None:
    text = SETTINGS.format(provider="gke").replace(*change)
    east = text[: text.index("[defaults]")].replace("clusters.training", "clusters.east")
    where = daemon_settings.load((east + text).encode())
    with pytest.raises(Refused) as refusal:
        export(policy("small"), where, cluster="training", label=LABEL, name=NAME)
    assert said in str(refusal.value)


def test_a_cluster_is_chosen_only_where_kueue_decides() -> None:
    where = settings()
    assert choose_cluster(where, "") == "training"
    with pytest.raises(Refused, match="have no cluster west"):
        choose_cluster(where, "west")
    text = SETTINGS.format(provider="gke").replace('queue = "bastion-{project}"', "")
    with pytest.raises(Refused, match="Kueue decides in no cluster"):
        choose_cluster(daemon_settings.load(text.encode()), "")


def test_more_flavors_than_kueue_has_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bastion.client.quota.kueue_flavors.FLAVORS_MAX", 5)
    with pytest.raises(Refused, match="6 pairs of a resource type and a tier"):
        exported("every-rule")


def test_types_that_labels_do_not_tell_apart_have_taints(monkeypatch: pytest.MonkeyPatch) -> None:
    kueue_exports.without_common_labels(monkeypatch, "v4")
    found = {each["metadata"]["name"]: each["spec"] for each in of_kind(exported("every-rule"), "ResourceFlavor")}
    assert found[f"{NAME}-v4-tier-0"] == {
        "nodeLabels": {"cloud.google.com/reservation-name": "team-capacity"},
        "nodeTaints": [{"key": "bastion-resource-type", "value": "v4", "effect": "NoSchedule"}],
    }
    assert [name for name, spec in found.items() if "nodeTaints" in spec] == [
        f"{NAME}-v4-tier-0",
        f"{NAME}-v4-tier-1",
    ]
