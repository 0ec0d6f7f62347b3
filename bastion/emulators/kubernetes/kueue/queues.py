"""ClusterQueues, LocalQueues and ResourceFlavors: whether they work, what is used of them, when they may be deleted.

Sources: kueue pkg/controller/core/{clusterqueue,localqueue,resourceflavor}_controller.go,
pkg/cache/scheduler/{clusterqueue,cache}.go.
"""

from __future__ import annotations

from collections.abc import Iterable

from bastion.emulators.kubernetes.client import Key, Obj
from bastion.emulators.kubernetes.controllers.api_objects import is_deleting, is_true, name_of, namespace_of, status_of
from bastion.emulators.kubernetes.kueue import amounts
from bastion.emulators.kubernetes.kueue.conditions import has_quota, is_active, is_admitted, is_finished, set_condition
from bastion.emulators.kubernetes.kueue.snapshot import Info
from bastion.emulators.kubernetes.kueue.state import State


def stop_policy(queue: Obj) -> str:
    return str((queue.get("spec") or {}).get("stopPolicy", "None"))


def flavors_of(queue: Obj) -> list[str]:
    """In the order of its resource groups."""
    groups = (queue.get("spec") or {}).get("resourceGroups") or ()
    return [flavor["name"] for group in groups for flavor in group["flavors"]]


def checks_of(queue: Obj) -> dict[str, set[str]]:
    """The flavors of each admission check."""
    strategy = (queue.get("spec") or {}).get("admissionChecksStrategy") or {}
    return {
        check["name"]: set(check.get("onFlavors") or flavors_of(queue))
        for check in strategy.get("admissionChecks") or ()
    }


def checks_for(queue: Obj, workload: Obj) -> set[str]:
    """AdmissionChecksForWorkload: those of its flavors, or before it has some, those of all flavors."""
    checks, admission = checks_of(queue), status_of(workload).get("admission")
    if admission is None:
        everything = set(flavors_of(queue))
        return {name for name, flavors in checks.items() if flavors >= everything}
    assigned = {flavor for each in admission.get("podSetAssignments") or () for flavor in each["flavors"].values()}
    return {name for name, flavors in checks.items() if flavors & assigned}


def inactive_reason(state: State, queue: Obj) -> tuple[str, str]:
    """Reason and message of the condition Active; Ready if it may admit (inactiveReason)."""
    if is_deleting(queue):
        return "Terminating", "Can't admit new workloads; clusterQueue is terminating"
    found = []
    if stop_policy(queue) != "None":
        found.append(("Stopped", "is stopped"))
    if missing := sorted({name for name in flavors_of(queue) if state.flavors.get("", name) is None}):
        found.append(("FlavorNotFound", f"references missing ResourceFlavor(s): {','.join(missing)}"))
    checks = {name: state.checks.get("", name) for name in sorted(checks_of(queue))}
    if missing := [name for name, check in checks.items() if check is None]:
        found.append(("AdmissionCheckNotFound", f"references missing AdmissionCheck(s): {','.join(missing)}"))
    if idle := [name for name, check in checks.items() if check is not None and not is_true(check, "Active")]:
        found.append(("AdmissionCheckInactive", f"references inactive AdmissionCheck(s): {','.join(idle)}"))
    if multi := [name for name, check in checks.items() if check is not None and _is_multi(check)]:
        found.append(("NotEmulated", f"the emulator has no MultiKueue: {','.join(multi)}"))
    if not found:
        return "Ready", "Can admit new workloads"
    return found[0][0], f"Can't admit new workloads: {', '.join(text for _, text in found)}."


def _is_multi(check: Obj) -> bool:
    return bool(check["spec"]["controllerName"] == "kueue.x-k8s.io/multikueue")


def is_queue_active(state: State, queue: Obj) -> bool:
    return inactive_reason(state, queue)[0] == "Ready"


