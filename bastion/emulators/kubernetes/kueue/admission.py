"""How a Workload's status changes: quota, admission checks, admission, eviction, the end. All functions change it in
place.

Sources: kueue pkg/workload/{workload,admissionchecks}.go, pkg/workload/{evict,finish}/.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import condition_of, parse_time, status_of, timestamp
from bastion.emulators.kubernetes.kueue.conditions import (
    Now,
    has_quota,
    is_admitted,
    reset_condition,
    set_condition,
)


def reserve_quota(workload: Obj, admission: Obj, *, now: Now) -> None:
    """SetQuotaReservation."""
    workload.setdefault("status", {})["admission"] = admission
    # The requests of a pending Workload are superseded by the admission's (admissionStatusPatch).
    workload["status"].pop("resourceRequests", None)
    message = f"Quota reserved in ClusterQueue {admission['clusterQueue']}"
    set_condition(workload, "QuotaReserved", True, "QuotaReserved", message, now=now)
    for kind in ("Evicted", "Preempted"):
        reset_condition(workload, kind, "QuotaReserved", now=now)


def release_quota(workload: Obj, reason: str, message: str, *, now: Now) -> None:
    """UnsetQuotaReservationWithCondition."""
    set_condition(workload, "QuotaReserved", False, reason, message, now=now)
    workload["status"].pop("admission", None)
    sync_admitted(workload, now=now)


def sync_admitted(workload: Obj, *, now: Now) -> None:
    """SyncAdmittedCondition; reasons as with the gate UnadmittedWorkloadsObservability off."""
    reserved, ready, admitted = has_quota(workload), all_checks_ready(workload), is_admitted(workload)
    if admitted == (reserved and ready):
        return
    if admitted:
        since = condition_of(workload, "Admitted")
        assert since is not None
        seconds = int((now - parse_time(since["lastTransitionTime"])).total_seconds())
        status = workload["status"]
        field = "accumulatedPastExecutionTimeSeconds"
        status[field] = status.get(field, 0) + seconds
    reason, message = {
        (True, True): ("Admitted", "The workload is admitted"),
        (True, False): ("UnsatisfiedChecks", "The workload has not all checks ready"),
        (False, True): ("NoReservation", "The workload has no reservation"),
        (False, False): (
            "NoReservationUnsatisfiedChecks",
            "The workload has no reservation and not all checks ready",
        ),
    }[reserved, ready]
    set_condition(workload, "Admitted", reserved and ready, reason, message, now=now)


def checks_of(workload: Obj) -> list[Obj]:
    return status_of(workload).get("admissionChecks") or []


def all_checks_ready(workload: Obj) -> bool:
    return all(check["state"] == "Ready" for check in checks_of(workload))


def has_checks(workload: Obj, names: Iterable[str]) -> bool:
    """HasAllRequiredChecks."""
    return set(names) <= {check["name"] for check in checks_of(workload)}


def checks_in(workload: Obj, state: str) -> list[Obj]:
    return [check for check in checks_of(workload) if check["state"] == state]


def sync_checks(workload: Obj, names: set[str], *, now: Now) -> None:
    """syncAdmissionCheckConditions: the Workload gets the checks of its ClusterQueue."""
    known = {check["name"]: check for check in checks_of(workload)}
    if known.keys() == names:
        return
    new = {"state": "Pending", "message": "", "lastTransitionTime": timestamp(now)}
    workload.setdefault("status", {})["admissionChecks"] = [
        known.get(name) or {"name": name, **new} for name in sorted(names)
    ]


def evict(workload: Obj, reason: str, message: str, *, now: Now, cause: str = "") -> None:
    """Evict, without its preparation by callers; `cause`: of a deactivation by Kueue."""
    shown = f"{reason}DueTo{cause}" if reason == "Deactivated" and cause else reason
    set_condition(workload, "Evicted", True, shown, message, now=now)
    for check in checks_of(workload):
        if check["state"] != "Pending":
            _reset(check, now=now)
    evictions = workload["status"].setdefault("schedulingStats", {}).setdefault("evictions", [])
    for known in evictions:
        if (known["reason"], known["underlyingCause"]) == (reason, cause):
            known["count"] += 1
            return
    evictions.append({"reason": reason, "underlyingCause": cause, "count": 1})


def _reset(check: Obj, *, now: Now) -> None:
    """resetChecksOnEviction."""
    before = check["state"]
    check.update(
        state="Pending",
        message=f"Reset to Pending after eviction. Previously: {before}",
        lastTransitionTime=timestamp(now),
    )
    check.pop("podSetUpdates", None)
    retries = check.pop("retryCount", 0)
    if before == "Retry":
        check["retryCount"] = retries + 1


def set_requeued(workload: Obj, status: bool, reason: str, message: str, *, now: Now) -> None:
    set_condition(workload, "Requeued", status, reason, message, now=now)


def finish(workload: Obj, reason: str, message: str, *, now: Now) -> None:
    set_condition(workload, "Finished", True, reason, message, now=now)


def retry_at(workload: Obj) -> datetime.datetime | None:
    """GetMaxRetryTime: when all checks that asked for a retry have waited."""
    times = [
        parse_time(check["lastTransitionTime"]) + datetime.timedelta(seconds=check["requeueAfterSeconds"])
        for check in checks_in(workload, "Retry")
        if check.get("requeueAfterSeconds") is not None
    ]
    return max(times, default=None)
