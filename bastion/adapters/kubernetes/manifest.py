"""The JobSet of a gang: each slice a Job, each host a pod with one container.

Kubernetes restarts nothing: attempts and tries are the bastion's. The first pod that fails fails its Job, and the first
failed Job the JobSet (jobset: pkg/controllers/failure_policy.go). The pod failure policy only explains: its messages
outlive the pod.

In a queue of Kueue the JobSet starts suspended, and is suspended again when Kueue evicts it. The Job controller then
deletes the pods, and they do not count as failures. But its pod failure policy looks at each pod that is still there,
of suspended Jobs, too (kubernetes: pkg/controller/job/job_controller.go, deleteJobPods and getFailJobMessage): a rule
about exit codes would match those that SIGTERM ended, and an evicted Workload would be a failed one. So there the
policy has no such rule; a pod that fails by itself is one more than the back-off limit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bastion.adapters.kubernetes import google_identity, terms
from bastion.adapters.kubernetes.hardware import Needs, needs
from bastion.core.errors import ProvisionerRefused
from bastion.core.model import instance_types
from bastion.core.model.clusters import ClusterSettings
from bastion.core.model.gangs import CapacityModel, GangRequest
from bastion.core.model.gpu_networks import GpuNetwork
from bastion.core.model.pods import PodSettings, Volume
from bastion.core.model.secrets import PodSecret

# The emptyDir with the agent, its state and its home. The name is that of the volume, too.
_FOLDER = "/bastion"
_TERMINATION_LOG = "/dev/termination-log"
# Keys of the job's Secrets, mounted for it alone.
_SECRETS = "job-secrets"
_SECRETS_FOLDER = "/bastion-secrets"
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
    in_queue: dict[str, str] = {}  # labels of the JobSet only: what is below belongs to its Workload
    lasting: dict[str, Any] = {"labels": labels}
    if request.place.queue:
        in_queue[terms.LABEL_QUEUE] = request.place.queue
        lasting["annotations"] = {terms.ANNOTATION_QUEUE: request.place.queue}
        if request.priority_class:
            in_queue[terms.LABEL_PRIORITY_CLASS] = request.priority_class
    elif request.valid_until_seconds is not None:
        annotations[terms.ANNOTATION_VALID_UNTIL] = f"{request.valid_until_seconds:.0f}"
    if wanted.exclusive_topology:
        annotations["alpha.jobset.sigs.k8s.io/exclusive-topology"] = wanted.exclusive_topology
    return {
        "apiVersion": terms.JOBSET_API,
        "kind": "JobSet",
        "metadata": {
            "name": request.ref.name,
            "namespace": cluster.namespace,
            "labels": {**labels, **in_queue},
            "annotations": annotations,
        },
        "spec": {
            **({"suspend": True} if in_queue else {}),
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "successPolicy": {"operator": "All", "targetReplicatedJobs": [terms.SLICE]},
            "replicatedJobs": [
                {
                    "name": terms.SLICE,
                    "replicas": request.ref.num_slices,
                    "template": {
                        "metadata": lasting,
                        "spec": _job(request, hosts, labels, _pod(request, cluster, wanted, hosts, startup_script)),
                    },
                }
            ],
        },
    }


def _job(request: GangRequest, hosts: int, labels: dict[str, str], pod: dict[str, Any]) -> dict[str, Any]:
    annotations = pod.pop("annotations")
    metadata = {"labels": labels, "annotations": annotations} if annotations else {"labels": labels}
    rules: list[dict[str, Any]] = [
        {"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    ]
    if not request.place.queue:
        codes = {"containerName": terms.CONTAINER, "operator": "NotIn", "values": [0]}
        rules.append({"action": "FailJob", "onExitCodes": codes})
    return {
        "parallelism": hosts,
        "completions": hosts,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {"rules": rules},
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
        # Variables of the namespace's services, such as X_PORT, would reach the command.
        "enableServiceLinks": False,
        "nodeSelector": wanted.node_selector,
        "tolerations": wanted.tolerations,
        "containers": [container],
        "volumes": volumes,
        "annotations": annotations,
    }
    account = request.place.pod_service_account or cluster.service_account
    if account:
        spec["serviceAccountName"] = account
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
    _connect(spec, wanted.network)
    if request.secrets:
        _mount_secrets(spec, request.secrets)
    return spec


def _mount_secrets(spec: dict[str, Any], wanted: Sequence[PodSecret]) -> None:
    """Mount the keys of Secrets that the job names, as files that only the agent's user reads (and its group, if the
    pod has an fsGroup).

    Optional: else a missing one keeps the pod in ContainerCreating for ever, and only events say why.
    """
    items: dict[str, list[dict[str, str]]] = {}
    for each in wanted:
        items.setdefault(each.name, []).append({"key": each.key, "path": f"{each.name}/{each.key}"})
    sources = [{"secret": {"name": name, "optional": True, "items": keys}} for name, keys in items.items()]
    spec["volumes"].append({"name": _SECRETS, "projected": {"defaultMode": 0o400, "sources": sources}})
    container = spec["containers"][0]
    container["volumeMounts"].append({"name": _SECRETS, "mountPath": _SECRETS_FOLDER, "readOnly": True})
    container["env"].append({"name": "BASTION_SECRETS_DIR", "value": _SECRETS_FOLDER})


def _connect(spec: dict[str, Any], network: GpuNetwork) -> None:
    """Give the pod the network of its machine; annotations of the settings win."""
    spec["annotations"] = {**network.annotations, **spec["annotations"]}
    container = spec["containers"][0]
    container["env"] += [{"name": name, "value": value} for name, value in network.env.items()]
    container["volumeMounts"] += _mounts(network.mounts)
    spec["volumes"] += [{"name": name, "hostPath": {"path": path}} for name, path in network.host_paths.items()]
    for sidecar in network.sidecars:
        # Kubernetes ends containers that restart always after the others, and does not wait for them.
        spec.setdefault("initContainers", []).append(
            {
                "name": sidecar.name,
                "image": sidecar.image,
                "restartPolicy": "Always",
                "command": sidecar.command,
                "env": [{"name": name, "value": value} for name, value in sidecar.env.items()],
                "securityContext": {"capabilities": {"add": sidecar.capabilities}},
                "volumeMounts": _mounts(sidecar.mounts),
            }
        )


def _mounts(mounts: Mapping[str, str]) -> list[dict[str, Any]]:
    return [{"name": name, "mountPath": path} for name, path in mounts.items()]


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
        _of_pod("BASTION_POD_NAME", "metadata.name"),
        _of_pod("BASTION_POD_UID", "metadata.uid"),
        _of_pod("BASTION_POD_IP", "status.podIP"),
        _of_pod("BASTION_NODE_NAME", "spec.nodeName"),
        {"name": "BASTION_PEERS", "value": ",".join(f"{job}-{worker}.{gang}" for worker in range(hosts))},
        {"name": "BASTION_AGENT", "value": _literal(request.agent_arguments)},
        {"name": "BASTION_AGENT_DIR", "value": f"{_FOLDER}/agents"},
        {"name": "BASTION_STATE_DIR", "value": f"{_FOLDER}/state"},
        {"name": "BASTION_TERMINATION_LOG", "value": _TERMINATION_LOG},
        {"name": "HOME", "value": f"{_FOLDER}/home"},
    ]
    if request.place.input_cache:
        variables.append({"name": "BASTION_INPUT_CACHE", "value": _literal(request.place.input_cache)})
    if cluster.agent_image:
        variables.append({"name": "BASTION_AGENT_FILE", "value": _AGENT_FILE})
    secrets = request.place.pod.secrets if request.place.pod else {}
    if secrets:
        variables.append({"name": "BASTION_SECRET_VARIABLES", "value": ",".join(sorted(secrets))})
    return [*variables, *(_of_secret(name, where) for name, where in sorted(secrets.items()))]


def _of_pod(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _of_secret(name: str, where: str) -> dict[str, Any]:
    # Optional: only the jobs that ask for it fail, with words of their own, and no pod waits for it.
    secret, _, key = where.partition("/")
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": key, "optional": True}}}


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
        mounts.append({**mount, "readOnly": True} if volume.read_only or volume.secret else mount)
        if volume.bucket:
            annotations.setdefault("gke-gcsfuse/volumes", "true")
    return volumes, mounts, annotations


def _source(volume: Volume) -> dict[str, Any]:
    if volume.claim:
        return {"persistentVolumeClaim": {"claimName": volume.claim, "readOnly": volume.read_only}}
    if volume.secret:
        return {"secret": {"secretName": volume.secret, "optional": True}}
    if volume.host_path:
        return {"hostPath": {"path": volume.host_path, "type": "DirectoryOrCreate"}}
    attributes = {"bucketName": volume.bucket}
    if volume.mount_options:
        attributes["mountOptions"] = volume.mount_options
    driver: dict[str, Any] = {"driver": "gcsfuse.csi.storage.gke.io", "volumeAttributes": attributes}
    return {"csi": {**driver, "readOnly": True} if volume.read_only else driver}


def _literal(text: str) -> str:
    """Return the text as Kubernetes expands it to itself (third_party/forked/golang/expansion/expand.go)."""
    return text.replace("$", "$$")
