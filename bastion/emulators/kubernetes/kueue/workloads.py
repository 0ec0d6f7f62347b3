"""What happens to a Workload besides admission: deactivation, stopped queues, admission checks, requeueing
(kueue pkg/controller/core/workload_controller.go, Reconcile).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

from bastion.emulators.kubernetes.client import Key, Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    condition_of,
    is_deleting,
    is_true,
    labels_of,
    name_of,
    owners_of,
    parse_time,
    status_of,
    timestamp,
)
from bastion.emulators.kubernetes.kueue.admission import (
    checks_in,
    evict,
    finish,
    release_quota,
    retry_at,
    set_requeued,
    sync_admitted,
    sync_checks,
)
from bastion.emulators.kubernetes.kueue.conditions import (
    has_quota,
    is_active,
    is_admitted,
    is_evicted,
    is_false_because,
    is_finished,
    remove_condition,
    set_condition,
)
from bastion.emulators.kubernetes.kueue.jobs import JOB_UID
from bastion.emulators.kubernetes.kueue.queues import checks_for, is_queue_active, stop_policy
from bastion.emulators.kubernetes.kueue.state import State


class Workloads:
    def __init__(self, state: State) -> None:
        self._state = state

    def reconcile(self, key: Key) -> float | None:
        """In how many seconds to look again. Raises ApiError."""
        workload = self._state.workloads.get(*key)
        if workload is None:
            return None
        if not owners_of(workload) and (is_deleting(workload) or JOB_UID in labels_of(workload)):
            self._finish_orphan(workload)
            return None
        if is_finished(workload):
            return None
        if self._wait_for_retry(workload):
            return None
        if is_active(workload):
            if is_true(workload, "DeactivationTarget"):
                self._state.update({**workload, "spec": {**workload["spec"], "active": False}})
                return None
            if (seconds := self._requeue(workload)) is not None:
                return seconds or None
        elif self._deactivate(workload):
            return None
        return self._follow_queues(workload)

    def _finish_orphan(self, workload: Obj) -> None:
        """FinalizeOrphanedWorkload."""
        if not is_deleting(workload) and not is_finished(workload):
            now, message = self._state.now, "The workload's owner no longer exists"
            self._state.change_status(workload, lambda each: finish(each, "OwnerNotFound", message, now=now))
        self._state.drop_finalizer(workload)

    def _wait_for_retry(self, workload: Obj) -> bool:
        """NeedsRequeueAtUpdate: an admission check asks for a later try."""
        at = retry_at(workload)
        known = (status_of(workload).get("requeueState") or {}).get("requeueAt")
        if at is None or at <= self._state.now or (known is not None and parse_time(known) >= at):
            return False

        def change(each: Obj) -> None:
            each["status"].setdefault("requeueState", {})["requeueAt"] = timestamp(at)

        self._state.change_status(workload, change)
        return True

    def _requeue(self, workload: Obj) -> float | None:
        """Put a Workload back after its pause, or after it was activated; None: there is nothing to do about it.

        Otherwise the seconds of the pause that is left, 0: none.
        """
        now, state = self._state.now, status_of(workload).get("requeueState") or {}
        left = (parse_time(state["requeueAt"]) - now).total_seconds() if state.get("requeueAt") else 0.0
        if left > 0:
            return left
        if state.get("requeueAt") and not has_quota(workload):
            self._state.change_status(workload, lambda each: each["status"]["requeueState"].pop("requeueAt"))
            return 0.0
        known = condition_of(workload, "Requeued")
        if known is None or known["status"] != "False":
            return None
        words = {
            "Deactivated": ("Reactivated", "The workload was reactivated"),
            "PodsReadyTimeout": ("BackoffFinished", "The workload backoff was finished"),
            "AdmissionCheck": ("BackoffFinished", "The workload backoff was finished"),
        }.get(known["reason"])
        if words is None:
            return None
        self._state.change_status(workload, lambda each: set_requeued(each, True, *words, now=now))
        return 0.0

    def _deactivate(self, workload: Obj) -> bool:
        """Evict a Workload with `spec.active` false. Whether anything changed."""
        evicted, state = is_evicted(workload), status_of(workload).get("requeueState")
        if evicted and state is None:
            return False
        target = condition_of(workload, "DeactivationTarget")
        now, message, cause = self._state.now, "The workload is deactivated", ""
        if target is not None:
            message, cause = f"{message} due to {target['message']}", target["reason"]

        def change(each: Obj) -> None:
            each.setdefault("status", {}).pop("requeueState", None)
            if target is not None:
                remove_condition(each, "DeactivationTarget")
            if not evicted:
                evict(each, "Deactivated", message, now=now, cause=cause)

        self._state.change_status(workload, change)
        if not evicted and has_quota(workload):
            reason = f"EvictedDueToDeactivated{f'DueTo{cause}' if cause else ''}"
            self._state.event(workload, reason, message)
        return True

    def _follow_queues(self, workload: Obj) -> float | None:
        local = self._state.local_queue_of(workload)
        local_runs = local is not None and stop_policy(local) == "None"
        if local_runs and is_false_because(workload, "Requeued", "LocalQueueStopped"):
            self._requeued(workload, "LocalQueueRestarted", "The LocalQueue was restarted after being stopped")
            return None
        queue = self._state.queues.get("", self._state.queue_name_of(workload))
        if queue is not None:
            if is_false_because(workload, "Requeued", "ClusterQueueStopped") and stop_policy(queue) == "None":
                self._requeued(workload, "ClusterQueueRestarted", "The ClusterQueue was restarted after being stopped")
                return None
            now, names = self._state.now, checks_for(queue, workload)
            before = workload
            changed = self._state.change_status(workload, functools.partial(sync_checks, names=names, now=now))
            if changed is not before:
                return None
        if not is_admitted(workload):
            workload = self._sync_pending(workload, local, queue) or workload
        if not has_quota(workload):
            return None
        if self._evict_for_checks(workload) or self._evict_for_queues(workload, local):
            return None
        return self._max_seconds(workload)

    def _requeued(self, workload: Obj, reason: str, message: str) -> None:
        now = self._state.now
        self._state.change_status(workload, lambda each: set_requeued(each, True, reason, message, now=now))

    def _sync_pending(self, workload: Obj, local: Obj | None, queue: Obj | None) -> Obj | None:
        now, was_reserved = self._state.now, has_quota(workload)
        why = "" if was_reserved else self._blocker(workload, local, queue)

        def change(each: Obj) -> None:
            if why:
                set_condition(each, "QuotaReserved", False, "Inadmissible", why, now=now)
            sync_admitted(each, now=now)

        changed = self._state.change_status(workload, change)
        if changed is not None and is_admitted(changed):
            reserved = condition_of(changed, "QuotaReserved")
            assert reserved is not None
            seconds = (now - parse_time(reserved["lastTransitionTime"])).total_seconds()
            name = status_of(changed)["admission"]["clusterQueue"]
            message = f"Admitted by ClusterQueue {name}, wait time since reservation was {max(seconds, 0):.0f}s"
            self._state.event(changed, "Admitted", message)
        return changed

    def _blocker(self, workload: Obj, local: Obj | None, queue: Obj | None) -> str:
        """getQueueBlocker."""
        if local is None:
            return f"LocalQueue {workload['spec'].get('queueName', '')} doesn't exist"
        if stop_policy(local) != "None":
            return f"LocalQueue {name_of(local)} is inactive"
        if queue is None:
            return f"ClusterQueue {(local.get('spec') or {}).get('clusterQueue', '')} doesn't exist"
        return "" if is_queue_active(self._state, queue) else f"ClusterQueue {name_of(queue)} is inactive"

    def _evict_for_checks(self, workload: Obj) -> bool:
        """reconcileCheckBasedEviction. Whether it is evicted, or will be."""
        rejected, retried = checks_in(workload, "Rejected"), checks_in(workload, "Retry")
        if is_evicted(workload) or not (rejected or retried):
            return False
        now = self._state.now
        if rejected:
            message = _checks_message(rejected, "Rejected")
            if not is_true(workload, "DeactivationTarget"):
                self._state.change_status(
                    workload,
                    lambda each: set_condition(each, "DeactivationTarget", True, "AdmissionCheck", message, now=now),
                )
                self._state.event(workload, "AdmissionCheckRejected", f"Deactivated due to {message}", warning=True)
            return True
        message = f"Evicted due to {_checks_message(retried, 'Retry')}"
        self._evict(workload, "AdmissionCheck", message)
        return True

    def _evict(self, workload: Obj, reason: str, message: str) -> None:
        now = self._state.now
        self._state.change_status(workload, lambda each: evict(each, reason, message, now=now))
        self._state.event(workload, f"EvictedDueTo{reason}", message)

    def _evict_for_queues(self, workload: Obj, local: Obj | None) -> bool:
        """reconcileOnLocalQueueActiveState, reconcileOnClusterQueueActiveState. Whether it lost or loses its quota."""
        name = status_of(workload)["admission"]["clusterQueue"]
        admitting = self._state.queues.get("", name)
        shown = workload["spec"].get("queueName", "")
        for kind, found, shown_name in (("LocalQueue", local, shown), ("ClusterQueue", admitting, name)):
            policy = "None" if found is None else stop_policy(found)
            if is_admitted(workload):
                if policy == "HoldAndDrain" and not is_evicted(workload):
                    self._evict(workload, f"{kind}Stopped", f"The {kind} is stopped")
                    return True
                continue
            if found is None or is_deleting(found):
                why = f"{kind} {shown_name} is terminating or missing"
            elif policy != "None":
                why = f"{kind} {shown_name} is stopped"
            else:
                continue
            now = self._state.now
            self._state.change_status(
                workload, functools.partial(release_quota, reason="Inadmissible", message=why, now=now)
            )
            return True
        return False

    def _max_seconds(self, workload: Obj) -> float | None:
        """reconcileMaxExecutionTime."""
        limit, admitted = workload["spec"].get("maximumExecutionTimeSeconds"), condition_of(workload, "Admitted")
        if limit is None or admitted is None or admitted["status"] != "True":
            return None
        now, past = self._state.now, status_of(workload).get("accumulatedPastExecutionTimeSeconds", 0)
        left = limit - past - (now - parse_time(admitted["lastTransitionTime"])).total_seconds()
        if left > 0:
            return float(left)
        if not is_true(workload, "DeactivationTarget"):

            def change(each: Obj) -> None:
                message = "exceeding the maximum execution time"
                set_condition(each, "DeactivationTarget", True, "MaximumExecutionTimeExceeded", message, now=now)
                each["status"].pop("accumulatedPastExecutionTimeSeconds", None)

            self._state.change_status(workload, change)
            message = f"The maximum execution time ({limit}s) exceeded"
            self._state.event(workload, "MaximumExecutionTimeExceeded", message, warning=True)
        return None


def _checks_message(checks: Sequence[Obj], state: str) -> str:
    """buildAdmissionChecksMessage."""
    parts = [
        f'"{check["name"]}" ({check["message"]})' if check["message"] else f'"{check["name"]}"'
        for check in sorted(checks, key=lambda check: str(check["name"]))
    ]
    noun = "AdmissionChecks" if len(checks) > 1 else "AdmissionCheck"
    return f"{noun} in {state} state: {'; '.join(parts)}"
