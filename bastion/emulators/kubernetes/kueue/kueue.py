"""Kueue's controllers on one thread: which change leads to which work."""

from __future__ import annotations

from bastion.emulators.kubernetes.client import Key, Obj, key
from bastion.emulators.kubernetes.controllers.api_objects import name_of, namespace_of, status_of
from bastion.emulators.kubernetes.controllers.cluster import Cluster
from bastion.emulators.kubernetes.controllers.reconcile_loop import Loop
from bastion.emulators.kubernetes.kueue.jobs import Jobs, owner_name
from bastion.emulators.kubernetes.kueue.queues import Queues, flavors_of, uses_quota
from bastion.emulators.kubernetes.kueue.scheduler import Scheduler
from bastion.emulators.kubernetes.kueue.state import State, Task
from bastion.emulators.kubernetes.kueue.workloads import Workloads

_CYCLE = Task("cycle")
# Counters of queues are written this long after a change, so that many changes make one write.
_COUNT_SECONDS = 0.05


class Kueue:
    def __init__(self, cluster: Cluster) -> None:
        self._state = state = State(cluster)
        self._jobs = Jobs(state)
        self._workloads = Workloads(state)
        self._queues = Queues(state)
        self._scheduler = Scheduler(state)
        self.loop: Loop[Task] = Loop("kueue", self._reconcile)
        state.job_sets.subscribe(self._job_set_changed)
        state.workloads.subscribe(self._workload_changed)
        state.queues.subscribe(self._queue_changed)
        state.local_queues.subscribe(self._local_queue_changed)
        for informer in (state.flavors, state.cohorts, state.checks, state.priorities):
            informer.subscribe(self._setting_changed)

    def _reconcile(self, task: Task) -> float | None:
        match task.part:
            case "job":
                return self._jobs.reconcile(task.key)
            case "workload":
                return self._workloads.reconcile(task.key)
            case "cycle":
                return self._scheduler.run()
            case "queue":
                self._queues.reconcile_queue(task.key)
            case "local queue":
                self._queues.reconcile_local_queue(task.key)
            case "flavor":
                self._queues.reconcile_flavor(task.key)
        return None

    def _job_set_changed(self, old: Obj | None, new: Obj | None) -> None:
        self.loop.add(Task("job", _key(old, new)))

    def _workload_changed(self, old: Obj | None, new: Obj | None) -> None:
        for each in (old, new):
            if each is not None:
                self._count(each)
                if owner := owner_name(each):
                    self.loop.add(Task("job", (namespace_of(each), owner)))
        if new is not None:
            self.loop.add(Task("workload", key(new)))
        elif old is not None:
            self._state.forget(old)
        if old is not None and uses_quota(old) and (new is None or _usage(old) != _usage(new)):
            self._wake()
        else:
            self.loop.add(_CYCLE)

    def _count(self, workload: Obj) -> None:
        namespace, local = namespace_of(workload), workload["spec"].get("queueName", "")
        self.loop.add(Task("local queue", (namespace, local)), after_seconds=_COUNT_SECONDS)
        admission = status_of(workload).get("admission") or {}
        for name in {admission.get("clusterQueue"), self._state.queue_name_of(workload)}:
            if name:
                self.loop.add(Task("queue", ("", name)), after_seconds=_COUNT_SECONDS)

    def _queue_changed(self, old: Obj | None, new: Obj | None) -> None:
        name = _key(old, new)
        self.loop.add(Task("queue", name))
        for each in (old, new):
            for flavor in flavors_of(each) if each is not None else ():
                self.loop.add(Task("flavor", ("", flavor)))
        for local in self._state.local_queues.items().values():
            if (local.get("spec") or {}).get("clusterQueue") == name[1]:
                self.loop.add(Task("local queue", key(local)))
        if _intent(old) != _intent(new):
            self._look_again()

    def _local_queue_changed(self, old: Obj | None, new: Obj | None) -> None:
        self.loop.add(Task("local queue", _key(old, new)))
        if _intent(old) != _intent(new):
            self._look_again()

    def _setting_changed(self, old: Obj | None, new: Obj | None) -> None:
        obj = new or old
        assert obj is not None
        if obj["kind"] == "ResourceFlavor":
            self.loop.add(Task("flavor", key(obj)))
        for queue in self._state.queues.items():
            self.loop.add(Task("queue", queue))
        if obj["kind"] == "WorkloadPriorityClass":
            for job_set in self._state.job_sets.items():
                self.loop.add(Task("job", job_set))
        self._look_again()

    def _look_again(self) -> None:
        """What a change of queues may mean for every Workload."""
        for name in self._state.workloads.items():
            self.loop.add(Task("workload", name))
        self._wake()

    def _wake(self) -> None:
        self._scheduler.wake()
        self.loop.add(_CYCLE)


def _key(old: Obj | None, new: Obj | None) -> Key:
    obj = new or old
    assert obj is not None
    return key(obj)


def _intent(queue: Obj | None) -> object:
    if queue is None:
        return None
    return queue.get("spec"), queue["metadata"].get("deletionTimestamp"), name_of(queue)


def _usage(workload: Obj) -> object:
    """What of a Workload counts against quota."""
    status = status_of(workload)
    return uses_quota(workload), status.get("admission"), status.get("reclaimablePods")
