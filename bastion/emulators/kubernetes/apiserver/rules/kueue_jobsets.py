"""What Kueue's webhook adds to JobSets and refuses (kueue v0.19.2 pkg/controller/jobs/jobset/jobset_webhook.go and
pkg/controller/jobframework/{defaults,validation}.go).

Of JobSets without a queue nothing is said: `manageJobsWithoutQueueName` is off.
"""

from __future__ import annotations

from bastion.emulators.kubernetes.apiserver import names
from bastion.emulators.kubernetes.apiserver.resources import LOCAL_QUEUES
from bastion.emulators.kubernetes.apiserver.rules.base import Object
from bastion.emulators.kubernetes.apiserver.statuses import Problem, invalid_value
from bastion.emulators.kubernetes.apiserver.store import Store

WEBHOOK = "vjobset.kb.io"
QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS = "kueue.x-k8s.io/priority-class"
MAX_SECONDS = "kueue.x-k8s.io/max-exec-time-seconds"
_DEFAULT_QUEUE = "default"
# Namespaces that Kueue's default configuration leaves alone (managedJobsNamespaceSelector).
_UNMANAGED = ("kube-system", "kueue-system")
_IMMUTABLE = "field is immutable"


def admit(store: Store, job_set: Object) -> None:
    """ApplyDefaultLocalQueue, ApplyDefaultForSuspend."""
    metadata = job_set["metadata"]
    namespace = metadata.get("namespace", "")
    if not _queue(job_set) and namespace not in _UNMANAGED and _has_default_queue(store, namespace):
        metadata["labels"] = {**(metadata.get("labels") or {}), QUEUE: _DEFAULT_QUEUE}
    if _queue(job_set) and namespace not in _UNMANAGED:
        job_set["spec"]["suspend"] = True


def denials(job_set: Object) -> list[Problem]:
    """ValidateJobOnCreate."""
    labels, found = _labels(job_set), []
    if QUEUE in labels and (why := names.subdomain(labels[QUEUE])):
        found.append(invalid_value(f"metadata.labels[{QUEUE}]", labels[QUEUE], ",".join(why)))
    if (seconds := labels.get(MAX_SECONDS)) is not None:
        path = f"metadata.labels[{MAX_SECONDS}]"
        try:
            if int(seconds) <= 0:
                found.append(invalid_value(path, int(seconds), "should be greater than 0"))
        except ValueError:
            text = f'strconv.Atoi: parsing "{seconds}": invalid syntax'
            found.append(invalid_value(path, seconds, text))
    return found


def update_denials(store: Store, job_set: Object, old: Object) -> list[Problem]:
    """ValidateJobOnUpdate."""
    found, suspended = [], bool(job_set["spec"].get("suspend"))
    labels, before = _labels(job_set), _labels(old)
    if not suspended and _queue(job_set) != _queue(old):
        found.append(invalid_value(f"metadata.labels[{QUEUE}]", _queue(job_set), _IMMUTABLE))
    namespace = old["metadata"].get("namespace", "")
    if not _queue(job_set) and _queue(old) and _has_default_queue(store, namespace):
        text = "queue-name must not be empty in namespace with default queue"
        found.append(invalid_value(f"metadata.labels[{QUEUE}]", "", text))
    if not (suspended and old["spec"].get("suspend")) and labels.get(MAX_SECONDS) != before.get(MAX_SECONDS):
        found.append(invalid_value(f"metadata.labels[{MAX_SECONDS}]", labels.get(MAX_SECONDS, ""), _IMMUTABLE))
    path, was, now = f"metadata.labels[{PRIORITY_CLASS}]", before.get(PRIORITY_CLASS), labels.get(PRIORITY_CLASS)
    if not suspended and not was and now:
        text = "WorkloadPriorityClass cannot be added to a non-suspended workload"
        found.append(invalid_value(path, now, text))
    if was and not now:
        found.append(invalid_value(path, "", "WorkloadPriorityClass cannot be removed from a workload"))
    return found + denials(job_set)


def _labels(job_set: Object) -> dict[str, str]:
    return job_set["metadata"].get("labels") or {}


def _queue(job_set: Object) -> str:
    return _labels(job_set).get(QUEUE, "")


def _has_default_queue(store: Store, namespace: str) -> bool:
    return store.get(LOCAL_QUEUES, namespace, _DEFAULT_QUEUE) is not None
