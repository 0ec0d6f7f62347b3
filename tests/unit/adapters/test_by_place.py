"""Cloud TPU and clusters side by side: each place reaches its own provisioner, and only that."""

from __future__ import annotations

import pytest

from bastion.adapters.by_place import ByPlace
from bastion.core.errors import ProvisionerUnavailable
from bastion.core.model.gangs import GangRef, GangRequest
from bastion.testing.fake_provisioner import FakeProvisioner
from bastion.testing.manual_clock import ManualClock


def request(name: str, zone: str) -> GangRequest:
    return GangRequest(
        ref=GangRef(name=name, zone=zone),
        bastion="b",
        run="aaaaaaaaaa-1",
        token="t",
        accelerator_type="v4-8",
        agent_arguments="{}",
    )


def test_every_call_goes_to_the_provisioner_of_its_place() -> None:
    clock = ManualClock()
    zones, clusters = FakeProvisioner(clock), {"one": FakeProvisioner(clock), "two": FakeProvisioner(clock)}
    both = ByPlace(zones=zones, cluster=clusters.__getitem__)
    for name, zone in (("b-a-1", "us-central2-b"), ("b-b-1", "k8s:one"), ("b-c-1", "k8s:two")):
        both.create(request(name, zone))
        assert [status.ref.name for status in both.list(zone)] == [name]
        assert both.get(GangRef(name=name, zone=zone)) is not None
        assert both.failure(GangRef(name=name, zone=zone)) is None
    created = [[each.ref.name for each in made.created] for made in (zones, clusters["one"], clusters["two"])]
    assert created == [["b-a-1"], ["b-b-1"], ["b-c-1"]]
    both.delete(GangRef(name="b-c-1", zone="k8s:two"))
    assert (clusters["two"].deleted, clusters["one"].deleted, zones.deleted) == (["b-c-1"], [], [])


def test_a_place_that_does_not_answer_harms_no_other() -> None:
    clock = ManualClock()
    zones, cluster = FakeProvisioner(clock), FakeProvisioner(clock)
    cluster.down = True
    both = ByPlace(zones=zones, cluster=lambda _: cluster)
    with pytest.raises(ProvisionerUnavailable):
        both.list("k8s:one")
    assert list(both.list("us-central2-b")) == []
