"""Which requests and pulls faults hit: by file, and by seed."""

from __future__ import annotations

from pathlib import Path

import pytest

from bastion.core.errors import Refused
from bastion.emulators.kubernetes.fault_plan import FAULT_TYPES, FaultPlan, parse_rates
from bastion.emulators.kubernetes.faults import Faults
from bastion.emulators.kubernetes.kubelet.pulls import Pulls
from bastion.emulators.kubernetes.request_faults import RequestFaults
from bastion.emulators.kubernetes.seeded_faults import pod_name

PODS = "/api/v1/namespaces/default/pods"
POD = {"spec": {"containers": [{"name": "host", "image": "python:3.12"}]}}


def test_rates_are_parsed_and_an_unknown_fault_is_refused_with_those_that_exist() -> None:
    assert parse_rates(["preempt:0.2", "lost-reply:1"]) == {"preempt": 0.2, "lost-reply": 1.0}
    for bad in ("stockout:0.1", "preempt", "preempt:2", "preempt:x"):
        with pytest.raises(Refused, match="node-lost"):
            parse_rates([bad])
    assert parse_rates(f"{name}:0.5" for name in FAULT_TYPES).keys() == FAULT_TYPES.keys()


def test_a_file_hits_the_next_request_with_its_method_only(tmp_path: Path) -> None:
    faults, files = RequestFaults(tmp_path, FaultPlan()), Faults(tmp_path)
    assert faults("POST", PODS) is None
    files.refuse("POST", 429)
    files.lose_reply("DELETE")
    assert faults("GET", PODS) is None
    hit = faults("POST", PODS)
    assert hit is not None and (hit.refuse, hit.cut_reply) == (429, False)
    lost = faults("DELETE", PODS)
    assert lost is not None and (lost.refuse, lost.cut_reply) == (0, True)
    assert [faults(method, PODS) for method in ("POST", "DELETE")] == [None, None]


def test_a_file_without_a_code_refuses_with_503(tmp_path: Path) -> None:
    (tmp_path / "faults").mkdir()
    (tmp_path / "faults" / "refuse.PATCH").touch()
    hit = RequestFaults(tmp_path, FaultPlan())("PATCH", PODS)
    assert hit is not None and hit.refuse == 503


def test_the_seed_alone_decides_which_requests_are_hit(tmp_path: Path) -> None:
    rates = {"unavailable": 0.2, "throttled": 0.2, "lost-reply": 0.2}

    def hits(seed: int) -> list[object]:
        faults = RequestFaults(tmp_path, FaultPlan(rates=rates, seed=seed))
        return [faults("POST", f"{PODS}?limit={number}") for number in range(100)]

    assert hits(1) == hits(1)
    assert hits(1) != hits(2)
    found = [hit for hit in hits(1) if hit is not None]
    assert 20 < len(found) < 80


def test_a_reply_to_a_read_is_never_lost(tmp_path: Path) -> None:
    faults = RequestFaults(tmp_path, FaultPlan(rates={"lost-reply": 1.0}))
    assert faults("GET", PODS) is None
    assert faults("PUT", PODS) is not None


def test_a_first_pull_that_fails_is_tried_again_and_works() -> None:
    pulls = Pulls(10.0)
    assert "i/o timeout" in pulls.waiting(POD, 0.0, first_fails=True)["host"][1]
    assert pulls.waiting(POD, 15.0, first_fails=True)["host"][0] == "ImagePullBackOff"
    assert pulls.waiting(POD, 20.0, first_fails=True) == {}
    assert Pulls(10.0).waiting(POD, 0.0) == {}


def test_an_image_that_does_not_exist_never_works() -> None:
    pulls, pod = Pulls(1.0), {"spec": {"containers": [{"name": "host", "image": "missing/x"}]}}
    for now in range(0, 1000, 50):
        assert "not found" in pulls.waiting(pod, float(now), first_fails=True)["host"][1]


def test_pods_are_named_by_their_job_and_index() -> None:
    labels = {"batch.kubernetes.io/job-name": "b-x-slice-0", "batch.kubernetes.io/job-completion-index": "3"}
    assert pod_name({"metadata": {"labels": labels}}) == "b-x-slice-0-3"
    assert pod_name({"metadata": {}}) == ""
