"""JobSets and their Workloads: made, started, stopped, finished
(kueue pkg/controller/jobframework/reconciler.go, ReconcileGenericJob, for jobs/jobset/jobset_controller.go).
"""

from __future__ import annotations

import hashlib

from bastion.emulators.kubernetes.client import ApiError, Key, Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    WORKLOAD,
    condition_of,
    controller_of,
    controller_reference,
    is_deleting,
    is_true,
    labels_of,
    name_of,
    namespace_of,
    path_of,
    status_of,
    uid_of,
)
from bastion.emulators.kubernetes.controllers.cluster import Index, Write, delete
from bastion.emulators.kubernetes.kueue import podsets
from bastion.emulators.kubernetes.kueue.admission import checks_in, finish, release_quota, set_requeued
from bastion.emulators.kubernetes.kueue.conditions import has_quota, is_admitted, is_evicted, is_finished
from bastion.emulators.kubernetes.kueue.state import IN_USE, State

QUEUE = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS = "kueue.x-k8s.io/priority-class"
MAX_SECONDS = "kueue.x-k8s.io/max-exec-time-seconds"
JOB_UID = "kueue.x-k8s.io/job-uid"
_NAME_MAX_CHARS = 253
_HASH_CHARS = 5


def workload_name(job_set: Obj) -> str:
    """GetWorkloadNameForOwnerWithGVK."""
    name = name_of(job_set)
    digest = hashlib.sha1(
        f"JobSet\njobset.x-k8s.io\n{name}\n{uid_of(job_set)}".encode(), usedforsecurity=False
    ).hexdigest()
    return f"{f'jobset-{name}'[: _NAME_MAX_CHARS - 1 - _HASH_CHARS]}-{digest[:_HASH_CHARS]}"


def owner_name(workload: Obj) -> str:
    """The name of the JobSet that controls a Workload; empty: none does."""
    owner = controller_of(workload)
    return owner["name"] if owner is not None and owner["kind"] == "JobSet" else ""


def _owner_keys(workload: Obj) -> tuple[str, ...]:
    name = owner_name(workload)
    return (f"{namespace_of(workload)}/{name}",) if name else ()


