"""Many jobs in an emulated Kubernetes cluster with all of its faults on, and the daemon killed at random.

`make test` runs 12 jobs, `make long` 200 ($BASTION_LONG_CLUSTER_JOBS); with the bucket on S3 it is 3 and 50
($BASTION_LONG_S3_JOBS).
"""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the extra `kubernetes` is not installed")

from bastion.core.errors import BastionError
from bastion.emulators.kubernetes.address import KUBECONFIG_FILE, locate
from bastion.emulators.kubernetes.client import ApiClient, Informer, Obj
from bastion.emulators.kubernetes.fault_plan import FAULT_TYPES, FaultPlan, parse_rates
from tests.long import checks
from tests.long.harness import SEED, LongRun, long_run
from tests.long.workload import LongJob, draw_jobs
from tests.support.s3_faulty_proxy import S3FaultyProxy
from tests.support.s3_server import S3Server
from tests.support.waiting import until

JOBS = int(os.environ.get("BASTION_LONG_CLUSTER_JOBS", "12"))
# With the bucket on S3.
S3_JOBS = int(os.environ.get("BASTION_LONG_S3_JOBS", "3"))
LIMIT_SECONDS = 1200.0 if JOBS > 100 or S3_JOBS > 20 else 240.0
POOLS = ("v4-8=3", "v4-16=1", "v4-32=1", "v4-8=4:spot", "v4-16=2:spot", "v4-32=1:spot")
# By tier, in units; less than there are machines, which also have to be of the right size.
QUOTAS = (48, 64)
# With few jobs so often that a run without a lost machine does not come about.
TAKEN = ("preempt:0.1", "node-lost:0.03") if JOBS > 100 else ("preempt:0.2", "node-lost:0.05")
FAULTS = (
    *TAKEN, "out-of-memory:0.03", "image-error:0.1", "no-capacity:0.15", "watch-cut:0.2", "expired:0.2",
    "unavailable:0.01", "throttled:0.01", "lost-reply:0.02",
)  # fmt: skip
FAULT_SECONDS = 4.0
PLAN = FaultPlan(rates=parse_rates(FAULTS), seed=SEED, seconds=FAULT_SECONDS)
KINDS = {
    "jobsets": "/apis/jobset.x-k8s.io/v1alpha2",
    "jobs": "/apis/batch/v1",
    "pods": "/api/v1",
    "services": "/api/v1",
}
SETTINGS = """
[clusters.west]
kubeconfig = "{kubeconfig}"
uid = "{uid}"
agent_image = "{agent_image}"
[defaults.pod]
image = "this-machine"
[types.v4]
zones = ["k8s:west"]
[[tiers]]
model = "on-demand"
[[tiers]]
model = "spot"
"""
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(LIMIT_SECONDS + 240)]


