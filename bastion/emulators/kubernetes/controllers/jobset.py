"""The JobSet controller's decisions (jobset v0.12.0 pkg/controllers/jobset_controller.go and its policies).

Not emulated: restarts by a failure policy (the set fails, and says so), volume claim policies, the node selector
strategy of exclusive placement, and what is behind alpha feature gates.
"""

from __future__ import annotations

import copy
import datetime
import re
from collections.abc import Sequence
from typing import Any

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    JOB,
    SERVICE,
    condition_of,
    is_deleting,
    is_true,
    labels_of,
    name_of,
    namespace_of,
    parse_time,
    path_of,
    status_of,
    timestamp,
)
from bastion.emulators.kubernetes.controllers.cluster import (
    NOTHING,
    Event,
    Outcome,
    Write,
    delete,
    update_status,
)
from bastion.emulators.kubernetes.controllers.jobset_jobs import (
    REPLICATED_JOB,
    build_job,
    build_service,
    has_hostnames,
    job_name,
    replicas_of,
)

_CONTROLLER = "jobset.sigs.k8s.io/jobset-controller"
_COUNTERS = ("ready", "succeeded", "failed", "active", "suspended")


def is_finished(job_set: Obj) -> bool:
    return is_true(job_set, "Completed") or is_true(job_set, "Failed")


def sync(job_set: Obj, jobs: Sequence[Obj], *, has_service: bool, now: datetime.datetime) -> Outcome:
    """What to do for a JobSet. `jobs`: those that it controls; `has_service`: one of its subdomain's name exists."""
    if is_deleting(job_set) or job_set["spec"].get("managedBy", _CONTROLLER) != _CONTROLLER:
        return NOTHING
    return _Sync(job_set, jobs, now).outcome(has_service=has_service)


