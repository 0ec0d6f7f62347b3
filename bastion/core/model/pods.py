"""What an operator says about the pods of a resource type on Kubernetes: `[types.X.pod]` of the settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """As in Kubernetes; an empty `value` and `effect` match all."""

    key: str
    operator: str = "Exists"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Volume:
    """A file system at `path` in the pods: a PersistentVolumeClaim, a bucket through Cloud Storage FUSE on GKE, the
    keys of a Secret as files, or a folder of the node.

    EFS and FSx have claims. `mount_options` are those of a bucket, comma-separated.
    """

    path: str
    claim: str = ""
    bucket: str = ""
    secret: str = ""
    host_path: str = ""
    mount_options: str = ""
    read_only: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSettings:
    """Quantities are Kubernetes' (`100`, `300Gi`); empty or 0 where Bastion or the cluster decides."""

    image: str = ""  # of jobs that name none
    cpu: str = ""
    memory: str = ""
    cpu_limit: str = ""
    memory_limit: str = ""
    shm: str = ""  # limit of /dev/shm, which counts as memory of the pod
    resources: Mapping[str, str] = field(default_factory=dict)  # extended resources: vpc.amazonaws.com/efa, hugepages
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    volumes: tuple[Volume, ...] = ()
    # Variable of the agent -> `SECRET/KEY` of the namespace; a job takes it with --secret NAME=env:VARIABLE.
    secrets: Mapping[str, str] = field(default_factory=dict)
    image_pull_policy: str = ""
    image_pull_secrets: tuple[str, ...] = ()
    host_network: bool = False
    gpu_network: bool = True  # jobs of several hosts with GPUs get what the machines' network needs
    run_as_user: int | None = None
    # Between SIGTERM and SIGKILL when Kubernetes ends a pod; GKE gives spot pods less.
    grace_seconds: int = 60
    spot_grace_seconds: int = 15
