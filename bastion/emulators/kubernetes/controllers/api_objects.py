"""API objects as the controllers read them: kinds and paths, owners, conditions, times."""

from __future__ import annotations

import datetime
from dataclasses import dataclass

from bastion.emulators.kubernetes.client import Obj

JOB_FINALIZER = "batch.kubernetes.io/job-tracking"
FOREGROUND_FINALIZER = "foregroundDeletion"
ORPHAN_FINALIZER = "orphan"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
DISRUPTION_TARGET = "DisruptionTarget"


@dataclass(frozen=True, slots=True)
class Kind:
    api_version: str
    kind: str
    plural: str
    namespaced: bool = True

    @property
    def root(self) -> str:
        """The API path of all objects of the kind, in every namespace."""
        group = "/api" if "/" not in self.api_version else "/apis"
        return f"{group}/{self.api_version}/{self.plural}"

    def path(self, namespace: str, name: str = "") -> str:
        group = "/api" if "/" not in self.api_version else "/apis"
        scope = f"/namespaces/{namespace}" if self.namespaced else ""
        tail = f"/{name}" if name else ""
        return f"{group}/{self.api_version}{scope}/{self.plural}{tail}"


POD = Kind("v1", "Pod", "pods")
NODE = Kind("v1", "Node", "nodes", namespaced=False)
SERVICE = Kind("v1", "Service", "services")
EVENT = Kind("v1", "Event", "events")
JOB = Kind("batch/v1", "Job", "jobs")
JOB_SET = Kind("jobset.x-k8s.io/v1alpha2", "JobSet", "jobsets")
CONFIG_MAP = Kind("v1", "ConfigMap", "configmaps")
SECRET = Kind("v1", "Secret", "secrets")

_KUEUE = "kueue.x-k8s.io/v1beta2"
ADMISSION_CHECK = Kind(_KUEUE, "AdmissionCheck", "admissionchecks", namespaced=False)
CLUSTER_QUEUE = Kind(_KUEUE, "ClusterQueue", "clusterqueues", namespaced=False)
COHORT = Kind(_KUEUE, "Cohort", "cohorts", namespaced=False)
LOCAL_QUEUE = Kind(_KUEUE, "LocalQueue", "localqueues")
RESOURCE_FLAVOR = Kind(_KUEUE, "ResourceFlavor", "resourceflavors", namespaced=False)
WORKLOAD = Kind(_KUEUE, "Workload", "workloads")
WORKLOAD_PRIORITY_CLASS = Kind(_KUEUE, "WorkloadPriorityClass", "workloadpriorityclasses", namespaced=False)

_PLAIN_KINDS = (POD, NODE, SERVICE, EVENT, JOB, JOB_SET, CONFIG_MAP, SECRET)
KUEUE_KINDS = (
    ADMISSION_CHECK,
    CLUSTER_QUEUE,
    COHORT,
    LOCAL_QUEUE,
    RESOURCE_FLAVOR,
    WORKLOAD,
    WORKLOAD_PRIORITY_CLASS,
)
KINDS = {(kind.api_version, kind.kind): kind for kind in (*_PLAIN_KINDS, *KUEUE_KINDS)}


def path_of(obj: Obj, subresource: str = "") -> str:
    kind = KINDS[obj["apiVersion"], obj["kind"]]
    tail = f"/{subresource}" if subresource else ""
    return kind.path(namespace_of(obj), obj["metadata"]["name"]) + tail


def namespace_of(obj: Obj) -> str:
    namespace: str = obj["metadata"].get("namespace", "")
    return namespace


def name_of(obj: Obj) -> str:
    name: str = obj["metadata"]["name"]
    return name


def uid_of(obj: Obj) -> str:
    uid: str = obj["metadata"]["uid"]
    return uid


def labels_of(obj: Obj) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def annotations_of(obj: Obj) -> dict[str, str]:
    return obj["metadata"].get("annotations") or {}


def is_deleting(obj: Obj) -> bool:
    return bool(obj["metadata"].get("deletionTimestamp"))


def has_finalizer(obj: Obj, finalizer: str) -> bool:
    return finalizer in (obj["metadata"].get("finalizers") or ())


def owners_of(obj: Obj) -> list[Obj]:
    return obj["metadata"].get("ownerReferences") or []


def controller_of(obj: Obj) -> Obj | None:
    """The owner reference of the object's controller."""
    return next((reference for reference in owners_of(obj) if reference.get("controller")), None)


def controller_reference(owner: Obj) -> Obj:
    return {
        "apiVersion": owner["apiVersion"],
        "kind": owner["kind"],
        "name": name_of(owner),
        "uid": uid_of(owner),
        "controller": True,
        "blockOwnerDeletion": True,
    }


def status_of(obj: Obj) -> Obj:
    return obj.get("status") or {}


def phase_of(pod: Obj) -> str:
    phase: str = status_of(pod).get("phase") or "Pending"
    return phase


def node_name_of(pod: Obj) -> str:
    name: str = pod["spec"].get("nodeName") or ""
    return name


def is_terminal(pod: Obj) -> bool:
    return phase_of(pod) in ("Succeeded", "Failed")


def is_active(pod: Obj) -> bool:
    """As IsPodActive in pkg/controller/controller_utils.go."""
    return not is_terminal(pod) and not is_deleting(pod)


def is_terminating(pod: Obj) -> bool:
    """As IsPodTerminating in pkg/controller/controller_utils.go."""
    return not is_terminal(pod) and is_deleting(pod)


def condition_of(obj: Obj, kind: str) -> Obj | None:
    conditions: list[Obj] = status_of(obj).get("conditions") or []
    return next((condition for condition in conditions if condition["type"] == kind), None)


def is_true(obj: Obj, kind: str) -> bool:
    condition = condition_of(obj, kind)
    return condition is not None and condition["status"] == "True"


def without_finalizer(obj: Obj, finalizer: str) -> Obj:
    """A merge patch that removes a finalizer from this very object."""
    left = [each for each in obj["metadata"].get("finalizers") or () if each != finalizer]
    return {"metadata": {"uid": uid_of(obj), "finalizers": left or None}}


def timestamp(now: datetime.datetime) -> str:
    """As metav1.Time: RFC 3339, whole seconds, UTC."""
    return now.astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text.replace("Z", "+00:00"))