class _Sync:
    def __init__(self, job_set: Obj, jobs: Sequence[Obj], now: datetime.datetime) -> None:
        self.job_set = job_set
        self.spec: Obj = job_set["spec"]
        self.now = now
        self.status: dict[str, Any] = copy.deepcopy(status_of(job_set))
        self.jobs = {name_of(job): job for job in jobs}
        self.failed = [job for job in jobs if is_true(job, "Failed")]
        self.succeeded = [job for job in jobs if is_true(job, "Complete")]
        self.active = [job for job in jobs if not is_true(job, "Failed") and not is_true(job, "Complete")]
        self.suspended = bool(self.spec.get("suspend"))
        self.in_order = (self.spec.get("startupPolicy") or {}).get("startupPolicyOrder") == "InOrder"
        self.counts = self._counts()
        self.writes: list[Write] = []
        self.events: list[Event] = []
        self.again_seconds: float | None = None

    def outcome(self, *, has_service: bool) -> Outcome:
        self.status["replicatedJobsStatus"] = [{"name": name, **counts} for name, counts in self.counts.items()]
        self.status.setdefault("restarts", 0)
        if is_finished(self.job_set):
            self.writes.extend(delete(job, propagation="Foreground") for job in self.active if not is_deleting(job))
            self._expire()
        elif self.failed:
            self._fail()
        elif self._is_complete():
            self._set("Completed", "AllJobsCompleted", "jobset completed successfully")
            self.status["terminalState"] = "Completed"
        else:
            if has_hostnames(self.job_set) and not has_service:
                path = SERVICE.path(namespace_of(self.job_set))
                refused = Event(about=self.job_set, reason="HeadlessServiceCreationFailed", message="", warning=True)
                body = build_service(self.job_set)
                self.writes.append(Write(method="create", path=path, body=body, refused=refused))
            self._create_jobs()
            if self.suspended:
                self._suspend()
            else:
                self._resume()
        # A status that was never written has no counters; upstream writes them at once, too.
        if _comparable(self.status) != _comparable(status_of(self.job_set)):
            self.writes.append(update_status(self.job_set, self.status))
        return Outcome(writes=tuple(self.writes), events=tuple(self.events), again_seconds=self.again_seconds)

    def _counts(self) -> dict[str, dict[str, int]]:
        """calculateReplicatedJobStatuses."""
        counts = {each["name"]: dict.fromkeys(_COUNTERS, 0) for each in self.spec["replicatedJobs"]}
        for jobs, counter in ((self.succeeded, "succeeded"), (self.failed, "failed")):
            for job in jobs:
                counts[labels_of(job)[REPLICATED_JOB]][counter] += 1
        for job in self.active:
            own = counts[labels_of(job)[REPLICATED_JOB]]
            status, spec = status_of(job), job["spec"]
            pods = min(spec.get("parallelism", 1), spec.get("completions") or spec.get("parallelism", 1))
            own["ready"] += status.get("succeeded", 0) + status.get("ready", 0) >= pods
            own["active"] += status.get("active", 0) > 0
            own["suspended"] += bool(spec.get("suspend"))
        return counts

    def _expire(self) -> None:
        """ttl_after_finished.go."""
        ttl = self.spec.get("ttlSecondsAfterFinished")
        if ttl is None:
            return
        finished = next(
            condition_of(self.job_set, kind) for kind in ("Completed", "Failed") if is_true(self.job_set, kind)
        )
        assert finished is not None
        left = ttl - (self.now - parse_time(finished["lastTransitionTime"])).total_seconds()
        if left <= 0:
            self.writes.append(delete(self.job_set, propagation="Foreground"))
        else:
            self.again_seconds = left

    def _fail(self) -> None:
        """failure_policy.go. The first Job to fail is named."""
        policy = self.spec.get("failurePolicy")
        action, job = "FailJobSet", min(self.failed, key=_failed_at)
        reason, message = "FailedJobs", "jobset failed due to one or more job failures"
        if policy is not None:
            action, job = _failure_action(policy, self.failed)
            reason, message = "FailJobSetFailurePolicyAction", "applying FailJobSet failure policy action"
        if action != "FailJobSet":
            if policy is not None and action == "RestartJobSet" and not policy.get("maxRestarts"):
                reason, message = "ReachedMaxRestarts", "jobset failed due to reaching max number of restarts"
            else:
                reason, message = "NotEmulated", f"the emulator does not restart Jobs: failure policy action {action}"
        self._set("Failed", reason, f"{message} (first failed job: {name_of(job)})", warning=True)
        self.status["terminalState"] = "Failed"

    def _is_complete(self) -> bool:
        """success_policy.go."""
        policy = self.spec.get("successPolicy") or {}
        targets = policy.get("targetReplicatedJobs") or [each["name"] for each in self.spec["replicatedJobs"]]
        matching = sum(labels_of(job)[REPLICATED_JOB] in targets for job in self.succeeded)
        if policy.get("operator", "All") == "Any":
            return matching > 0
        return matching >= sum(replicas_of(each) for each in self.spec["replicatedJobs"] if each["name"] in targets)

    def _create_jobs(self) -> None:
        """reconcileReplicatedJobs."""
        for replicated_job in self.spec["replicatedJobs"]:
            if not self._dependencies_met(replicated_job):
                continue
            if not self.suspended and self.in_order and self._all_started(replicated_job):
                continue
            for index in range(replicas_of(replicated_job)):
                if job_name(self.job_set, replicated_job["name"], index) in self.jobs:
                    continue
                job = build_job(self.job_set, replicated_job, index)
                message = f'job "{name_of(job)}" creation failed with error: '
                refused = Event(about=self.job_set, reason="JobCreationFailed", message=message, warning=True)
                path = JOB.path(namespace_of(self.job_set))
                self.writes.append(Write(method="create", path=path, body=job, refused=refused))
            if not self.suspended and self.in_order:
                self._set(
                    "StartupPolicyInProgress",
                    "InOrderStartupPolicyInProgress",
                    "in order startup policy is in progress",
                )
                return
        if not self.suspended and self.in_order:
            self._set(
                "StartupPolicyCompleted", "InOrderStartupPolicyCompleted", "in order startup policy has completed"
            )

    def _dependencies_met(self, replicated_job: Obj) -> bool:
        """depends_on.go."""
        replicas = {each["name"]: replicas_of(each) for each in self.spec["replicatedJobs"]}
        for dependency in replicated_job.get("dependsOn") or ():
            counts = self.counts[dependency["name"]]
            reached = counts["succeeded"]
            if dependency["status"] == "Ready":
                reached += counts["ready"] + counts["failed"]
            if reached != replicas[dependency["name"]]:
                return False
        return True

    def _all_started(self, replicated_job: Obj) -> bool:
        counts = self.counts[replicated_job["name"]]
        return replicas_of(replicated_job) == counts["failed"] + counts["ready"] + counts["succeeded"]

    def _suspend(self) -> None:
        for job in self.active:
            if not job["spec"].get("suspend"):
                self.writes.append(Write(method="patch", path=path_of(job), body={"spec": {"suspend": True}}))
        self._set("Suspended", "SuspendedJobs", "jobset is suspended")

    def _resume(self) -> None:
        for replicated_job in self.spec["replicatedJobs"]:
            if not self._dependencies_met(replicated_job) or (self.in_order and self._all_started(replicated_job)):
                continue
            for job in self.active:
                if labels_of(job)[REPLICATED_JOB] == replicated_job["name"] and job["spec"].get("suspend"):
                    self._resume_job(job, replicated_job)
            if self.in_order:
                return
        self._set("Suspended", "ResumeJobs", "jobset is resumed", status="False")

    def _resume_job(self, job: Obj, replicated_job: Obj) -> None:
        """Start a Job with the scheduling facts that the JobSet's template got while suspended."""
        if status_of(job).get("startTime"):
            # The template of a Job that has started cannot be changed.
            unstarted = {"status": {"startTime": None}}
            self.writes.append(Write(method="patch", path=path_of(job, "status"), body=unstarted))
        wanted, own = replicated_job["template"]["spec"]["template"], job["spec"]["template"]
        tolerations = list(own["spec"].get("tolerations") or ())
        tolerations += [each for each in wanted["spec"].get("tolerations") or () if each not in tolerations]
        metadata = wanted.get("metadata") or {}
        template = {
            "metadata": {name: metadata[name] for name in ("labels", "annotations") if metadata.get(name)},
            "spec": {
                "nodeSelector": wanted["spec"].get("nodeSelector") or {},
                **({"tolerations": tolerations} if tolerations else {}),
            },
        }
        patch = {"spec": {"suspend": False, "template": template}}
        self.writes.append(Write(method="patch", path=path_of(job), body=patch))

    def _set(self, kind: str, reason: str, message: str, *, status: str = "True", warning: bool = False) -> None:
        """updateCondition, with its Event."""
        conditions: list[Obj] = self.status.get("conditions") or []
        known = next((each for each in conditions if each["type"] == kind), None)
        if (known["status"] if known is not None else "False") == status:
            return
        condition = {
            "type": kind,
            "status": status,
            "reason": reason,
            "message": message,
            "lastTransitionTime": timestamp(self.now),
        }
        if known is not None:
            known.update(condition)
        else:
            conditions.append(condition)
        self.status["conditions"] = conditions
        opposite = {
            "StartupPolicyCompleted": "StartupPolicyInProgress",
            "StartupPolicyInProgress": "StartupPolicyCompleted",
        }
        for each in conditions:
            if each["type"] == opposite.get(kind):
                each["status"] = "False"
        self.events.append(Event(about=self.job_set, reason=reason, message=message, warning=warning))


