"""The scheduler: cycles over the caches, and what they decide written to Workloads
(kueue pkg/scheduler/{scheduler,preemption/preemption}.go).
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable

from bastion.emulators.kubernetes.client import ApiError, Obj
from bastion.emulators.kubernetes.controllers.api_objects import (
    condition_of,
    labels_of,
    name_of,
    namespace_of,
    parse_time,
)
from bastion.emulators.kubernetes.controllers.selectors import matches
from bastion.emulators.kubernetes.kueue import amounts, cycle
from bastion.emulators.kubernetes.kueue.admission import (
    checks_in,
    evict,
    has_checks,
    release_quota,
    reserve_quota,
    sync_admitted,
)
from bastion.emulators.kubernetes.kueue.conditions import is_admitted, set_condition
from bastion.emulators.kubernetes.kueue.cycle import Entry
from bastion.emulators.kubernetes.kueue.jobs import JOB_UID
from bastion.emulators.kubernetes.kueue.pending import Pending, seconds_held
from bastion.emulators.kubernetes.kueue.preemption import WORDS, Target
from bastion.emulators.kubernetes.kueue.queues import checks_for, is_pending, is_queue_active, stop_policy, uses_quota
from bastion.emulators.kubernetes.kueue.snapshot import Info, Snapshot, snapshot
from bastion.emulators.kubernetes.kueue.state import State


class Scheduler:
    def __init__(self, state: State) -> None:
        self._state = state
        self._pending = Pending()
        self._woken = threading.Event()

    def wake(self) -> None:
        """Quota was freed, or a queue changed: the next run tries everything again. Called by any thread."""
        self._woken.set()

    def run(self) -> float | None:
        """One cycle; in how many seconds to look again, 0: more can be admitted. Raises ApiError."""
        if self._woken.is_set():
            self._woken.clear()
            self._pending.wake()
        if self._cycle():
            return 0.0
        held = [
            seconds_held(each, self._state.now) for each in self._state.workloads.items().values() if is_pending(each)
        ]
        return min((seconds for seconds in held if seconds), default=None)

    def _cycle(self) -> bool:
        """Whether another cycle may admit more."""
        state = self._state
        queues = state.queues.items().values()
        active = {name_of(queue) for queue in queues if is_queue_active(state, queue)}
        workloads = state.workloads.items().values()
        using = [state.info(each) for each in workloads if uses_quota(each)]
        found = snapshot(queues, state.cohorts.items().values(), state.flavors.items().values(), using, active)
        heads, progress = [], False
        for name, infos in self._waiting(workloads, active).items():
            head = self._pending.head(infos, name, strict=found.queues[name].strict)
            if head is None:
                continue
            if why := self._inadmissible(head, found):
                self._pending.put_aside(head, equals=False)
                self._report(head, why)
                progress = True
            else:
                heads.append(head)
        for entry in cycle.run(heads, found):
            progress |= self._carry_out(entry, found)
        return progress

    def _waiting(self, workloads: Iterable[Obj], active: set[str]) -> dict[str, list[Info]]:
        """Workloads that may be tried, by ClusterQueue."""
        waiting: dict[str, list[Info]] = defaultdict(list)
        now = self._state.now
        for workload in workloads:
            if not is_pending(workload):
                continue
            local = self._state.local_queue_of(workload)
            if local is None or stop_policy(local) != "None":
                continue
            queue = self._state.queue_name_of(workload)
            if queue in active and seconds_held(workload, now) == 0.0:
                waiting[queue].append(self._state.info(workload, queue))
        return waiting

    def _inadmissible(self, info: Info, found: Snapshot) -> str:
        """What keeps a Workload out whatever the quota (nominate, ValidateAdmissibility)."""
        if checks_in(info.obj, "Retry") or checks_in(info.obj, "Rejected"):
            return "The workload has failed admission checks"
        selector = found.queues[info.queue].spec.get("namespaceSelector")
        if selector != {} and not matches(selector, self._namespace_labels(namespace_of(info.obj))):
            return "workload namespace doesn't match ClusterQueue selector"
        return ""

    def _namespace_labels(self, namespace: str) -> dict[str, str]:
        try:
            return labels_of(self._state.cluster.client.get(f"/api/v1/namespaces/{namespace}"))
        except ApiError as error:
            if error.code == 404:
                return {}
            raise

    def _carry_out(self, entry: Entry, found: Snapshot) -> bool:
        """Whether another cycle may admit more. Raises ApiError."""
        if entry.outcome == "admitted":
            self._admit(entry)
            return True
        message = entry.message
        if entry.outcome == "preempting":
            for target in entry.targets:
                self._preempt(entry.info, target, found)
            message += f". Pending the preemption of {len(entry.targets)} workload(s)"
            self._pending.preempts(entry.info)
        self._report(entry.info, message)
        if entry.outcome == "waiting" and not found.queues[entry.info.queue].strict:
            self._pending.put_aside(entry.info, equals=entry.no_fit)
            return True
        return False

    def _admit(self, entry: Entry) -> None:
        """Quota is reserved, and without admission checks the Workload is admitted (admit, prepareWorkload)."""
        info, now = entry.info, self._state.now
        queue = self._state.queues.get("", info.queue)
        if queue is None:
            return
        admission = entry.assignment.admission(info.queue)
        names = checks_for(queue, {**info.obj, "status": {"admission": admission}})

        def change(each: Obj) -> None:
            reserve_quota(each, admission, now=now)
            if has_checks(each, names):
                sync_admitted(each, now=now)

        changed = self._state.change_status(info.obj, change)
        if changed is None:
            return
        message = f"Quota reserved in ClusterQueue {info.queue}, wait time since queued was {self._waited(info)}s"
        self._state.event(changed, "QuotaReserved", message)
        if is_admitted(changed):
            message = f"Admitted by ClusterQueue {info.queue}, wait time since reservation was 0s"
            self._state.event(changed, "Admitted", message)

    def _waited(self, info: Info) -> int:
        """QueuedWaitTime."""
        requeued = condition_of(info.obj, "Requeued")
        since = requeued["lastTransitionTime"] if requeued is not None else info.obj["metadata"]["creationTimestamp"]
        return max(0, round((self._state.now - parse_time(since)).total_seconds()))

    def _report(self, info: Info, message: str) -> None:
        """Why a Workload waits (requeueAndUpdate)."""
        now = self._state.now

        def change(each: Obj) -> None:
            release_quota(each, "Pending", message, now=now)
            each["status"]["resourceRequests"] = [
                {
                    "name": pod_set.name,
                    "resources": {name: amounts.text(name, amount) for name, amount in pod_set.requests.items()},
                }
                for pod_set in info.pod_sets
            ]

        if self._state.change_status(info.obj, change) is not info.obj:
            self._state.event(info.obj, "Pending", message, warning=True)

    def _preempt(self, info: Info, target: Target, found: Snapshot) -> None:
        """IssuePreemptions."""
        if target.info.evicted:
            return
        now, other = self._state.now, target.info
        job = labels_of(info.obj).get(JOB_UID) or "UNKNOWN"
        message = (
            f"Preempted to accommodate a workload (UID: {info.uid}, JobUID: {job}) due to {WORDS[target.reason]}; "
            f"preemptor path: {_path(info, found)}; preemptee path: {_path(other, found)}"
        )

        def change(each: Obj) -> None:
            set_condition(each, "Preempted", True, target.reason, message, now=now, observed=False)
            evict(each, "Preempted", message, now=now)

        changed = self._state.change_status(other.obj, change)
        if changed is None:
            return
        priorities = (
            f"preemptor effective priority: {info.priority} (base: {info.priority}, boost: 0); "
            f"preemptee effective priority: {other.priority} (base: {other.priority}, boost: 0)"
        )
        self._state.event(changed, "EvictedDueToPreempted", message)
        self._state.event(changed, "Preempted", f"{message}; {priorities}")
        name = f"{namespace_of(other.obj)}/{name_of(other.obj)}"
        text = f"Preempted workload {name} (UID: {other.uid}) in ClusterQueue {other.queue}; {priorities}"
        self._state.event(info.obj, "PreemptedWorkload", text)


def _path(info: Info, found: Snapshot) -> str:
    """buildCQPath."""
    cohort = found.queues[info.queue].parent
    return f"/{cohort.name}/{info.queue}" if cohort is not None else f"/{info.queue}"
