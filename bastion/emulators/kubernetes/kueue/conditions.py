"""Conditions of Workloads and queues (apimachinery pkg/api/meta/conditions.go), and what Kueue reads from them."""

from __future__ import annotations

import datetime

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import condition_of, is_true, timestamp

# kueue pkg/util/api/api.go.
_MESSAGE_MAX = 32 * 1024

Now = datetime.datetime


def set_condition(
    obj: Obj, kind: str, status: bool, reason: str, message: str, *, now: Now, observed: bool = True
) -> None:
    """SetStatusCondition: the time changes with the status only. `observed`: with the object's generation."""
    if len(message) > _MESSAGE_MAX:
        message = message[: _MESSAGE_MAX - 3] + "..."
    conditions: list[Obj] = obj.setdefault("status", {}).setdefault("conditions", [])
    changed: Obj = {"type": kind, "status": str(status), "reason": reason, "message": message}
    if observed:
        changed["observedGeneration"] = obj["metadata"].get("generation", 0)
    for place, known in enumerate(conditions):
        if known["type"] == kind:
            at = known["lastTransitionTime"] if known["status"] == str(status) else timestamp(now)
            conditions[place] = {"lastTransitionTime": at, **changed}
            return
    conditions.append({"lastTransitionTime": timestamp(now), **changed})


def remove_condition(obj: Obj, kind: str) -> None:
    obj["status"]["conditions"] = [each for each in obj["status"].get("conditions") or () if each["type"] != kind]


def reset_condition(obj: Obj, kind: str, reason: str, *, now: Now) -> None:
    """resetActiveCondition: a condition that was true becomes history."""
    known = condition_of(obj, kind)
    if known is not None and known["status"] == "True":
        set_condition(obj, kind, False, reason, f"Previously: {known['message']}", now=now)


def is_false_because(obj: Obj, kind: str, *reasons: str) -> bool:
    known = condition_of(obj, kind)
    return known is not None and known["status"] == "False" and known["reason"] in reasons


def has_quota(workload: Obj) -> bool:
    return is_true(workload, "QuotaReserved")


def is_admitted(workload: Obj) -> bool:
    return is_true(workload, "Admitted")


def is_finished(workload: Obj) -> bool:
    return is_true(workload, "Finished")


def is_evicted(workload: Obj) -> bool:
    return is_true(workload, "Evicted")


def is_active(workload: Obj) -> bool:
    """Not deactivated."""
    return bool(workload["spec"].get("active", True))
