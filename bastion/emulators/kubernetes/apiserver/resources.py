"""The kinds that the API server serves, and the names of those that it refuses.

Names, short names and categories: as `kubectl api-resources` lists them. Sources: kubernetes pkg/registry/*/rest,
jobset config/components/crd.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

JOBSET_GROUP = "jobset.x-k8s.io"
KUEUE_GROUP = "kueue.x-k8s.io"

_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """One served kind.

    Attributes:
        group: Empty for the core group.
        custom: Defined by a CustomResourceDefinition: metadata of a status write is ignored, any other change
            increments the generation.
        returns_deleted: A completed deletion answers with the object instead of a Status
            (`ReturnDeletedObject` of the kind's storage).
        orphans: Whether a deletion without a policy leaves the dependents (`DefaultGarbageCollectionPolicy`).
        generation: Whether objects count the changes of their spec.
        has_rules: Whether the definition of a custom kind has rules in CEL.
    """

    group: str = ""
    version: str = "v1"
    plural: str
    kind: str
    singular: str
    namespaced: bool = True
    custom: bool = False
    status: bool = False
    returns_deleted: bool = False
    orphans: bool = False
    generation: bool = False
    has_rules: bool = True
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = _VERBS

    @property
    def qualified(self) -> str:
        """As error messages name it: `jobs.batch`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


PODS = Resource(
    plural="pods",
    kind="Pod",
    singular="pod",
    status=True,
    returns_deleted=True,
    generation=True,
    short_names=("po",),
    categories=("all",),
)
NODES = Resource(plural="nodes", kind="Node", singular="node", namespaced=False, status=True, short_names=("no",))
NAMESPACES = Resource(
    plural="namespaces",
    kind="Namespace",
    singular="namespace",
    namespaced=False,
    status=True,
    returns_deleted=True,
    short_names=("ns",),
    verbs=("create", "delete", "get", "list", "patch", "update", "watch"),
)
SERVICES = Resource(
    plural="services",
    kind="Service",
    singular="service",
    status=True,
    returns_deleted=True,
    short_names=("svc",),
    categories=("all",),
)
EVENTS = Resource(plural="events", kind="Event", singular="event", short_names=("ev",))
SECRETS = Resource(plural="secrets", kind="Secret", singular="secret")
CONFIG_MAPS = Resource(plural="configmaps", kind="ConfigMap", singular="configmap", short_names=("cm",))
SERVICE_ACCOUNTS = Resource(
    plural="serviceaccounts",
    kind="ServiceAccount",
    singular="serviceaccount",
    returns_deleted=True,
    short_names=("sa",),
)
CLAIMS = Resource(
    plural="persistentvolumeclaims",
    kind="PersistentVolumeClaim",
    singular="persistentvolumeclaim",
    status=True,
    returns_deleted=True,
    short_names=("pvc",),
)
QUOTAS = Resource(
    plural="resourcequotas",
    kind="ResourceQuota",
    singular="resourcequota",
    status=True,
    returns_deleted=True,
    short_names=("quota",),
)
JOBS = Resource(
    group="batch",
    plural="jobs",
    kind="Job",
    singular="job",
    status=True,
    orphans=True,
    generation=True,
    categories=("all",),
)
LEASES = Resource(group="coordination.k8s.io", plural="leases", kind="Lease", singular="lease")
JOB_SETS = Resource(
    group=JOBSET_GROUP,
    version="v1alpha2",
    plural="jobsets",
    kind="JobSet",
    singular="jobset",
    custom=True,
    verbs=("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"),
    status=True,
    generation=True,
)


def _of_kueue(
    plural: str, kind: str, *short_names: str, singular: str, namespaced: bool = False, status: bool = True
) -> Resource:
    return Resource(
        group=KUEUE_GROUP,
        version="v1beta2",
        plural=plural,
        kind=kind,
        singular=singular,
        namespaced=namespaced,
        custom=True,
        verbs=JOB_SETS.verbs,
        status=status,
        generation=True,
        short_names=short_names,
    )


ADMISSION_CHECKS = _of_kueue("admissionchecks", "AdmissionCheck", "ac", singular="admissioncheck")
CLUSTER_QUEUES = _of_kueue("clusterqueues", "ClusterQueue", "cq", singular="clusterqueue")
COHORTS = _of_kueue("cohorts", "Cohort", "co", singular="cohort")
LOCAL_QUEUES = _of_kueue("localqueues", "LocalQueue", "queue", "queues", "lq", singular="localqueue", namespaced=True)
FLAVORS = _of_kueue(
    "resourceflavors", "ResourceFlavor", "flavor", "flavors", "rf", singular="resourceflavor", status=False
)
WORKLOAD_PRIORITIES = replace(
    _of_kueue("workloadpriorityclasses", "WorkloadPriorityClass", "wpc", singular="workloadpriorityclass"),
    status=False,
    has_rules=False,
)
WORKLOADS = _of_kueue(
    "workloads", "Workload", "kwl", "kueueworkload", "kueueworkloads", singular="workload", namespaced=True
)

ALL = (
    CONFIG_MAPS,
    EVENTS,
    NAMESPACES,
    NODES,
    CLAIMS,
    PODS,
    QUOTAS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    JOBS,
    LEASES,
    JOB_SETS,
    ADMISSION_CHECKS,
    CLUSTER_QUEUES,
    COHORTS,
    LOCAL_QUEUES,
    FLAVORS,
    WORKLOAD_PRIORITIES,
    WORKLOADS,
)

_BY_PATH = {(resource.group, resource.version, resource.plural): resource for resource in ALL}

# What a real cluster has and the emulator refuses by name.
_REFUSED_GROUPS = (
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "apiregistration.k8s.io",
    "apps",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "certificates.k8s.io",
    "discovery.k8s.io",
    "events.k8s.io",
    "flowcontrol.apiserver.k8s.io",
    "networking.k8s.io",
    "node.k8s.io",
    "policy",
    "rbac.authorization.k8s.io",
    "resource.k8s.io",
    "scheduling.k8s.io",
    "storage.k8s.io",
)
_REFUSED_CORE = (
    "bindings",
    "componentstatuses",
    "endpoints",
    "limitranges",
    "persistentvolumes",
    "podtemplates",
    "replicationcontrollers",
)
_REFUSED_IN_GROUP = {
    "batch": ("cronjobs",),
    "": _REFUSED_CORE,
    KUEUE_GROUP: ("multikueueclusters", "multikueueconfigs", "provisioningrequestconfigs", "topologies"),
}

# Paths below other groups are unknown to the server.
BUILT_IN_GROUPS = ("", "batch", "coordination.k8s.io", *_REFUSED_GROUPS)


def served(*, kueue: bool) -> tuple[Resource, ...]:
    """The kinds of a cluster with or without Kueue."""
    return tuple(resource for resource in ALL if kueue or resource.group != KUEUE_GROUP)


def find(group: str, version: str, plural: str) -> Resource | None:
    return _BY_PATH.get((group, version, plural))


def is_refused(group: str, plural: str) -> bool:
    """Whether Kubernetes has this kind and the emulator does not."""
    return group in _REFUSED_GROUPS or plural in _REFUSED_IN_GROUP.get(group, ())


def group_versions(resources: tuple[Resource, ...]) -> list[tuple[str, str]]:
    """The groups of these kinds with their version, the core group first."""
    return sorted({(resource.group, resource.version) for resource in resources})
