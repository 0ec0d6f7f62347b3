"""The JobSets that the adapter writes: as reviewed, accepted by JobSet's definition and the official client's models.

The startup script of these files is short; its own text is `bastion/agent/startup.sh`.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from bastion.adapters.kubernetes import manifest, seen
from bastion.core.bucket.protocol import AgentArguments
from bastion.core.model import instance_types
from bastion.core.model.clusters import ClusterSettings, place_of
from bastion.core.model.gangs import CapacityModel, GangRef, GangRequest, Place
from bastion.core.model.pods import PodSettings, Toleration, Volume
from bastion.core.model.secrets import PodSecret
from tests.golden.kubernetes import golden_files
from tests.support.kubernetes_schemas import crd_documents, job_set_problems, object_problems

pytest.importorskip("kubernetes", reason="the official client's models: pip install 'bastion[kubernetes]'")

GKE = ClusterSettings(name="west", provider="gke", namespace="training", service_account="bastion-worker")
GENERIC = ClusterSettings(
    name="lab",
    namespace="training",
    agent_image="registry.example/bastion:v1",
    workload_identity_provider="projects/123456789/locations/global/workloadIdentityPools/team-pool/providers/lab",
)
EKS = ClusterSettings(
    name="east",
    provider="eks",
    namespace="training",
    service_account="bastion-worker",
    agent_image="registry.example/bastion:v1",
    workload_identity_provider=GENERIC.workload_identity_provider,
)
# Each setting of `[types.X.pod]` that is not its default.
POD = PodSettings(
    cpu="100",
    memory="300Gi",
    cpu_limit="192",
    memory_limit="600Gi",
    shm="64Gi",
    resources={"hugepages-2Mi": "1Gi", "vpc.amazonaws.com/efa": "4"},
    node_selector={"team": "research"},
    tolerations=(
        Toleration(key="team", operator="Equal", value="research", effect="NoSchedule"),
        Toleration(key="odd"),
    ),
    annotations={"example.com/note": "nightly"},
    volumes=(
        Volume(path="/data", claim="datasets", read_only=True),
        Volume(path="/scratch", claim="scratch"),
        Volume(path="/bucket", bucket="my-data", mount_options="implicit-dirs,file-mode=777"),
        Volume(path="/weights", bucket="my-weights", read_only=True),
        Volume(path="/secrets/wandb", secret="wandb"),
    ),
    secrets={"WANDB_API_KEY": "wandb/api-key"},
    image_pull_policy="Always",
    image_pull_secrets=("registry", "mirror"),
    host_network=True,
    gpu_network=False,
    run_as_user=1000,
    grace_seconds=120,
    spot_grace_seconds=25,
)


CACHED = PodSettings(volumes=(Volume(path="/cache", host_path="/mnt/disks/ssd0"),))
OWN_NETWORKS = {"networking.gke.io/interfaces": '[{"interfaceName":"eth0","network":"default"}]'}
MACHINE = "node.kubernetes.io/instance-type"


def request(accelerator: str, *, slices: int = 1, place: Place | None = None, **changes: Any) -> GangRequest:
    """A request as the daemon makes it."""
    kind = instance_types.table()[accelerator]
    arguments = AgentArguments(
        root="gs://my-bucket/team-bastion",
        bastion="team-bastion",
        job="train",
        run="aaaaaaaaaa-1",
        run_key="ab" * 32,
        num_slices=slices,
        hosts_per_slice=kind.hosts,
        accelerator_type=accelerator,
        devices_per_host=kind.devices_per_host,
        agent="5" * 64,
        gather_hosts=True,
        leave_when_done=True,
        shutdown_seconds=50.0,
    )
    fields: dict[str, Any] = {
        "ref": GangRef(name="b-aaaaaaaaaa-1", zone=place_of("west"), num_slices=slices),
        "bastion": "team-bastion-5f0c5f0c",
        "run": "aaaaaaaaaa-1",
        "token": "0123456789abcdef",
        "accelerator_type": accelerator,
        "place": place or Place(zone=place_of("west")),
        "image": "registry.example/train:v1",
        "agent_arguments": arguments.to_bytes().decode(),
    }
    return GangRequest(**(fields | changes))


def place(model: CapacityModel = CapacityModel.ON_DEMAND, **changes: Any) -> Place:
    return Place(zone=place_of("west"), model=model, **changes)


CASES: dict[str, tuple[GangRequest, ClusterSettings]] = {
    "one-host": (request("v4-8"), GKE),
    "four-hosts-two-slices-spot": (
        request("v5litepod-16", slices=2, place=place(CapacityModel.SPOT), valid_until_seconds=900.0),
        GKE,
    ),
    "reservation": (request("v5p-32", place=place(CapacityModel.RESERVED, reservation="team-v5p")), GKE),
    "flex-start": (request("v6e-16", place=place(CapacityModel.FLEX_START), valid_until_seconds=3600.0), GKE),
    "tpu7x": (
        request(
            "tpu7x-16",
            place=place(pod=PodSettings(node_selector={"cloud.google.com/placement-policy-name": "team-2x2x2"})),
        ),
        GKE,
    ),
    "generic-agent-image": (request("v5litepod-8"), GENERIC),
    "every-pod-setting": (request("v5litepod-16", place=place(pod=POD)), GKE),
    "input-cache": (request("v4-8", place=place(pod=CACHED, input_cache="/cache/inputs")), GKE),
    "job-secrets": (
        request(
            "v4-8",
            secrets=tuple(PodSecret(name=name, key=key) for name, key in (("hub", "a"), ("hub", "b"), ("wandb", "k"))),
        ),
        GKE,
    ),
    "spot-pod-setting": (request("v5litepod-16", place=place(CapacityModel.SPOT, pod=POD)), GKE),
    "user-labels": (request("v4-8", user_labels={"team": "research", "example.com/run": "sweep-7"}), GKE),
    # No tier: flavors add it. Nor a limit to the wait.
    "queue": (
        request(
            "v5litepod-16",
            slices=2,
            place=place(CapacityModel.SPOT, reservation="unused", queue="bastion-research"),
            valid_until_seconds=900.0,
            priority_class="bastion-priority-2-again",
        ),
        GKE,
    ),
    "text-with-dollars": (request("v4-8", agent_arguments='{"job": "costs $(BASTION_WORKER) and $HOME"}'), GKE),
    "gpu-gke-one-host": (request("h100-8", place=place(CapacityModel.SPOT)), GKE),
    "gpu-gke-tcpxo": (request("h100-mega-8", slices=2), GKE),
    "gpu-gke-gib-h200": (request("h200-8", slices=2), GKE),
    "gpu-gke-gib-b200": (request("b200-8", slices=2, place=place(pod=PodSettings(annotations=OWN_NETWORKS))), GKE),
    "gpu-gke-no-network": (request("h200-8", slices=2, place=place(pod=PodSettings(gpu_network=False))), GKE),
    "gpu-eks-one-host-spot": (request("h100-1", place=place(CapacityModel.SPOT)), EKS),
    "gpu-eks-efa-reservation": (
        request("b200-8", slices=2, place=place(CapacityModel.RESERVED, reservation="cr-0123456789abcdef0")),
        EKS,
    ),
    "gpu-eks-efa-other-machine": (
        request("h200-8", slices=2, place=place(pod=PodSettings(node_selector={MACHINE: "p5e.48xlarge"}))),
        EKS,
    ),
    "gpu-generic": (request("a100-4", slices=2), GENERIC),
}
# Written by test_every_type.py.
EVERY_TYPE = ("every-type-gke", "every-type-eks", "every-type-generic")
EACH = pytest.mark.parametrize("name", CASES)


def written(name: str) -> dict[str, Any]:
    asked, cluster = CASES[name]
    return manifest.jobset(asked, cluster, bastion=asked.bastion, startup_script='echo "$BASTION_WORKER" $$')


def pod_of(jobset: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return found


@EACH
def test_the_jobset_is_the_one_that_was_reviewed(name: str) -> None:
    golden_files.check(f"{name}.json", json.dumps(written(name), indent=2) + "\n")


def test_every_file_belongs_to_a_case() -> None:
    assert golden_files.names(".json") == {f"{name}.json" for name in [*CASES, *EVERY_TYPE]}


@EACH
def test_jobsets_definition_accepts_it_strictly(name: str) -> None:
    try:
        crd_documents()
    except FileNotFoundError as absent:
        pytest.skip(str(absent))
    assert job_set_problems(written(name)) == []


@EACH
def test_the_official_client_knows_every_field_of_its_jobs_and_pods(name: str) -> None:
    jobset = written(name)
    template = jobset["spec"]["replicatedJobs"][0]["template"]
    job = {"apiVersion": "batch/v1", "kind": "Job", **template}
    pod = {"apiVersion": "v1", "kind": "Pod", **pod_of(jobset)}
    assert object_problems(job) + object_problems(pod) == []


@EACH
def test_the_adapter_reads_back_what_it_wrote(name: str) -> None:
    asked, _ = CASES[name]
    found = seen.jobset(written(name))
    kind = instance_types.table()[asked.accelerator_type]
    assert (found.name, found.run, found.token) == (asked.ref.name, asked.run, asked.token)
    assert (found.num_slices, found.hosts) == (asked.ref.num_slices, kind.hosts)
    assert found.queue == asked.place.queue
    assert found.valid_until_seconds == (None if found.queue else asked.valid_until_seconds)
    assert found.suspended == bool(found.queue)
    assert found.labels == {**asked.user_labels, "bastion-managed": asked.bastion, "bastion-run": asked.run}


@EACH
def test_every_mount_has_its_volume_and_every_volume_is_mounted(name: str) -> None:
    pod = pod_of(written(name))["spec"]
    volumes = {volume["name"] for volume in pod["volumes"]}
    everywhere: set[str] = set()
    for container in [*pod["containers"], *pod.get("initContainers", ())]:
        mounts = [mount["name"] for mount in container["volumeMounts"]]
        everywhere |= set(mounts)
        assert len({mount["mountPath"] for mount in container["volumeMounts"]}) == len(mounts)
    assert everywhere == volumes


def test_the_case_with_every_pod_setting_has_every_one() -> None:
    default = PodSettings()
    same = [each.name for each in dataclasses.fields(POD) if getattr(POD, each.name) == getattr(default, each.name)]
    assert same == ["image"]  # the daemon has put it into the request


def test_the_rules_of_pod_failures_name_the_only_container() -> None:
    job = written("one-host")["spec"]["replicatedJobs"][0]["template"]["spec"]
    named = [rule["onExitCodes"]["containerName"] for rule in job["podFailurePolicy"]["rules"] if "onExitCodes" in rule]
    assert named == [container["name"] for container in job["template"]["spec"]["containers"]]


def test_in_a_queue_only_the_jobset_belongs_to_it_and_no_pod_that_sigterm_ended_fails_its_job() -> None:
    jobset = written("queue")
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "bastion-research"
    assert jobset["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] == "bastion-priority-2-again"
    template = jobset["spec"]["replicatedJobs"][0]["template"]
    assert "kueue.x-k8s.io" not in json.dumps(template)
    assert "gke-spot" not in json.dumps(template)
    (rule,) = template["spec"]["podFailurePolicy"]["rules"]
    assert "onPodConditions" in rule
