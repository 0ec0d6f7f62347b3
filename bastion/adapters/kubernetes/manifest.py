"""The JobSet of a gang: each slice a Job, each host a pod with one container.

Kubernetes restarts nothing: attempts and tries are the bastion's. The first pod that fails fails its Job, and the first
failed Job the JobSet (jobset: pkg/controllers/failure_policy.go). The pod failure policy only explains: its messages
outlive the pod.
"""

from __future__ import annotations

from typing import Any

from bastion.adapters.kubernetes import google_identity, terms
from bastion.adapters.kubernetes.hardware import Needs, needs
from bastion.core.errors import ProvisionerRefused
from bastion.core.model import instance_types
from bastion.core.model.clusters import ClusterSettings
from bastion.core.model.gangs import CapacityModel, GangRequest
from bastion.core.model.pods import PodSettings, Volume

# The emptyDir with the agent, its state and its home. The name is that of the volume, too.
_FOLDER = "/bastion"
_TERMINATION_LOG = "/dev/termination-log"
_AGENT_FILE = f"{_FOLDER}/agent.tar"


def jobset(request: GangRequest, cluster: ClusterSettings, *, bastion: str, startup_script: str) -> dict[str, Any]:
    """Return the JobSet of a request.

    Args:
        bastion: The value of the label that marks its objects as this bastion's.
        startup_script: Run by bash in each container.

    Raises:
        ProvisionerRefused: The cluster cannot have it, or there is no image.
    """
    wanted = needs(request, cluster)
    if not request.image:
        raise ProvisionerRefused(
            "on Kubernetes a job needs an image; name one with --image, or set "
            f"types.{instance_types.table()[request.accelerator_type].resource_type}.pod.image in config/daemon.toml"
        )
    hosts = instance_types.table()[request.accelerator_type].hosts
    labels = {**request.user_labels, terms.LABEL_BASTION: bastion, terms.LABEL_RUN: request.run}
    annotations = {terms.ANNOTATION_TOKEN: request.token}
    if request.valid_until_seconds is not None:
        annotations[terms.ANNOTATION_VALID_UNTIL] = f"{request.valid_until_seconds:.0f}"
    if wanted.exclusive_topology:
        annotations["alpha.jobset.sigs.k8s.io/exclusive-topology"] = wanted.exclusive_topology
    return {
        "apiVersion": terms.JOBSET_API,
        "kind": "JobSet",
        "metadata": {
            "name": request.ref.name,
            "namespace": cluster.namespace,
            "labels": labels,
            "annotations": annotations,
        },
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [terms.SLICE]},
            "replicatedJobs": [
                {
                    "name": terms.SLICE,
                    "replicas": request.ref.num_slices,
                    "template": {
                        "metadata": {"labels": labels},
                        "spec": _job(hosts, labels, _pod(request, cluster, wanted, hosts, startup_script)),
                    },
                }
            ],
        },
    }


def _job(hosts: int, labels: dict[str, str], pod: dict[str, Any]) -> dict[str, Any]:
    annotations = pod.pop("annotations")
    metadata = {"labels": labels, "annotations": annotations} if annotations else {"labels": labels}
    return {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {"containerName": terms.CONTAINER, "operator": "NotIn", "values": [0]},
                },
            ]
        },
        "template": {"metadata": metadata, "spec": pod},
    }


def _pod(
    request: GangRequest, cluster: ClusterSettings, wanted: Needs, hosts: int, startup_script: str
) -> dict[str, Any]:
    """Return the pod's spec, and its annotations beside it."""
    settings = request.place.pod or PodSettings()
    spot = request.place.model is CapacityModel.SPOT
    volumes, mounts, annotations = _volumes(settings)
    container: dict[str, Any] = {
        "name": terms.CONTAINER,
        "image": request.image,
        "command": ["/bin/bash", "-c", _literal(startup_script)],
        "env": _environment(request, cluster, hosts),
        "resources": wanted.resources,
        "terminationMessagePath": _TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        "volumeMounts": mounts,
    }
    if settings.image_pull_policy:
        container["imagePullPolicy"] = settings.image_pull_policy
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": settings.spot_grace_seconds if spot else settings.grace_seconds,
        "automountServiceAccountToken": False,
        "nodeSelector": wanted.node_selector,
        "tolerations": wanted.tolerations,
        "containers": [container],
        "volumes": volumes,
        "annotations": annotations,
    }
    if cluster.service_account:
        spec["serviceAccountName"] = cluster.service_account
    if settings.run_as_user is not None:
        spec["securityContext"] = {"runAsUser": settings.run_as_user, "fsGroup": settings.run_as_user}
    if settings.host_network:
        spec |= {"hostNetwork": True, "dnsPolicy": "ClusterFirstWithHostNet"}
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in settings.image_pull_secrets]
    if cluster.agent_image:
        spec["initContainers"] = [_agent_container(request, cluster)]
    if cluster.workload_identity_provider:
        _identify(spec, cluster.workload_identity_provider)
    return spec