class Machines:
    """What pods took of each node at any time, as the API told it."""

    def __init__(self, client: ApiClient) -> None:
        self.problems: list[str] = []
        self._client = client
        self.most = 0
        self._taken: dict[str, dict[str, int]] = defaultdict(dict)
        self._nodes = Informer(client, "/api/v1/nodes")
        self._pods = Informer(client, "/api/v1/pods", on_change=self._changed)

    def __enter__(self) -> Machines:
        for informer in (self._nodes, self._pods):
            informer.start()
            assert informer.wait_synced(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._pods.stop()
        self._nodes.stop()

    def _changed(self, old: Obj | None, new: Obj | None) -> None:
        pod = new or old
        assert pod is not None
        name, uid = pod["spec"].get("nodeName"), pod["metadata"]["uid"]
        if not name:
            return
        if new is None or (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            self._taken[name].pop(uid, None)
            return
        self._taken[name][uid] = _chips(pod)
        node = self._nodes.get("", name)
        taken = sum(self._taken[name].values())
        if node is not None and taken > (there := int(node["status"]["allocatable"]["google.com/tpu"])):
            # After a list, what appeared is told before what went: the server knows.
            taken = sum(map(_chips, self._at(name)))
            if taken > there:
                self.problems.append(
                    f"{taken} of the {there} chips of {name} were taken: "
                    f"{[each['metadata']['name'] for each in self._at(name)]}"
                )
        self.most = max(self.most, sum(sum(each.values()) for each in self._taken.values()))

    def _at(self, node: str) -> list[Obj]:
        return [
            pod
            for pod in patiently(lambda: self._client.list("/api/v1/pods"))["items"]
            if pod["spec"].get("nodeName") == node
            and (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
        ]


def _chips(pod: Obj) -> int:
    return sum(int(container["resources"]["limits"]["google.com/tpu"]) for container in pod["spec"]["containers"])


@pytest.fixture
def run(tmp_path: Path) -> Iterator[LongRun]:
    with long_run(tmp_path, "cluster") as run:
        yield run


def start(run: LongRun, *, agent_image: str = "") -> ApiClient:
    """Start the cluster and configure the bastion for it; returns a client of it."""
    folder = run.emulator_folder
    run.start_emulator(
        "kubernetes", "--repair_seconds=1", "--image_backoff_seconds=0.3",
        f"--fault_seed={SEED}", f"--fault_seconds={FAULT_SECONDS}", *(f"--fault={fault}" for fault in FAULTS),
        *(f"--pool={pool}" for pool in POOLS),
    )  # fmt: skip
    until(lambda: locate(folder))
    address = locate(folder)
    assert address is not None
    client = ApiClient.connect(address)
    uid = patiently(lambda: client.get("/api/v1/namespaces/kube-system"))["metadata"]["uid"]
    settings = SETTINGS.format(kubeconfig=folder / KUBECONFIG_FILE, uid=uid, agent_image=agent_image)
    run.configure(settings, provision_seconds=30, units=QUOTAS)
    return client


def test_every_job_in_a_cluster_ends_as_it_should_whatever_goes_wrong(run: LongRun) -> None:
    assert parse_rates(FAULTS).keys() == FAULT_TYPES.keys()
    live_and_judge(run, JOBS)


@pytest.fixture
def run_on_s3(s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LongRun]:
    """A bucket on a real S3 server, on the way to which requests fail."""
    proxy = S3FaultyProxy(s3_server.url, seed=SEED)
    proxy.open()
    for name, value in {**s3_server.env, "AWS_ENDPOINT_URL": proxy.url}.items():
        monkeypatch.setenv(name, value)
    with long_run(tmp_path, "s3", root=f"s3://{s3_server.new_bucket()}/long-bastion") as run:
        yield run
    print(f"{proxy.requests} requests to S3")
    proxy.close()


def test_every_job_ends_as_it_should_whatever_goes_wrong_in_the_cluster_and_on_s3(run_on_s3: LongRun) -> None:
    live_and_judge(run_on_s3, S3_JOBS, agent_image="this-machine")


def live_and_judge(run: LongRun, number: int, *, agent_image: str = "") -> None:
    jobs = draw_jobs(number, SEED)
    with contextlib.closing(start(run, agent_image=agent_image)) as client, Machines(client) as machines:
        outcome = run.live(jobs, limit_seconds=LIMIT_SECONDS)
        deadline = time.monotonic() + 60
        while (left := everything(client)) and time.monotonic() < deadline:
            time.sleep(0.1)
    out_of_memory = [job.name for job in jobs if ran_out_of_memory(PLAN, job, outcome.results[job.name])]
    problems = run.judge(jobs, outcome, functools.partial(checks.pod_killed_hard, PLAN), unlucky=out_of_memory)
    print(f"at most {machines.most} chips were taken; out of memory: {out_of_memory}")
    assert machines.problems + problems == []
    assert left == []
    assert "infrastructure" in outcome.causes or number < 20, "nothing went wrong"
    assert outcome.seconds < LIMIT_SECONDS


def ran_out_of_memory(plan: FaultPlan, job: LongJob, result: dict[str, Any]) -> bool:
    """Whether the job failed by the fault that takes its memory."""
    runs = [f"{result['uid']}-{attempt['number']}" for attempt in result["attempts"]]
    return (
        (result["outcome"], result["exit_code"]) == ("failed", 137)
        and "ran out of memory" in result["message"]
        and any(checks.pod_struck(plan, "out-of-memory", run, job) for run in runs)
    )


def everything(client: ApiClient) -> list[str]:
    """All JobSets, Jobs, pods and services of gangs."""
    return [
        f"{kind}/{item['metadata']['name']}"
        for kind, group in KINDS.items()
        for item in patiently(lambda kind=kind, group=group: client.list(f"{group}/namespaces/default/{kind}"))["items"]
        if item["metadata"]["name"] != "kubernetes"
    ]


def patiently(ask: Any) -> Obj:
    """Ask again where a fault hit this test."""
    for _ in range(20):
        with contextlib.suppress(BastionError):
            found: Obj = ask()
            return found
        time.sleep(0.05)
    raise AssertionError("the API server refuses everything")
