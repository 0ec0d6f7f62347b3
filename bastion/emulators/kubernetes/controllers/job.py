"""The Job controller's decisions (pkg/controller/job/job_controller.go, syncJob), for Indexed Jobs.

Differences: failed pods are replaced without a pause; backoffLimitPerIndex, successPolicy and NonIndexed Jobs are not
emulated; there is no Event for each created or deleted pod.
"""

from __future__ import annotations

import copy
import datetime
from collections.abc import Callable, Sequence
from typing import Any

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers import indexes
from bastion.emulators.kubernetes.controllers.api_objects import (
    JOB_FINALIZER,
    POD,
    condition_of,
    has_finalizer,
    is_active,
    is_deleting,
    is_terminating,
    is_true,
    namespace_of,
    parse_time,
    path_of,
    phase_of,
    status_of,
    timestamp,
    uid_of,
    without_finalizer,
)
from bastion.emulators.kubernetes.controllers.cluster import NOTHING, Event, Outcome, Write, delete, update_status
from bastion.emulators.kubernetes.controllers.exclusive import Denied
from bastion.emulators.kubernetes.controllers.job_pods import build, index_of
from bastion.emulators.kubernetes.controllers.pod_failures import matching_rule

_PODS_PER_SYNC = 500

Admit = Callable[[Obj], Obj]  # raises Denied


def is_finished(job: Obj) -> bool:
    return is_true(job, "Complete") or is_true(job, "Failed")


def release(pods: Sequence[Obj]) -> Outcome:
    """Let go of pods whose Job is gone (syncOrphanPod)."""
    return Outcome(writes=tuple(_release(pod) for pod in pods if has_finalizer(pod, JOB_FINALIZER)))


def sync(job: Obj, pods: Sequence[Obj], *, now: datetime.datetime, admit: Admit) -> Outcome:
    """What to do for a Job.

    Args:
        pods: Those that the Job controls, sorted by name.
        admit: Changes or denies a pod before it is created.
    """
    spec = job["spec"]
    if is_finished(job) or spec.get("managedBy", "kubernetes.io/job-controller") != "kubernetes.io/job-controller":
        return NOTHING
    if missing := _not_emulated(spec):
        message = f"the emulator does not run Jobs with {missing}; use completionMode Indexed with restartPolicy Never"
        return Outcome(events=(Event(about=job, reason="NotEmulated", message=message, warning=True),))
    return _Sync(job, pods, now, admit).outcome()


def _not_emulated(spec: Obj) -> str:
    if spec.get("completionMode") != "Indexed":
        return "completionMode NonIndexed"
    return next((name for name in ("backoffLimitPerIndex", "successPolicy") if spec.get(name) is not None), "")


