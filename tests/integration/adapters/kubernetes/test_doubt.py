"""After a request without an answer, watches that begin anew show soon whether the API server still answers."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the extra `kubernetes` is not installed")

from bastion.adapters.kubernetes.provisioner import KubernetesProvisioner
from bastion.adapters.system_clock import SystemClock
from bastion.core.errors import GangExists, ProvisionerUnavailable
from bastion.core.model.gangs import GangRef, GangRequest, GangState
from bastion.emulators.kubernetes.apiserver.faults import Fault
from bastion.emulators.kubernetes.client import ApiClient
from tests.support.cluster_api import JOBSETS, PODS, Cluster, pod, running
from tests.support.waiting import until

REQUEST = GangRequest(
    ref=GangRef(name="b-aaaaaaaaaa-1"),
    bastion="team",
    run="aaaaaaaaaa-1",
    token="token",
    accelerator_type="v5litepod-16",
    image="registry.example/train:v1",
    agent_arguments="{}",
)


@contextlib.contextmanager
def _provisioner(cluster: Cluster, **options: Any) -> Iterator[KubernetesProvisioner]:
    client = ApiClient.connect(cluster.server.address)
    uid = client.get("/api/v1/namespaces/kube-system")["metadata"]["uid"]
    client.close()
    provisioner = KubernetesProvisioner(
        cluster.settings(uid=uid), bastion="team", startup_script="exit 0", clock=SystemClock(), **options
    )
    try:
        until(lambda: _answers(provisioner), 10)
        yield provisioner
    finally:
        provisioner.close()


def test_a_lost_reply_silences_a_cluster_for_a_moment_only(tmp_path: Path) -> None:
    with running(tmp_path) as cluster, _provisioner(cluster) as provisioner:
        assert provisioner.list() == []
        cluster.faults.append((f"POST {JOBSETS}", Fault(cut_reply=True)))
        with pytest.raises(ProvisionerUnavailable):
            provisioner.create(REQUEST)
        watches = len(cluster.watches())
        until(lambda: _answers(provisioner), 10)  # the server's bookmarks are a minute apart
        assert len(cluster.watches()) >= watches + 2
        assert [gang.ref.name for gang in provisioner.list()] == [REQUEST.ref.name]
        with pytest.raises(GangExists):
            provisioner.create(REQUEST)


def test_a_cluster_that_hangs_costs_what_the_caller_has_and_a_slow_one_answers_in_the_end(tmp_path: Path) -> None:
    with running(tmp_path) as cluster, _provisioner(cluster, call_seconds=0.1) as provisioner:
        slow = Fault(delay_seconds=0.15)  # each of the four requests of a look-up
        cluster.faults += [("kube-system", slow), (f"GET {JOBSETS}/", slow)] * 10
        begun = time.monotonic()
        with pytest.raises(ProvisionerUnavailable, match="did not answer within"):
            provisioner.get(REQUEST.ref)
        assert time.monotonic() - begun < 2.0

        def gone() -> bool:
            with contextlib.suppress(ProvisionerUnavailable):
                return provisioner.get(REQUEST.ref) is None
            return False

        until(gone, 20)
        assert cluster.faults


def test_a_cache_that_lags_does_not_make_a_gang_look_orphaned(tmp_path: Path) -> None:
    with running(tmp_path) as cluster, _provisioner(cluster) as provisioner:
        cluster.faults += [(f"GET {JOBSETS}?", Fault(refuse=503, retry_after=60))] * 100
        cluster.server.cut_watches()
        until(lambda: len(cluster.faults) < 100, 10)  # JobSets are not watched now
        provisioner.create(REQUEST)
        cluster.api().create(PODS, pod("b-aaaaaaaaaa-1-slice-0-0-x"))
        until(provisioner.list, 10)
        (gang,) = provisioner.list()
        assert (gang.state, gang.token) == (GangState.WAITING, REQUEST.token)


def test_a_pod_that_lost_its_jobset_is_asked_about_once(tmp_path: Path) -> None:
    with running(tmp_path) as cluster, _provisioner(cluster) as provisioner:
        cluster.api().create(PODS, pod("b-aaaaaaaaaa-1-slice-0-0-x"))
        until(provisioner.list, 10)
        cluster.requests.clear()
        (gang,) = provisioner.list()
        assert (gang.state, gang.failure and gang.failure.cause) == (GangState.FAILED, "infrastructure")
        assert cluster.requests == []


def _answers(provisioner: KubernetesProvisioner) -> bool:
    try:
        provisioner.list()
    except ProvisionerUnavailable:
        return False
    return True
