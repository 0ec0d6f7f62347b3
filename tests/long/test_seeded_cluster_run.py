"""Many jobs in an emulated Kubernetes cluster with all of its faults on, and the daemon killed at random.

`make test` runs 20 jobs, `make long` 200 ($BASTION_LONG_CLUSTER_JOBS). $BASTION_LONG_SEED decides what the jobs do and
which names the faults hit. With $BASTION_LONG_DIR everything stays in its folder `cluster` for a look at what happened.
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("kubernetes", reason="the extra `kubernetes` is not installed")

from bastion.core.bucket import keys
from bastion.core.errors import BastionError
from bastion.emulators.kubernetes.address import KUBECONFIG_FILE, KubernetesAddress, locate
from bastion.emulators.kubernetes.client import ApiClient, Informer, Obj
from bastion.emulators.kubernetes.fault_plan import FAULT_TYPES, FaultPlan, parse_rates
from bastion.ports import ObjectStore
from bastion.processes import marked
from bastion.wiring.local import LocalHome, down
from bastion.wiring.roots import open_root
from tests.long import checks
from tests.long.test_seeded_run import cancel_in_time
from tests.long.workload import LongJob, draw_jobs
from tests.support.job_specs import new_spec
from tests.support.waiting import until

JOBS = int(os.environ.get("BASTION_LONG_CLUSTER_JOBS", "20"))
SEED = int(os.environ.get("BASTION_LONG_SEED", "1"))
KEPT = os.environ.get("BASTION_LONG_DIR", "")
LIMIT_SECONDS = 1200.0 if JOBS > 100 else 240.0
POOLS = ("v4-8=3", "v4-16=1", "v4-32=1", "v4-8=4:spot", "v4-16=2:spot", "v4-32=1:spot")
# By tier, in units; less than there are machines, which also have to be of the right size.
QUOTAS = (48, 64)
# With few jobs so often that a run without a lost machine does not come about.
TAKEN = ("preempt:0.1", "node-lost:0.03") if JOBS > 100 else ("preempt:0.25", "node-lost:0.06")
FAULTS = (
    *TAKEN, "out-of-memory:0.03", "image-error:0.1", "no-capacity:0.15", "watch-cut:0.2", "expired:0.2",
    "unavailable:0.01", "throttled:0.01", "lost-reply:0.02",
)  # fmt: skip
FAULT_SECONDS = 4.0
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
[defaults.pod]
image = "this-machine"
[types.v4]
zones = ["k8s:west"]
[[tiers]]
model = "on-demand"
[[tiers]]
model = "spot"
[grace]
eviction_seconds = 2
failure_seconds = 2
[budgets]
infrastructure_attempts = 1000
zone_wait_seconds = 10
provision_seconds = 30
"""
QUOTA = """
[toml-schema]
version = "1"
[[total_resources]]
v4 = {0}
[[total_resources]]
v4 = {1}
[project_membership]
a = ["alice"]
b = ["bob"]
[project_rules]
grace_seconds = 2.0
keep_idle_seconds = 0.0
[project_resources.a]
v4 = 0.5
[project_resources.b]
v4 = 0.5
"""
USERS = {"a": "alice", "b": "bob"}
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(LIMIT_SECONDS + 240)]


