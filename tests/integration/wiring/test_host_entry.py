"""Which way leads into a host."""

from __future__ import annotations

import pytest

from bastion.adapters.host_entry.cloud_tpu import CloudTpuHosts
from bastion.adapters.host_entry.this_machine import ThisMachine
from bastion.core.errors import Refused
from bastion.ports import RunningHost
from bastion.wiring.host_entry import host_entry
from bastion.wiring.roots import parse_root

ROOT = parse_root("gs://bucket/team-bastion")


def a_host(*, zone: str = "", on_bastion: bool = False, identity: str = "") -> RunningHost:
    names = {"job": "train", "run": "abcdefghij-3", "marker": "abcdefghij-3.0.none", "node": "b-abcdefghij-3"}
    return RunningHost(**names, worker=0, on_bastion=on_bastion, zone=zone, node_worker=0, identity=identity)


def test_a_zone_is_entered_by_gcloud_and_a_folder_on_this_machine_never() -> None:
    assert isinstance(host_entry(ROOT, a_host(zone="us-central2-b")), CloudTpuHosts)
    assert isinstance(host_entry(parse_root("/tmp/team-bastion"), a_host(zone="us-central2-b")), ThisMachine)


def test_a_pod_is_refused_with_the_lines_to_type() -> None:
    with pytest.raises(Refused, match=r"kubectl -n jobs get pods -l bastion-run=abcdefghij-3.* -n jobs exec -it POD"):
        host_entry(ROOT, a_host(zone="k8s:training", identity="uid/jobs"))


def test_the_bastions_own_vm_is_refused_elsewhere() -> None:
    with pytest.raises(Refused, match="gcloud compute ssh VM"):
        host_entry(ROOT, a_host(on_bastion=True))
