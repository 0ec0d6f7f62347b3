"""Each way in which a gang fails on Kubernetes: whose doing it was, who pays, and what people read.

All jobs run at once on one cluster; each test looks at what became of one of them.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from bastion.core.errors import EXIT_INFRASTRUCTURE, EXIT_REFUSED
from bastion.emulators.kubernetes.client import ApiClient
from bastion.emulators.kubernetes.controllers import node_faults
from bastion.emulators.kubernetes.faults import Faults
from tests.support.cluster_bastion import JOBSETS, PODS, ClusterBastion, ClusterJob, causes, cluster_bastion
from tests.support.waiting import until

pytest.importorskip("kubernetes")
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

# Its first attempt waits to be disturbed.
PATIENT = 'echo up; if [ "$BASTION_ATTEMPT" = 1 ]; then sleep 600; fi; echo again'
# Its first try.
ONE_TRY = 'echo up; if [ "$BASTION_TRY" = 1 ]; then sleep 600; fi; echo again'


def nothing(_job: ClusterJob) -> None:
    """The job fails by itself."""


def out_of_memory(job: ClusterJob) -> None:
    faults(job).out_of_memory(pod_of(job))


def eats_disk(job: ClusterJob) -> None:
    faults(job).evict(pod_of(job), "Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ")


def memory_pressure(job: ClusterJob) -> None:
    faults(job).evict(pod_of(job))


def preempted(job: ClusterJob) -> None:
    faults(job).preempt(node_of(job), grace_seconds=2)


def node_lost(job: ClusterJob) -> None:
    node = node_of(job)
    node_faults.lose_node(client(job), node, now=_now())
    node_faults.remove_node(client(job), node)


def pod_deleted(job: ClusterJob) -> None:
    client(job).delete(f"{PODS}/{pod_of(job)}", grace_seconds=1)


def job_set_deleted(job: ClusterJob) -> None:
    client(job).delete(job_set_of(job))


def job_set_orphans(job: ClusterJob) -> None:
    client(job).delete(job_set_of(job), propagation="Orphan")


def name_is_taken(job: ClusterJob) -> None:
    """Someone else's JobSet has the name of the second attempt's; then somebody deletes a pod of the first one."""
    taken = client(job).get(job_set_of(job))
    name = taken["metadata"]["name"].rpartition("-")[0] + "-2"
    taken["metadata"] = {"name": name, "namespace": "default", "labels": {"team": "other"}}
    # It asks for machines that nobody has.
    taken["spec"]["suspend"] = True
    client(job).create(JOBSETS, {key: value for key, value in taken.items() if key != "status"})
    pod_deleted(job)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A job, what happens to it when it has printed `up`, and what becomes of it.

    Attributes:
        message: What its result says, each part in this order.
        says: What the end of its first attempt says; empty: as `message`.
        or_says: What it says instead if a host's last word came before the cluster's.
    """

    name: str
    command: str = PATIENT
    options: dict[str, Any] = field(default_factory=dict)
    disturb: Callable[[ClusterJob], None] = nothing
    outcome: str = "succeeded"
    exit_code: int = 0
    causes: tuple[str, ...]
    worker: int | None = None
    message: tuple[str, ...] = ()
    says: tuple[str, ...] = ()
    or_says: str = ""


def image(name: str) -> dict[str, Any]:
    return {"image": name}