class ClusterRun:
    """One bastion, its cluster, and the daemon that is killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.home = LocalHome(folder / "home")
        self.home.run_dir.mkdir(parents=True)
        self.witness = folder / "witness"
        self.witness.mkdir()
        self.root = f"{folder}/bucket/long-bastion"
        self.store: ObjectStore = open_root(self.root)
        self.folder = folder / "cluster"
        self.plan = FaultPlan(rates=parse_rates(FAULTS), seed=SEED, seconds=FAULT_SECONDS)
        self.daemons = 0
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start_cluster(self) -> KubernetesAddress:
        self._start(
            "emulator",
            "-m", "bastion.cli.main", "emulator", "kubernetes", f"--state_dir={self.folder}",
            "--repair_seconds=1", "--image_backoff_seconds=0.3", "--notice_seconds=5", "--grace_seconds=30",
            f"--fault_seed={SEED}", f"--fault_seconds={FAULT_SECONDS}",
            *(f"--pool={pool}" for pool in POOLS), *(f"--fault={fault}" for fault in FAULTS),
        )  # fmt: skip
        until(lambda: locate(self.folder), 60)
        address = locate(self.folder)
        assert address is not None
        return address

    def configure(self, uid: str) -> None:
        settings = SETTINGS.format(kubeconfig=self.folder / KUBECONFIG_FILE, uid=uid)
        self.store.put(keys.DAEMON_SETTINGS, settings.encode(), generation=0)
        self.store.put(keys.PROJECT_QUOTAS, QUOTA.format(*QUOTAS).encode(), generation=0)

    def start_daemon(self) -> None:
        self.daemons += 1
        program = str(Path(__file__).with_name("hurried_daemon.py"))
        self._start("daemon", program, self.root, str(self.home.path), str(self.daemons))

    def kill_daemon(self) -> None:
        if (daemon := self._processes.pop("daemon", None)) is not None:
            daemon.kill()
            daemon.wait()

    def submit(self, job: LongJob) -> None:
        spec = new_spec(
            job.name,
            bastion="long-bastion",
            command=job.command(self.witness),
            user_id=USERS[job.project],
            project_id=job.project,
            now=time.time(),
            instance_type=job.instance_type,
            num_replicas=job.num_replicas,
            max_tries=job.tries,
        )
        self.store.put(keys.active(job.name), spec.to_bytes(), generation=0)

    def cancel(self, job: LongJob) -> None:
        if self.store.head(keys.active(job.name)) is not None:
            with contextlib.suppress(BastionError):
                self.store.put(keys.user_state(job.name), b'{"status": "CANCELLING"}', generation=0)

    def close(self) -> None:
        self.kill_daemon()
        if (emulator := self._processes.pop("emulator", None)) is not None:
            emulator.send_signal(signal.SIGTERM)
            emulator.wait(60)
        down(self.home, say=lambda _: None)

    def _start(self, name: str, *arguments: str) -> None:
        environment = {**os.environ, "BASTION_HOME": str(self.home.path), "BASTION_E2E": f"{os.getpid()}-cluster"}
        with (self.home.run_dir / f"{name}.log").open("ab") as output:
            self._processes[name] = subprocess.Popen(
                [sys.executable, *arguments], stdout=output, stderr=output, env=environment
            )


class Machines:
    """What pods took of each node at any time, as the API told it."""

    def __init__(self, client: ApiClient) -> None:
        self.problems: list[str] = []
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
        self._taken[name][uid] = sum(
            int(container["resources"]["limits"]["google.com/tpu"]) for container in pod["spec"]["containers"]
        )
        node = self._nodes.get("", name)
        taken = sum(self._taken[name].values())
        if node is not None and taken > int(node["status"]["allocatable"]["google.com/tpu"]):
            self.problems.append(f"{taken} chips of {name} were taken")
        self.most = max(self.most, sum(sum(each.values()) for each in self._taken.values()))


@pytest.fixture
def cluster_run(tmp_path: Path) -> Iterator[ClusterRun]:
    folder = Path(KEPT) / "cluster-run" if KEPT else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    run = ClusterRun(folder)
    try:
        yield run
    finally:
        run.close()
    assert [process for process in marked("BASTION_E2E", f"{os.getpid()}-cluster") if process.alive] == []


def test_every_job_in_a_cluster_ends_as_it_should_whatever_goes_wrong(cluster_run: ClusterRun) -> None:
    assert parse_rates(FAULTS).keys() == FAULT_TYPES.keys()
    jobs = draw_jobs(JOBS, SEED)
    with contextlib.ExitStack() as stack:
        client = ApiClient.connect(cluster_run.start_cluster())
        stack.callback(client.close)
        cluster_run.configure(patiently(lambda: client.get("/api/v1/namespaces/kube-system"))["metadata"]["uid"])
        machines = stack.enter_context(Machines(client))
        began = time.monotonic()
        cluster_run.start_daemon()
        for job in jobs:
            cluster_run.submit(job)
        over = threading.Event()
        cancels = threading.Thread(target=cancel_in_time, args=(cluster_run, jobs, over))
        cancels.start()
        try:
            results = follow(cluster_run, jobs, random.Random(SEED))
        finally:
            over.set()
            cancels.join()
        took = time.monotonic() - began
        deadline = time.monotonic() + 60
        while (left := everything(client)) and time.monotonic() < deadline:
            time.sleep(0.1)
    tell_and_check(cluster_run, jobs, results, machines, left=left, took=took)


def tell_and_check(
    run: ClusterRun,
    jobs: list[LongJob],
    results: dict[str, dict[str, Any]],
    machines: Machines,
    *,
    left: list[str],
    took: float,
) -> None:
    hard = functools.partial(checks.pod_killed_hard, run.plan)
    seen, log_problems = checks.logs(run.store, jobs, results, run.witness, hard)
    causes = Counter(each["cause"] for found in results.values() for each in found["attempts"])
    out_of_memory = [job.name for job in jobs if ran_out_of_memory(run.plan, job, results[job.name])]
    print(
        f"{JOBS} jobs with seed {SEED} took {took:.0f} s; the daemon was killed {run.daemons - 1} times; at most "
        f"{machines.most} chips were taken\n"
        f"outcomes: {dict(Counter(found['outcome'] for found in results.values()))}, "
        f"out of memory: {out_of_memory}\n"
        f"attempts: {causes.total()}, ended by {dict(causes)}\nlogs: {dict(seen)}"
    )
    expected = [job for job in jobs if job.name not in out_of_memory]
    problems = [
        *machines.problems,
        *checks.outcomes(expected, results),
        *checks.histories(run.store, jobs),
        *checks.incarnations(run.witness),
        *log_problems,
    ]
    assert problems == []
    assert left == []
    assert "infrastructure" in causes, "nothing went wrong"
    assert took < LIMIT_SECONDS


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


def follow(run: ClusterRun, jobs: list[LongJob], chance: random.Random) -> dict[str, dict[str, Any]]:
    """Wait until every job is over; the daemon is killed now and then."""
    results: dict[str, dict[str, Any]] = {}
    deadline = time.monotonic() + LIMIT_SECONDS
    kill_at = time.monotonic() + chance.uniform(4.0, 10.0)
    while len(results) < len(jobs):
        for job in jobs:
            if job.name not in results and (found := checks.result(run.store, job.name)) is not None:
                results[job.name] = found
        if time.monotonic() > deadline:
            left = [job.name for job in jobs if job.name not in results]
            histories = [run.store.get(keys.job_history(name)).data.decode()[-1500:] for name in left[:5]]
            pytest.fail(f"{len(left)} jobs are not over after {LIMIT_SECONDS:g} s: {histories}")
        if time.monotonic() > kill_at:
            kill_at = time.monotonic() + chance.uniform(10.0, 40.0)
            run.kill_daemon()
            run.start_daemon()
        time.sleep(0.2)
    return results