class _Sync:
    """One pass over one Job."""

    def __init__(self, job: Obj, pods: Sequence[Obj], now: datetime.datetime, admit: Admit) -> None:
        self.job = job
        self.spec: Obj = job["spec"]
        self.now = now
        self.admit = admit
        self.completions: int = self.spec.get("completions", 1)
        self.status: dict[str, Any] = copy.deepcopy(status_of(job))
        self.pods = sorted(pods, key=lambda pod: index_of(pod) or 0)
        self.active = [pod for pod in pods if is_active(pod)]
        self.terminating = sum(is_terminating(pod) for pod in pods)
        policy = self.spec.get("podReplacementPolicy")
        # Jobs with a pod failure policy default to Failed (pkg/apis/batch/v1/defaults.go).
        self.only_failed = policy == "Failed" if policy else bool(self.spec.get("podFailurePolicy"))
        self.writes: list[Write] = []
        self.events: list[Event] = []
        self.again_seconds: float | None = None

    def outcome(self) -> Outcome:
        suspended = bool(self.spec.get("suspend"))
        if not self.status.get("startTime") and not suspended:
            self.status["startTime"] = timestamp(self.now)
        uncounted = self._clean_uncounted()
        succeeded = self._succeeded()
        finished = self._finished(uncounted)
        if finished is not None:
            self._delete(self.active)
        elif not is_deleting(self.job):
            self._manage(succeeded, suspended=suspended)
            if len(succeeded) >= self.completions and not self.active:
                reason = ("CompletionsReached", "Reached expected number of succeeded pods")
                finished = self._condition("SuccessCriteriaMet", *reason)
            else:
                self._suspension(suspended=suspended)
        removed = self._count(uncounted, finished)
        self.status["completedIndexes"] = indexes.render(succeeded)
        self.status["succeeded"] = len(succeeded)
        self.status["active"] = len(self.active)
        self.status["ready"] = sum(is_true(pod, "Ready") for pod in self.active)
        self.status["terminating"] = self.terminating
        self.status["uncountedTerminatedPods"] = uncounted
        if finished is not None:
            self._interim(finished)
            if not removed and not any(uncounted.values()) and not self.terminating:
                self._final(finished)
        if _set_fields(self.status) != _set_fields(status_of(self.job)):
            # Of the counters, these two are pointers upstream, and so written when 0.
            pointers = {name: self.status[name] for name in ("ready", "terminating")}
            status = {**_set_fields(self.status), **pointers, "uncountedTerminatedPods": uncounted}
            self.writes.append(update_status(self.job, status))
        # Only after the pods are counted: a pod without its finalizer may be gone before the next pass.
        self.writes.extend(_release(pod) for pod in removed)
        return Outcome(writes=tuple(self.writes), events=tuple(self.events), again_seconds=self.again_seconds)

    def _clean_uncounted(self) -> dict[str, list[str]]:
        """cleanUncountedPodsWithoutFinalizers: pods that were let go of move from the list to the counter."""
        held = {uid_of(pod) for pod in self.pods if has_finalizer(pod, JOB_FINALIZER)}
        before: list[str] = (self.status.get("uncountedTerminatedPods") or {}).get("failed") or []
        left = [uid for uid in before if uid in held]
        self.status["failed"] = self.status.get("failed", 0) + len(before) - len(left)
        return {"failed": left} if left else {}

    def _succeeded(self) -> set[int]:
        found = indexes.parse(self.status.get("completedIndexes") or "", self.completions)
        for pod in self.pods:
            index = index_of(pod)
            if phase_of(pod) == "Succeeded" and index is not None and index < self.completions:
                found.add(index)
        return found

    def _is_failed(self, pod: Obj) -> bool:
        if phase_of(pod) == "Failed":
            return True
        return not self.only_failed and is_deleting(pod) and phase_of(pod) != "Succeeded"

    def _counts(self, pod: Obj) -> bool:
        return matching_rule(self.spec.get("podFailurePolicy"), pod)[0] != "Ignore"

    def _finished(self, uncounted: dict[str, list[str]]) -> Obj | None:
        """The interim condition if the Job has met its end: SuccessCriteriaMet or FailureTarget."""
        for kind in ("SuccessCriteriaMet", "FailureTarget"):
            if is_true(self.job, kind):
                return condition_of(self.job, kind)
        for pod in self.pods:
            if self._is_failed(pod):
                action, message = matching_rule(self.spec.get("podFailurePolicy"), pod)
                if action == "FailJob":
                    return self._condition("FailureTarget", "PodFailurePolicy", message)
        listed = uncounted.get("failed", [])
        new = [
            pod
            for pod in self.pods
            if has_finalizer(pod, JOB_FINALIZER)
            and uid_of(pod) not in listed
            and self._is_failed(pod)
            and self._counts(pod)
        ]
        if self.status["failed"] + len(listed) + len(new) > self.spec.get("backoffLimit", 6):
            message = "Job has reached the specified backoff limit"
            return self._condition("FailureTarget", "BackoffLimitExceeded", message)
        limit, started = self.spec.get("activeDeadlineSeconds"), self.status.get("startTime")
        if limit is not None and started and not self.spec.get("suspend"):
            left = limit - (self.now - parse_time(started)).total_seconds()
            if left <= 0:
                message = "Job was active longer than specified deadline"
                return self._condition("FailureTarget", "DeadlineExceeded", message)
            self.again_seconds = left
        return None

    def _manage(self, succeeded: set[int], *, suspended: bool) -> None:
        """manageJob: pods too many are deleted, else pods too few created."""
        if suspended:
            surplus = self.active
        else:
            surplus = []
            seen: set[int] = set()
            for pod in self.active:
                index = index_of(pod)
                if index is None or index >= self.completions or index in seen:
                    surplus.append(pod)
                else:
                    seen.add(index)
        if surplus:
            self.writes.extend(_release(pod) for pod in surplus if has_finalizer(pod, JOB_FINALIZER))
            self._delete(surplus)
            return
        if suspended:
            return
        waiting = self.terminating if self.only_failed else 0
        wanted = min(self.spec.get("parallelism", 1), self.completions - len(succeeded))
        room = min(wanted - waiting - len(self.active), _PODS_PER_SYNC)
        present = {index_of(pod) for pod in self.active}
        if self.only_failed:
            present |= {index_of(pod) for pod in self.pods if is_terminating(pod)}
        for index in range(self.completions):
            if room <= 0:
                break
            if index in succeeded or index in present:
                continue
            room -= 1
            refused = Event(about=self.job, reason="FailedCreate", message="Error creating: ", warning=True)
            try:
                pod = self.admit(build(self.job, index))
            except Denied as denied:
                # As the slow start of manageJob: the first refusal ends the pass; a change of the pods starts the next.
                self.events.append(
                    Event(about=self.job, reason="FailedCreate", message=f"Error creating: {denied}", warning=True)
                )
                break
            self.writes.append(Write(method="create", path=POD.path(namespace_of(self.job)), body=pod, refused=refused))

    def _delete(self, pods: Sequence[Obj]) -> None:
        self.writes.extend(delete(pod) for pod in pods)
        self.terminating += len(pods)
        gone = {uid_of(pod) for pod in pods}
        self.active = [pod for pod in self.active if uid_of(pod) not in gone]

    def _suspension(self, *, suspended: bool) -> None:
        known = condition_of(self.job, "Suspended")
        if suspended and not is_true(self.job, "Suspended"):
            self._set(self._condition("Suspended", "JobSuspended", "Job suspended"))
            self.events.append(Event(about=self.job, reason="Suspended", message="Job suspended"))
        elif not suspended and known is not None and known["status"] == "True":
            self._set({**self._condition("Suspended", "JobResumed", "Job resumed"), "status": "False"})
            self.status["startTime"] = timestamp(self.now)
            self.events.append(Event(about=self.job, reason="Resumed", message="Job resumed"))

    def _count(self, uncounted: dict[str, list[str]], finished: Obj | None) -> list[Obj]:
        """Put failed pods on the list of the uncounted; return the pods to let go of."""
        failing = finished is not None and finished["type"] == "FailureTarget"
        removed: list[Obj] = []
        for pod in self.pods:
            if not has_finalizer(pod, JOB_FINALIZER):
                continue
            failed = self._is_failed(pod)
            if not (is_deleting(self.job) or finished is not None or phase_of(pod) == "Succeeded" or failed):
                continue
            removed.append(pod)
            listed = uncounted.get("failed", [])
            if phase_of(pod) == "Succeeded" or uid_of(pod) in listed:
                continue
            # Pods that a failed Job has not let end count as failed.
            if (failed or failing) and index_of(pod) is not None and self._counts(pod):
                uncounted["failed"] = [*listed, uid_of(pod)]
        return removed

    def _interim(self, finished: Obj) -> None:
        if not is_true(self.job, finished["type"]):
            self._set(finished)

    def _final(self, finished: Obj) -> None:
        failed = finished["type"] == "FailureTarget"
        reason, message = finished.get("reason", ""), finished.get("message", "")
        self._set(self._condition("Failed" if failed else "Complete", reason, message))
        if failed:
            self.events.append(Event(about=self.job, reason=reason, message=message, warning=True))
        else:
            self.status["completionTime"] = timestamp(self.now)
            self.events.append(Event(about=self.job, reason="Completed", message="Job completed"))

    def _condition(self, kind: str, reason: str, message: str) -> Obj:
        now = timestamp(self.now)
        return {
            "type": kind,
            "status": "True",
            "lastProbeTime": now,
            "lastTransitionTime": now,
            "reason": reason,
            "message": message,
        }

    def _set(self, condition: Obj) -> None:
        conditions = [each for each in self.status.get("conditions") or () if each["type"] != condition["type"]]
        self.status["conditions"] = [*conditions, condition]


def _set_fields(status: Obj) -> Obj:
    return {name: value for name, value in status.items() if value}


def _release(pod: Obj) -> Write:
    return Write(method="patch", path=path_of(pod), body=without_finalizer(pod, JOB_FINALIZER))