class Queues:
    def __init__(self, state: State) -> None:
        self._state = state

    def reconcile_queue(self, key: Key) -> None:
        """Raises ApiError."""
        queue = self._state.queues.get(*key)
        if queue is None:
            return
        name = name_of(queue)
        using = [workload for workload in self._using() if _admitted_to(workload) == name]
        if is_deleting(queue) and not using:
            self._state.drop_finalizer(queue)
            return
        pending = [each for each in self._pending() if self._state.queue_name_of(each) == name]
        infos = [self._state.info(each) for each in using]
        reason, message = inactive_reason(self._state, queue)
        now = self._state.now

        def change(each: Obj) -> None:
            each["status"] = {**(each.get("status") or {}), **_counts(queue, infos, len(pending), borrowed=True)}
            set_condition(each, "Active", reason == "Ready", reason, message, now=now)

        self._state.change_status(queue, change)

    def reconcile_local_queue(self, key: Key) -> None:
        """Raises ApiError."""
        local = self._state.local_queues.get(*key)
        if local is None:
            return
        name = (local.get("spec") or {}).get("clusterQueue", "")
        queue = self._state.queues.get("", name)
        infos = [self._state.info(each) for each in self._using() if _is_in(each, local)]
        pending = [each for each in self._pending() if _is_in(each, local)]
        active, words = False, ("Stopped", "LocalQueue is stopped")
        if stop_policy(local) == "None":
            reason = "ClusterQueueDoesNotExist" if queue is None else "ClusterQueueIsInactive"
            words = (reason, "Can't submit new workloads to clusterQueue")
            if queue is not None and is_true(queue, "Active"):
                active, words = True, ("Ready", "Can submit new workloads to localQueue")
        now = self._state.now

        def change(each: Obj) -> None:
            own = _counts(queue or {}, infos, len(pending), borrowed=False)
            each["status"] = {**(each.get("status") or {}), **own}
            set_condition(each, "Active", active, *words, now=now)

        self._state.change_status(local, change)

    def reconcile_flavor(self, key: Key) -> None:
        """Raises ApiError."""
        flavor = self._state.flavors.get(*key)
        if flavor is not None and is_deleting(flavor):
            users = [queue for queue in self._state.queues.items().values() if name_of(flavor) in flavors_of(queue)]
            if not users:
                self._state.drop_finalizer(flavor)

    def _using(self) -> list[Obj]:
        return [each for each in self._state.workloads.items().values() if uses_quota(each)]

    def _pending(self) -> list[Obj]:
        return [each for each in self._state.workloads.items().values() if is_pending(each)]


def uses_quota(workload: Obj) -> bool:
    """HasActiveQuotaReservation."""
    return has_quota(workload) and not is_finished(workload) and is_active(workload)


def is_pending(workload: Obj) -> bool:
    """IsAdmissible."""
    return not has_quota(workload) and not is_finished(workload) and is_active(workload) and not is_deleting(workload)


def _admitted_to(workload: Obj) -> str:
    return str((status_of(workload).get("admission") or {}).get("clusterQueue", ""))


def _is_in(workload: Obj, local: Obj) -> bool:
    same_name = workload["spec"].get("queueName") == name_of(local)
    return same_name and namespace_of(workload) == namespace_of(local)


def _counts(queue: Obj, using: list[Info], pending: int, *, borrowed: bool) -> Obj:
    admitted = [info for info in using if is_admitted(info.obj)]
    return {
        "pendingWorkloads": pending,
        "reservingWorkloads": len(using),
        "admittedWorkloads": len(admitted),
        "flavorsReservation": _usage(queue, using, borrowed=borrowed),
        "flavorsUsage": _usage(queue, admitted, borrowed=borrowed),
    }


def _usage(queue: Obj, infos: Iterable[Info], *, borrowed: bool) -> list[Obj]:
    total: dict[tuple[str, str], int] = {}
    for info in infos:
        for resource, amount in info.usage.items():
            total[resource] = total.get(resource, 0) + amount
    flavors = []
    for group in (queue.get("spec") or {}).get("resourceGroups") or ():
        for flavor in group["flavors"]:
            resources = []
            for each in sorted(flavor["resources"], key=lambda each: str(each["name"])):
                name = each["name"]
                used = total.get((flavor["name"], name), 0)
                own: Obj = {"name": name, "total": amounts.text(name, used)}
                if borrowed:
                    over = max(0, used - amounts.amount(name, each["nominalQuota"]))
                    own["borrowed"] = amounts.text(name, over if queue["spec"].get("cohortName") else 0)
                resources.append(own)
            flavors.append({"name": flavor["name"], "resources": resources})
    return flavors
