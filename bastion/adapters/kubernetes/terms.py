"""Names on the objects of a gang: labels, annotations, Jobs and pods."""

from __future__ import annotations

JOBSET_API = "jobset.x-k8s.io/v1alpha2"
KUEUE_API = "kueue.x-k8s.io/v1beta2"

# On JobSet, Jobs and pods; the adapter lists and deletes only objects with the first (ADR 7).
LABEL_BASTION = "bastion-managed"
LABEL_RUN = "bastion-run"
# On the JobSet.
ANNOTATION_TOKEN = "bastion-token"
ANNOTATION_VALID_UNTIL = "bastion-valid-until-seconds"  # after its creation, while it waits for capacity
# On its Jobs' template, which nobody can edit: the LocalQueue that we asked for. Kueue's label on the JobSet does not
# tell: its webhook may add a default queue, and people may change it.
ANNOTATION_QUEUE = "bastion-queue"
# Kueue's, on the JobSet (kueue: pkg/controller/constants/constants.go).
LABEL_QUEUE = "kueue.x-k8s.io/queue-name"
LABEL_PRIORITY_CLASS = "kueue.x-k8s.io/priority-class"
# On the Workload: the uid of what it was made for.
LABEL_JOB_UID = "kueue.x-k8s.io/job-uid"

# Pods in queues of Kueue tolerate it, with their resource type as its value. Flavors that their nodes' labels do not
# tell apart have it; nodes do not.
TAINT_RESOURCE_TYPE = "bastion-resource-type"

# The only replicated job of a JobSet, and the only container of its pods.
SLICE = "slice"
CONTAINER = "host"

# Set by JobSet and the Job controller on what they create.
LABEL_JOBSET = "jobset.sigs.k8s.io/jobset-name"
LABEL_JOB_INDEX = "jobset.sigs.k8s.io/job-index"
LABEL_COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"

# The container's exit code for an image that cannot run the agent; its termination message says why.
EXIT_IMAGE = 64
# How such a message of the init container that brings the agent begins.
NOT_BROUGHT = "the agent cannot be brought"


def collection(kind: str, namespace: str) -> str:
    """Return the API path of a namespace's jobsets, jobs, pods, events or workloads."""
    groups = {"jobsets": f"/apis/{JOBSET_API}", "jobs": "/apis/batch/v1", "workloads": f"/apis/{KUEUE_API}"}
    return f"{groups.get(kind, '/api/v1')}/namespaces/{namespace}/{kind}"


def job_name(gang: str, slice_index: int) -> str:
    return f"{gang}-{SLICE}-{slice_index}"