class Jobs:
    def __init__(self, state: State) -> None:
        self._state = state
        self._owned = Index(state.workloads, _owner_keys)

    def reconcile(self, key: Key) -> float | None:
        """Raises ApiError."""
        job_set = self._state.job_sets.get(*key)
        owned = self._owned.get("/".join(key))
        if job_set is None or is_deleting(job_set):
            for workload in owned:
                self._finalize(workload)
        elif labels_of(job_set).get(QUEUE):
            self._sync(job_set, owned)
        return None

    def _finalize(self, workload: Obj) -> None:
        """FinalizeOrphanedWorkload."""
        state = self._state
        if not is_deleting(workload) and not is_finished(workload):
            message = "The workload's owner no longer exists"
            now = state.now
            workload = (
                state.change_status(workload, lambda each: finish(each, "OwnerNotFound", message, now=now)) or workload
            )
        state.drop_finalizer(workload)

    def _sync(self, job_set: Obj, owned: list[Obj]) -> None:
        workload = self._matching(job_set, owned)
        if workload is not None and is_finished(workload):
            self._state.drop_finalizer(workload)
        elif workload is not None and is_deleting(workload):
            self._stop(job_set, workload, "Workload is deleted")
            self._state.drop_finalizer(workload)
        elif (end := _end_of(job_set)) is not None:
            self._finish(job_set, workload, *end)
        elif workload is None:
            if not _has_active_jobs(job_set):
                self._create(job_set)
        elif self._update_reclaimable(job_set, workload):
            pass
        elif is_evicted(workload):
            self._clear(job_set, workload)
        elif job_set["spec"].get("suspend"):
            self._start_or_wait(job_set, workload)
        elif not is_admitted(workload):
            self._stop(job_set, workload, "Not admitted by cluster queue")

    def _matching(self, job_set: Obj, owned: list[Obj]) -> Obj | None:
        """ensureOneWorkload. Raises ApiError for another try once Workloads that do not match are gone."""
        matching = [workload for workload in owned if self._is_equivalent(job_set, workload)]
        others = [workload for workload in owned if workload not in matching[:1]]
        suspended = bool(job_set["spec"].get("suspend"))
        if not matching and others and suspended and not has_quota(others[0]):
            return self._update(job_set, others[0])
        if not matching and not suspended and _end_of(job_set) is None:
            message = "Missing Workload; unable to restore pod templates"
            if others:
                message = "No matching Workload; restoring pod templates according to existent Workload"
            self._stop(job_set, others[0] if len(others) == 1 else None, message)
        for workload in others:
            self._state.drop_finalizer(workload)
            if not is_deleting(workload):
                self._state.cluster.write(delete(workload))
                name = f"{namespace_of(workload)}/{name_of(workload)}"
                self._state.event(job_set, "DeletedWorkload", f"Deleted not matching Workload: {name}")
        if others:
            raise ApiError(0, "NoMatchingWorkloads", f"{len(others)} Workloads did not match and were deleted")
        return self._follow_priority(job_set, matching[0]) if matching else None

    def _is_equivalent(self, job_set: Obj, workload: Obj) -> bool:
        """EquivalentToWorkload."""
        owner = controller_of(workload)
        if owner is None or owner["uid"] != uid_of(job_set):
            return False
        if workload["spec"].get("maximumExecutionTimeSeconds") != _max_seconds(job_set):
            return False
        own, theirs = podsets.pod_sets_of(job_set), workload["spec"].get("podSets") or []
        # Tolerations are those of the flavors once the Workload is admitted.
        running = has_quota(workload) and not job_set["spec"].get("suspend")
        return podsets.are_equal(own, theirs, with_tolerations=not (is_admitted(workload) or running))

    def _update(self, job_set: Obj, workload: Obj) -> Obj | None:
        """updateWorkloadToMatchJob."""
        wanted = self._build(job_set)
        if "active" in workload["spec"]:
            wanted["spec"]["active"] = workload["spec"]["active"]
        updated = self._state.update({**workload, "spec": wanted["spec"]})
        message = f"Updated not matching Workload for suspended job: {namespace_of(workload)}/{name_of(workload)}"
        self._state.event(job_set, "UpdatedWorkload", message)
        return updated

    def _follow_priority(self, job_set: Obj, workload: Obj) -> Obj | None:
        """UpdateWorkloadPriority: the class may change while the Workload has one."""
        known = (workload["spec"].get("priorityClassRef") or {}).get("name", "")
        if known == labels_of(job_set).get(PRIORITY_CLASS, "") or (has_quota(workload) and not known):
            return workload
        updated = self._state.update({**workload, "spec": {**workload["spec"], **self._priority(job_set)}})
        message = f"Updated workload priority class: {namespace_of(workload)}/{name_of(workload)}"
        self._state.event(job_set, "UpdatedWorkload", message)
        return updated

    def _create(self, job_set: Obj) -> None:
        workload = self._build(job_set)
        self._state.cluster.write(Write(method="create", path=WORKLOAD.path(namespace_of(job_set)), body=workload))
        name = f"{namespace_of(job_set)}/{name_of(workload)}"
        self._state.event(job_set, "CreatedWorkload", f"Created Workload: {name}")

    def _build(self, job_set: Obj) -> Obj:
        """ConstructWorkload. Raises ApiError if the priority class does not exist."""
        spec: Obj = {"queueName": labels_of(job_set)[QUEUE], "podSets": podsets.pod_sets_of(job_set)}
        if (seconds := _max_seconds(job_set)) is not None:
            spec["maximumExecutionTimeSeconds"] = seconds
        return {
            "apiVersion": WORKLOAD.api_version,
            "kind": WORKLOAD.kind,
            "metadata": {
                "name": workload_name(job_set),
                "namespace": namespace_of(job_set),
                "labels": {JOB_UID: uid_of(job_set)},
                "finalizers": [IN_USE],
                "ownerReferences": [controller_reference(job_set)],
            },
            "spec": {**spec, **self._priority(job_set)},
        }

    def _priority(self, job_set: Obj) -> Obj:
        """ExtractPriority; there are no PriorityClasses of pods. Raises ApiError."""
        name = labels_of(job_set).get(PRIORITY_CLASS, "")
        if not name:
            return {"priority": 0}
        found = self._state.priorities.get("", name)
        if found is None:
            message = f'WorkloadPriorityClass "{name}" not found'
            self._state.event(job_set, "WorkloadPriorityClassNotFound", message, warning=True)
            raise ApiError(404, "NotFound", f'workloadpriorityclasses.kueue.x-k8s.io "{name}" not found')
        reference = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": name}
        return {"priorityClassRef": reference, "priority": found["value"]}

    def _finish(self, job_set: Obj, workload: Obj | None, reason: str, message: str) -> None:
        if workload is None:
            return
        now = self._state.now
        self._state.change_status(workload, lambda each: finish(each, reason, message, now=now))
        name = f"{namespace_of(workload)}/{name_of(workload)}"
        self._state.event(job_set, "FinishedWorkload", f"Workload '{name}' is declared finished")

    def _update_reclaimable(self, job_set: Obj, workload: Obj) -> bool:
        """ReclaimablePods: what Jobs that have ended give back. Whether that changed."""
        succeeded = {each["name"]: each["succeeded"] for each in status_of(job_set).get("replicatedJobsStatus") or ()}
        wanted = [
            {"name": each["name"], "count": succeeded[each["name"]] * podsets.pods_per_job(each)}
            for each in job_set["spec"]["replicatedJobs"]
            if succeeded.get(each["name"])
        ]
        if wanted == (status_of(workload).get("reclaimablePods") or []):
            return False

        def change(each: Obj) -> None:
            each.setdefault("status", {})["reclaimablePods"] = wanted

        self._state.change_status(workload, change)
        return True

    def _clear(self, job_set: Obj, workload: Obj) -> None:
        """Step 6: stop the JobSet; its quota is free once it has no active Jobs."""
        evicted = condition_of(workload, "Evicted")
        assert evicted is not None
        reason, message = evicted["reason"], evicted["message"]
        self._stop(job_set, workload, message)
        if has_quota(workload) and not _has_active_jobs(job_set):
            now = self._state.now

            def change(each: Obj) -> None:
                set_requeued(each, reason == "Preempted", reason, message, now=now)
                release_quota(each, "Pending", message, now=now)

            self._state.change_status(workload, change)

    def _start_or_wait(self, job_set: Obj, workload: Obj) -> None:
        if is_admitted(workload):
            self._start(job_set, workload)
            return
        if has_quota(workload):
            pending = [
                f"{each['name']}: {each['message']}" for each in checks_in(workload, "Pending") if each["message"]
            ]
            if pending:
                self._state.event(job_set, "UpdatedAdmissionCheck", "; ".join(pending))
        queue = labels_of(job_set)[QUEUE]
        if workload["spec"].get("queueName") != queue:
            self._state.update({**workload, "spec": {**workload["spec"], "queueName": queue}})

    def _start(self, job_set: Obj, workload: Obj) -> None:
        """startJob. Raises ApiError."""
        try:
            infos = podsets.injected(workload, self._flavor)
            pairs = zip(podsets.templates_of(job_set), infos, strict=True)
            templates = [podsets.with_info(template, info) for template, info in pairs]
        except podsets.Conflict as conflict:
            now, message = self._state.now, str(conflict)
            self._state.change_status(workload, lambda each: finish(each, "FailedToStart", message, now=now))
            return
        self._change_job(job_set, suspend=False, templates=templates)
        queue = status_of(workload)["admission"]["clusterQueue"]
        self._state.event(job_set, "Started", f"Admitted by clusterQueue {queue}")

    def _flavor(self, name: str) -> Obj:
        found = self._state.flavors.get("", name)
        if found is None:
            raise ApiError(404, "NotFound", f'resourceflavors.kueue.x-k8s.io "{name}" not found')
        return found

    def _stop(self, job_set: Obj, workload: Obj | None, message: str) -> None:
        """stopJob: suspend, with the templates as they were."""
        if job_set["spec"].get("suspend"):
            return
        templates = podsets.templates_of(job_set)
        if workload is not None:
            originals = [each["template"] for each in workload["spec"]["podSets"]]
            if len(originals) == len(templates):
                pairs = zip(templates, originals, strict=True)
                templates = [podsets.restored(template, original) for template, original in pairs]
        self._change_job(job_set, suspend=True, templates=templates)
        self._state.event(job_set, "Stopped", message)

    def _change_job(self, job_set: Obj, *, suspend: bool, templates: list[Obj]) -> None:
        jobs = podsets.with_templates(job_set, templates)
        spec = {"suspend": suspend, "replicatedJobs": jobs}
        version = {"resourceVersion": job_set["metadata"]["resourceVersion"]}
        self._state.cluster.write(
            Write(method="patch", path=path_of(job_set), body={"metadata": version, "spec": spec})
        )


def _end_of(job_set: Obj) -> tuple[str, str] | None:
    """Reason and message of the Workload's end; None: the JobSet has not ended."""
    for kind, reason in (("Completed", "Succeeded"), ("Failed", "Failed")):
        if is_true(job_set, kind):
            condition = condition_of(job_set, kind)
            assert condition is not None
            return reason, condition["message"]
    return None


def _has_active_jobs(job_set: Obj) -> bool:
    return any(each["active"] for each in status_of(job_set).get("replicatedJobsStatus") or ())


def _max_seconds(job_set: Obj) -> int | None:
    text = labels_of(job_set).get(MAX_SECONDS, "")
    return int(text) if text.isdigit() and int(text) > 0 else None
