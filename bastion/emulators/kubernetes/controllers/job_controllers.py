"""The JobSet and Job controllers: which object to reconcile when, on the decisions of `jobset` and `job`."""

from __future__ import annotations

from bastion.emulators.kubernetes.client import ApiError, Key, Obj, key
from bastion.emulators.kubernetes.controllers import job as job_decisions
from bastion.emulators.kubernetes.controllers import jobset as jobset_decisions
from bastion.emulators.kubernetes.controllers.api_objects import (
    JOB,
    JOB_FINALIZER,
    JOB_SET,
    NODE,
    POD,
    SERVICE,
    controller_of,
    has_finalizer,
    namespace_of,
    uid_of,
)
from bastion.emulators.kubernetes.controllers.cluster import Cluster, Index
from bastion.emulators.kubernetes.controllers.exclusive import admit
from bastion.emulators.kubernetes.controllers.jobset_jobs import subdomain_of
from bastion.emulators.kubernetes.controllers.reconcile_loop import Loop


def _controlled_by(kind: str, obj: Obj) -> tuple[str, ...]:
    owner = controller_of(obj)
    return (owner["uid"],) if owner is not None and owner["kind"] == kind else ()


def _is_nobodys(pod: Obj) -> bool:
    """Whether a pod was a Job's until somebody orphaned it (enqueueOrphanPod)."""
    return controller_of(pod) is None and has_finalizer(pod, JOB_FINALIZER)


class JobSetController:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._job_sets = cluster.informer(JOB_SET)
        self._services = cluster.informer(SERVICE)
        self._jobs = Index(cluster.informer(JOB), lambda obj: _controlled_by("JobSet", obj))
        self.loop: Loop[Key] = Loop("jobset controller", self._reconcile)
        self._job_sets.subscribe(self._job_set_changed)
        cluster.informer(JOB).subscribe(self._owned_changed)
        self._services.subscribe(self._owned_changed)

    def _job_set_changed(self, _old: Obj | None, new: Obj | None) -> None:
        if new is not None:
            self.loop.add(key(new))

    def _owned_changed(self, old: Obj | None, new: Obj | None) -> None:
        for obj in (old, new):
            if obj is not None and _controlled_by("JobSet", obj):
                owner = controller_of(obj)
                assert owner is not None
                self.loop.add((namespace_of(obj), owner["name"]))

    def _reconcile(self, name: Key) -> float | None:
        job_set = self._job_sets.get(*name)
        if job_set is None:
            return None
        outcome = jobset_decisions.sync(
            job_set,
            self._jobs.get(uid_of(job_set)),
            has_service=self._services.get(name[0], subdomain_of(job_set)) is not None,
            now=self._cluster.clock(),
        )
        self._cluster.apply(outcome)
        return outcome.again_seconds


# Namespace, name and uid: a Job of the same name may follow. Without a uid it is a pod that is nobody's.
_JobKey = tuple[str, str, str]


class JobController:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._jobs = cluster.informer(JOB)
        self._nodes = cluster.informer(NODE)
        self._all_pods = cluster.informer(POD)
        self._pods = Index(self._all_pods, lambda obj: _controlled_by("Job", obj))
        self.loop: Loop[_JobKey] = Loop("job controller", self._reconcile)
        self._jobs.subscribe(self._job_changed)
        self._all_pods.subscribe(self._pod_changed)

    def _job_changed(self, old: Obj | None, new: Obj | None) -> None:
        obj = new or old
        assert obj is not None
        self.loop.add((*key(obj), uid_of(obj)))

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        obj = new or old
        assert obj is not None
        if _controlled_by("Job", obj):
            owner = controller_of(obj)
            assert owner is not None
            self.loop.add((namespace_of(obj), owner["name"], owner["uid"]))
        elif new is not None and _is_nobodys(new):
            self.loop.add((*key(new), ""))

    def _reconcile(self, name: _JobKey) -> float | None:
        namespace, job_name, uid = name
        if not uid:
            pod = self._all_pods.get(namespace, job_name)
            if pod is not None and _is_nobodys(pod):
                self._cluster.apply(job_decisions.release([pod]))
            return None
        job = self._jobs.get(namespace, job_name)
        pods = self._pods.get(uid)
        if job is None or uid_of(job) != uid:
            held = [pod for pod in pods if has_finalizer(pod, JOB_FINALIZER)]
            if held and self._is_gone(namespace, job_name, uid):
                self._cluster.apply(job_decisions.release(held))
            return None
        outcome = job_decisions.sync(
            job,
            pods,
            now=self._cluster.clock(),
            admit=lambda pod: admit(pod, pods, lambda node: self._nodes.get("", node)),
        )
        self._cluster.apply(outcome)
        return outcome.again_seconds

    def _is_gone(self, namespace: str, job_name: str, uid: str) -> bool:
        """Ask the server: the cache of Jobs may be behind that of pods."""
        try:
            return uid_of(self._cluster.client.get(JOB.path(namespace, job_name))) != uid
        except ApiError as error:
            if error.code == 404:
                return True
            raise