def _identify(spec: dict[str, Any], provider: str) -> None:
    """Give all containers a Google identity."""
    spec["annotations"][google_identity.ANNOTATION] = google_identity.credentials(provider)
    spec["volumes"].append(google_identity.volume(provider))
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        container["env"].append(google_identity.VARIABLE)
        container["volumeMounts"].append(google_identity.MOUNT)


def _environment(request: GangRequest, cluster: ClusterSettings, hosts: int) -> list[dict[str, Any]]:
    gang = request.ref.name
    # Kubernetes puts the value of the first variable into the names.
    job = f"{gang}-{terms.SLICE}-$(BASTION_SLICE_INDEX)"
    variables: list[dict[str, Any]] = [
        _of_pod("BASTION_SLICE_INDEX", f"metadata.labels['{terms.LABEL_JOB_INDEX}']"),
        _of_pod("BASTION_WORKER", f"metadata.labels['{terms.LABEL_COMPLETION_INDEX}']"),
        _of_pod("BASTION_POD_UID", "metadata.uid"),
        _of_pod("BASTION_POD_IP", "status.podIP"),
        {"name": "BASTION_PEERS", "value": ",".join(f"{job}-{worker}.{gang}" for worker in range(hosts))},
        {"name": "BASTION_AGENT", "value": _literal(request.agent_arguments)},
        {"name": "BASTION_AGENT_DIR", "value": f"{_FOLDER}/agents"},
        {"name": "BASTION_STATE_DIR", "value": f"{_FOLDER}/state"},
        {"name": "BASTION_TERMINATION_LOG", "value": _TERMINATION_LOG},
        {"name": "HOME", "value": f"{_FOLDER}/home"},
    ]
    if cluster.agent_image:
        variables.append({"name": "BASTION_AGENT_FILE", "value": _AGENT_FILE})
    return variables


def _of_pod(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _agent_container(request: GangRequest, cluster: ClusterSettings) -> dict[str, Any]:
    """Return the init container that brings the agent's file."""
    return {
        "name": "agent",
        "image": cluster.agent_image,
        "command": ["python3", "-m", "bastion.wiring.bring_agent", _AGENT_FILE],
        "env": [
            {"name": "BASTION_AGENT", "value": _literal(request.agent_arguments)},
            {"name": "BASTION_TERMINATION_LOG", "value": _TERMINATION_LOG},
        ],
        "terminationMessagePath": _TERMINATION_LOG,
        "terminationMessagePolicy": "File",
        "volumeMounts": [{"name": "bastion", "mountPath": _FOLDER}],
    }


def _volumes(settings: PodSettings) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, str]]:
    """Return a pod's volumes, its container's mounts, and the annotations that they need."""
    memory: dict[str, str] = {"medium": "Memory"}
    if settings.shm:
        memory["sizeLimit"] = settings.shm
    volumes: list[dict[str, Any]] = [{"name": "bastion", "emptyDir": {}}, {"name": "shm", "emptyDir": memory}]
    mounts: list[dict[str, Any]] = [
        {"name": "bastion", "mountPath": _FOLDER},
        {"name": "shm", "mountPath": "/dev/shm"},
    ]
    annotations = dict(settings.annotations)
    for number, volume in enumerate(settings.volumes):
        name = f"volume-{number}"
        volumes.append({"name": name, **_source(volume)})
        mount: dict[str, Any] = {"name": name, "mountPath": volume.path}
        mounts.append({**mount, "readOnly": True} if volume.read_only else mount)
        if volume.bucket:
            annotations.setdefault("gke-gcsfuse/volumes", "true")
    return volumes, mounts, annotations


def _source(volume: Volume) -> dict[str, Any]:
    if volume.claim:
        return {"persistentVolumeClaim": {"claimName": volume.claim, "readOnly": volume.read_only}}
    attributes = {"bucketName": volume.bucket}
    if volume.mount_options:
        attributes["mountOptions"] = volume.mount_options
    driver: dict[str, Any] = {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": attributes}
    return {"csi": {**driver, "readOnly": True} if volume.read_only else driver}


def _literal(text: str) -> str:
    """Return the text as Kubernetes expands it to itself (third_party/forked/golang/expansion/expand.go)."""
    return text.replace("$", "$$")