REFUSED: dict[str, Any] = {"outcome": "refused", "exit_code": EXIT_REFUSED, "causes": ("refused",)}
LOST_ONCE: dict[str, Any] = {"causes": ("infrastructure", "succeeded")}
CASES = (
    Case(
        name="absent",
        options=image("eu.example.test/missing/trainer:1"),
        message=("the image cannot be pulled", "missing/trainer:1: not found; correct --image"),
        **REFUSED,
    ),
    Case(
        name="private",
        options=image("eu.example.test/private/trainer:1"),
        message=("the image cannot be pulled", "authorization failed", "image_pull_secrets"),
        **REFUSED,
    ),
    Case(
        name="bare",
        options=image("bare/trainer"),
        message=("cannot start bash", "no such file", "use an image with bash and Python"),
        **REFUSED,
    ),
    Case(
        name="nopython",
        options=image("nopython/trainer"),
        message=("the image cannot run the agent", "Python 3.10", "use another --image"),
        **REFUSED,
    ),
    Case(
        name="misspelled",
        options=image("Registry/Trainer"),
        message=("InvalidImageName", "must be lowercase; correct --image"),
        **REFUSED,
    ),
    Case(
        name="sixtyfour",
        command="exit 64",
        outcome="failed",
        exit_code=64,
        causes=("failed",),
        worker=0,
        message=("worker 0 exited with code 64",),
    ),
    Case(
        name="setup",
        command="echo never",
        options={"setup": "echo no such package; exit 3"},
        outcome="failed",
        exit_code=3,
        causes=("failed",),
        worker=0,
        message=("SetupFailed",),
    ),
    Case(
        name="one-of-two",
        command='[ "$BASTION_HOST_INDEX" = 1 ] && exit 7; sleep 600',
        options={"instance_type": "tpu-v4-16"},
        outcome="failed",
        exit_code=7,
        causes=("failed",),
        worker=1,
        message=("worker 1 exited with code 7",),
    ),
    Case(
        name="ate-memory",
        disturb=out_of_memory,
        outcome="failed",
        exit_code=137,
        causes=("failed",),
        worker=0,
        message=("worker 0 ran out of memory and was killed (OOMKilled)",),
    ),
    Case(
        name="ate-memory-once",
        command=ONE_TRY,
        options={"max_tries": 2},
        disturb=out_of_memory,
        causes=("failed", "succeeded"),
        says=("worker 0 ran out of memory and was killed (OOMKilled)",),
    ),
    Case(
        name="ate-disk",
        disturb=eats_disk,
        outcome="failed",
        exit_code=137,
        causes=("failed",),
        worker=0,
        message=("worker 0 used up its ephemeral storage: Pod ephemeral local storage usage exceeds",),
    ),
    Case(name="pressed", disturb=memory_pressure, says=("low on resource: memory",), **LOST_ONCE),
    Case(name="preempted", disturb=preempted, says=("imminent node shutdown",), **LOST_ONCE),
    Case(name="node-lost", disturb=node_lost, says=("was lost",), **LOST_ONCE),
    Case(
        name="set-deleted",
        disturb=job_set_deleted,
        says=("its JobSet", "deleted"),
        or_says="the host shut down",
        **LOST_ONCE,
    ),
    Case(name="set-orphans", disturb=job_set_orphans, says=("its JobSet", "deleted"), **LOST_ONCE),
    Case(
        name="name-taken",
        disturb=name_is_taken,
        causes=("infrastructure", "infrastructure", "succeeded"),
        says=("was lost",),
    ),
)


def client(job: ClusterJob) -> ApiClient:
    return job.bastion.cluster.client


def faults(job: ClusterJob) -> Faults:
    return Faults(job.bastion.folder)


def pod_of(job: ClusterJob) -> str:
    return str(job.pods()[0]["metadata"]["name"])


def node_of(job: ClusterJob) -> str:
    return str(job.pods()[0]["spec"]["nodeName"])


def job_set_of(job: ClusterJob) -> str:
    return f"{JOBSETS}/{job.pods()[0]['metadata']['labels']['jobset.sigs.k8s.io/jobset-name']}"


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)


@pytest.fixture(scope="module")
def bastion(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterBastion]:
    with cluster_bastion(tmp_path_factory.mktemp("cluster"), "v4-8=14", "v4-16=1") as bastion:
        yield bastion