def _failure_action(policy: Obj, failed: Sequence[Obj]) -> tuple[str, Obj]:
    """The action of the first rule that applies to a failed Job, and the first such Job."""
    for rule in policy.get("rules") or ():
        matching = [job for job in failed if _applies(rule, job)]
        if matching:
            return str(rule["action"]), min(matching, key=_failed_at)
    return "RestartJobSet", min(failed, key=_failed_at)


def _applies(rule: Obj, job: Obj) -> bool:
    failure = condition_of(job, "Failed") or {}
    reasons = rule.get("onJobFailureReasons")
    patterns = rule.get("onJobFailureMessagePatterns")
    targets = rule.get("targetReplicatedJobs")
    return (
        (not reasons or failure.get("reason") in reasons)
        and (not patterns or any(re.search(pattern, failure.get("message", "")) for pattern in patterns))
        and (not targets or labels_of(job)[REPLICATED_JOB] in targets)
    )


def _failed_at(job: Obj) -> str:
    condition = condition_of(job, "Failed")
    assert condition is not None
    at: str = condition["lastTransitionTime"]
    return at


def _comparable(status: Obj) -> Obj:
    by_name = {each["name"]: each for each in status.get("replicatedJobsStatus") or ()}
    return {**{name: value for name, value in status.items() if value}, "replicatedJobsStatus": by_name}