@pytest.fixture(scope="module")
def jobs(bastion: ClusterBastion) -> dict[str, ClusterJob]:
    """A job for each case, each disturbed as soon as it prints."""
    jobs = {case.name: bastion.job(case.name, case.command, **case.options) for case in CASES}
    for case in CASES:
        if case.disturb is not nothing:
            jobs[case.name].await_line("up")
            case.disturb(jobs[case.name])
    return jobs


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_failure_has_its_class(jobs: dict[str, ClusterJob], case: Case) -> None:
    result = jobs[case.name].ended()
    assert (result["outcome"], result["exit_code"], tuple(causes(result))) == (
        case.outcome,
        case.exit_code,
        case.causes,
    ), result
    assert result["failed_worker"] == case.worker
    for part in case.message:
        assert part in result["message"]
    first = result["attempts"][0]["message"]
    if not (case.or_says and case.or_says in first):
        for part in case.says:
            assert part in first


def test_someone_elses_job_set_is_named_and_left_alone(jobs: dict[str, ClusterJob]) -> None:
    job = jobs["name-taken"]
    result = job.ended()
    name = f"b-{result['uid']}-2"
    assert f"a JobSet {name} without the label" in result["attempts"][1]["message"]
    found = client(job).get(f"{JOBSETS}/{name}")
    assert "deletionTimestamp" not in found["metadata"]
    assert [each["metadata"]["name"] for each in client(job).list("/apis/batch/v1/namespaces/default/jobs")["items"]]
    client(job).delete(f"{JOBSETS}/{name}")


def test_nothing_is_left_in_the_cluster(jobs: dict[str, ClusterJob], bastion: ClusterBastion) -> None:
    for job in jobs.values():
        job.ended()
    until(lambda: bastion.cluster.everything() == [])


def test_without_capacity_a_job_waits_says_for_what_and_gives_up_in_time(bastion: ClusterBastion) -> None:
    bastion.cluster.cordon()
    try:
        job = bastion.job("patient", "echo never", max_wait_seconds=2)
        until(lambda: (entry := job.entry()) is not None and entry.waiting is not None)
        result = job.ended()
    finally:
        bastion.cluster.uncordon()
    assert (result["outcome"], result["exit_code"]) == ("failed", EXIT_INFRASTRUCTURE)
    assert set(causes(result)) == {"capacity"}
    assert "no capacity for 2s, the limit set by --max_wait: Unschedulable in cluster test" in result["message"]


def test_a_gang_that_stays_half_placed_gives_its_part_back(bastion: ClusterBastion) -> None:
    """Two slices where there is a node pool for one."""
    job = bastion.job("half", "echo never", instance_type="tpu-v4-16", num_replicas=2, max_wait_seconds=4)
    result = job.ended()
    assert (result["outcome"], result["exit_code"]) == ("failed", EXIT_INFRASTRUCTURE)
    assert set(causes(result)) == {"capacity"}
    assert "only some of its hosts had machines for" in result["attempts"][0]["message"]
    assert job.runs() == [], "a command started without its peers"
    until(lambda: bastion.cluster.everything() == [])


def test_a_quota_for_pods_makes_a_job_wait(bastion: ClusterBastion) -> None:
    quotas = "/api/v1/namespaces/default/resourcequotas"
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "pods", "namespace": "default"},
        "spec": {"hard": {"pods": "0"}},
    }
    bastion.cluster.client.create(quotas, quota)
    job = bastion.job("over-quota", "echo here")
    try:
        until(lambda: (entry := job.entry()) is not None and entry.waiting is not None)
        until(lambda: (entry := job.entry()) is not None and "PodQuotaExceeded" in str(entry.waiting))
        assert "PodQuotaExceeded" in bastion.cli("why", "over-quota").stdout
    finally:
        bastion.cluster.client.delete(f"{quotas}/pods")
    assert job.ended()["outcome"] == "succeeded"


def test_a_suspended_job_set_is_refused(bastion: ClusterBastion) -> None:
    bastion.cluster.cordon()
    try:
        job = bastion.job("suspended", "echo never")
        until(job.pods)
        bastion.cluster.client.patch(job_set_of(job), {"spec": {"suspend": True}})
        result = job.ended()
    finally:
        bastion.cluster.uncordon()
    assert (result["outcome"], result["exit_code"], causes(result)) == ("refused", EXIT_REFUSED, ["refused"])
    assert "its JobSet was suspended; if the cluster's Kueue" in result["message"]
    until(lambda: bastion.cluster.everything() == [])
