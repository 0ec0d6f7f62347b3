"""Gangs on one Kubernetes cluster, behind the `Provisioner` port: a JobSet for each.

Listings come from caches that watch the cluster; lookups and deletions ask it. A cache may lag: absence is confirmed by
`get`, names are never reused, and a lost gang stays lost, so that a lag delays and never misleads. Nothing counts as
gone before the cluster has shown that it is the one of the settings.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from bastion.adapters.kubernetes import failures, kueue, manifest, seen, terms
from bastion.adapters.kubernetes.api import KubernetesApi, Listing
from bastion.adapters.kubernetes.api_errors import NoAnswer, NoSuchType
from bastion.adapters.kubernetes.cluster_identity import ClusterIdentity
from bastion.adapters.kubernetes.kueue import SeenWorkload
from bastion.adapters.kubernetes.list_watch import ListWatch, Pace
from bastion.adapters.kubernetes.refused_pods import RefusedPods
from bastion.adapters.kubernetes.seen import SeenJob, SeenJobSet, SeenPod
from bastion.adapters.kubernetes.state import Parts, gang_status, is_ending, name_of
from bastion.adapters.kubernetes.workloads import Workloads
from bastion.core.errors import (
    GangExists,
    ProvisionerError,
    ProvisionerRefused,
    ProvisionerUnavailable,
)
from bastion.core.model.clusters import ClusterSettings
from bastion.core.model.gangs import GangRef, GangRequest, GangStatus
from bastion.ports import Clock

# The longest that one call of the port waits, with all its requests.
CALL_SECONDS = 10.0
T = TypeVar("T")
_Part = TypeVar("_Part", SeenJob, SeenPod)


@dataclass(slots=True)
class _Found:
    """What exists of one gang, while it is gathered. `without_kueue`: see `Parts`."""

    jobset: SeenJobSet | None = None
    jobs: list[SeenJob] = field(default_factory=list)
    pods: list[SeenPod] = field(default_factory=list)
    workload: SeenWorkload | None = None
    without_kueue: bool = False


class KubernetesProvisioner:
    """Behind the `Provisioner` port; thread-safe.

    Args:
        bastion: The value of the label that marks objects as this bastion's.
        startup_script: Run by bash in each container.
        call_seconds: What one call of the port may take, so that a cluster that hangs does not outlast the daemon's
            lease. A cluster that is slow gets more, up to `CALL_SECONDS`.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        *,
        bastion: str,
        startup_script: str,
        clock: Clock,
        pace: Pace | None = None,
        call_seconds: float = CALL_SECONDS,
    ) -> None:
        self._settings = settings
        self._bastion = bastion
        self._startup_script = startup_script
        self._clock = clock
        self._api = KubernetesApi(settings, clock=clock)
        self._identity = ClusterIdentity(self._api, settings)
        source = _Verified(self._api, self._identity)
        selector = f"{terms.LABEL_BASTION}={bastion}"

        def watch(kind: str, shrink: Callable[[Mapping[str, Any]], T], label_selector: str = selector) -> ListWatch[T]:
            path = terms.collection(kind, settings.namespace)
            return ListWatch(source, path, label_selector=label_selector, shrink=shrink, clock=clock, pace=pace)

        self._jobsets = watch("jobsets", seen.jobset)
        self._jobs = watch("jobs", seen.job)
        self._pods = watch("pods", seen.pod)
        workloads = watch("workloads", kueue.shrink, "")
        self._workloads = Workloads(self._api, settings.namespace, clock, cache=workloads, asking=self._asking)
        # All that are watched; Workloads only where gangs are in queues.
        self._caches: tuple[ListWatch[Any], ...] = (self._jobsets, self._jobs, self._pods)
        if settings.queue:
            self._caches += (workloads,)
        self._refused_pods = RefusedPods(self._api, settings.namespace, clock, asking=self._asking)
        self._waits: dict[str, float] = {}  # since when a pod, by uid, has waited for what may pass
        self._taken: set[str] = set()  # names of ours that someone else's JobSet has
        self._orphaned: set[str] = set()  # gangs of which Jobs or pods are left, and no JobSet
        self._started = False
        self._doubted_at: float | None = None  # when a request got no answer
        self._call_seconds = min(call_seconds, CALL_SECONDS)
        self._patience = self._call_seconds  # of the next call
        self._lock = threading.Lock()

    def close(self) -> None:
        for cache in (self._jobsets, self._jobs, self._pods, self._workloads.cache):
            cache.close()
        self._api.close()

    def create(self, request: GangRequest) -> None:
        document = manifest.jobset(request, self._settings, bastion=self._bastion, startup_script=self._startup_script)
        path = terms.collection("jobsets", self._settings.namespace)
        with self._asking():
            self._identity.check()
            self._taken.discard(request.ref.name)
            self._orphaned.discard(request.ref.name)
            try:
                self._api.create(path, document)
            except GangExists:
                found = self._api.get(f"{path}/{request.ref.name}")
                if found is not None and not self._is_ours(found):
                    self._taken.add(request.ref.name)
                raise

    def failure(self, ref: GangRef) -> Exception | None:
        """See the port. What else fails here leaves a JobSet behind, whose status tells why."""
        if ref.name not in self._taken:
            return None
        return ProvisionerError(
            f"the namespace {self._settings.namespace} has a JobSet {ref.name} without the label "
            f"{terms.LABEL_BASTION}={self._bastion}: it already exists and is not ours; it is left alone, and the "
            "next attempt has another name"
        )

    def _is_ours(self, item: Mapping[str, Any]) -> bool:
        return seen.manager(item) == self._bastion

    def get(self, ref: GangRef) -> GangStatus | None:
        """See the port: three requests, and one more before something counts as gone."""
        with self._asking():
            found = self._look_up(ref)
            if found is None:
                self._identity.check()
        return found

    def list(self, zone: str = "") -> Sequence[GangStatus]:
        """See the port: no request, but for a gang whose pods cannot be created, or whose JobSet is not listed."""
        self._start()
        self._require_answers()
        gangs: dict[str, _Found] = {}
        # Pods first: what appears meanwhile has its JobSet in the later snapshot, unless that cache lags.
        for pod in _with_run(self._pods):
            gangs.setdefault(name_of(pod.run), _Found()).pods.append(pod)
        for job in _with_run(self._jobs):
            gangs.setdefault(name_of(job.run), _Found()).jobs.append(job)
        for jobset in self._jobsets.snapshot().values():
            gangs.setdefault(jobset.name, _Found()).jobset = jobset
        unlisted = [name for name, found in gangs.items() if found.jobset is None]
        with contextlib.suppress(ProvisionerUnavailable):
            while unlisted:
                gangs[unlisted[-1]].jobset = self._unlisted_jobset(unlisted[-1])
                unlisted.pop()
        for name in unlisted:
            del gangs[name]  # unknown: a look-up tells the caller so
        with self._lock:
            self._orphaned &= gangs.keys()
        self._add_workloads([found for found in gangs.values() if found.jobset is not None and found.jobset.queue])
        self._note_waits([pod for found in gangs.values() for pod in found.pods])
        return [self._status(name, zone, found) for name, found in sorted(gangs.items())]

    def _unlisted_jobset(self, name: str) -> SeenJobSet | None:
        """Ask once whether parts have lost their JobSet, or their own cache is ahead of the JobSets'."""
        if name in self._orphaned:
            return None
        with self._asking():
            item = self._api.get(f"{terms.collection('jobsets', self._settings.namespace)}/{name}")
            if item is not None and self._is_ours(item):
                return seen.jobset(item)
            self._identity.check()
        with self._lock:
            self._orphaned.add(name)
        return None

    def delete(self, ref: GangRef) -> None:
        """See the port. Raises ProvisionerRefused for a JobSet without our label."""
        with self._asking():
            self._delete(ref)

    def _delete(self, ref: GangRef) -> None:
        path = f"{terms.collection('jobsets', self._settings.namespace)}/{ref.name}"
        item = self._api.get(path)
        if item is None:
            self._delete_rest(ref)
            return
        if not self._is_ours(item):
            raise ProvisionerRefused(
                f"the JobSet {ref.name} in {self._settings.namespace} lacks the label {terms.LABEL_BASTION}="
                f"{self._bastion}, so it is not this bastion's; delete it yourself if nobody needs it"
            )
        if not item["metadata"].get("deletionTimestamp"):
            self._identity.check()
            self._api.delete(path, propagation="Foreground", uid=item["metadata"].get("uid"))

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Make requests, unless the last one got no answer: a cluster that hangs costs the daemon one wait."""
        self._require_answers()
        patience, began = self._patience, self._clock.monotonic()
        try:
            with self._api.within(patience):
                yield
        except NoAnswer:
            with self._lock:
                self._doubted_at = self._clock.monotonic()
            for cache in self._caches:
                cache.check()
            raise
        finally:
            # A cluster that always takes longer than the daemon likes must not starve.
            took = self._clock.monotonic() - began
            self._patience = max(self._call_seconds, min(CALL_SECONDS, 2 * took))

    def _require_answers(self) -> None:
        """Raise ProvisionerUnavailable while the watches, which wait in their own threads, bring no news either."""
        with self._lock:
            doubted_at = self._doubted_at
        if doubted_at is None:
            return
        if not all(cache.confirmed_since(doubted_at) for cache in self._caches):
            age = self._clock.monotonic() - doubted_at
            raise ProvisionerUnavailable(
                f"the API server of cluster {self._settings.name} has not answered for {age:.0f} s; waiting for it"
            )
        with self._lock:
            self._doubted_at = None

    def _delete_rest(self, ref: GangRef) -> None:
        """Delete Jobs and pods that someone's deletion left without a JobSet."""
        problems: list[ProvisionerError] = []
        rest: list[tuple[str, SeenJob | SeenPod]] = [
            *(("jobs", job) for job in self._of_gang("jobs", seen.job, ref.name)),
            *(("pods", pod) for pod in self._of_gang("pods", seen.pod, ref.name)),
        ]
        # Its service first: while one of the others exists, this is done again.
        if rest:
            try:
                self._delete_service(ref.name)
            except ProvisionerError as error:
                problems.append(error)
        for kind, part in rest:
            if not part.deleting:
                path = f"{terms.collection(kind, self._settings.namespace)}/{part.name}"
                try:
                    self._api.delete(path, propagation="Background", uid=part.uid)
                except ProvisionerError as error:
                    problems.append(error)
        if problems:
            raise problems[0]

    def _delete_service(self, gang: str) -> None:
        """Delete the headless service that JobSet made for the gang (jobset: createHeadlessSvcIfNecessary)."""
        path = f"{terms.collection('services', self._settings.namespace)}/{gang}"
        service = self._api.get(path)
        selector = (service or {}).get("spec", {}).get("selector") or {}
        if service is not None and selector == {terms.LABEL_JOBSET: gang}:
            self._api.delete(path, propagation="Background", uid=service["metadata"].get("uid"))

    def _look_up(self, ref: GangRef) -> GangStatus | None:
        name = ref.name
        item = self._api.get(f"{terms.collection('jobsets', self._settings.namespace)}/{name}")
        found = _Found(
            jobset=seen.jobset(item) if item is not None and self._is_ours(item) else None,
            jobs=[*self._of_gang("jobs", seen.job, name)],
            pods=[*self._of_gang("pods", seen.pod, name)],
        )
        if found.jobset is None and not found.jobs and not found.pods:
            return None
        if found.jobset is not None and found.jobset.queue:
            with self._or_without_kueue([found]):
                found.workload = self._workloads.ask(found.jobset)
        return self._status(name, ref.zone, found)

    def _of_gang(self, kind: str, shrink: Callable[[Mapping[str, Any]], _Part], name: str) -> Sequence[_Part]:
        """Return our Jobs or pods of a gang, from the API server."""
        run = name.removeprefix(name_of(""))
        selector = f"{terms.LABEL_BASTION}={self._bastion},{terms.LABEL_RUN}={run}"
        path = terms.collection(kind, self._settings.namespace)
        return [part for part in self._api.list_each(path, shrink, label_selector=selector).items if part.run]

    def _status(self, name: str, zone: str, found: _Found) -> GangStatus:
        parts = Parts(
            jobset=found.jobset,
            jobs=found.jobs,
            pods=found.pods,
            now=self._clock.now(),
            waited=self._waited,
            not_created=self._refused_pods.of(found.jobset, found.jobs, found.pods),
            workload=found.workload,
            namespace=self._settings.namespace,
            without_kueue=found.without_kueue,
        )
        return gang_status(name, zone, parts)

    def _start(self) -> None:
        """Begin to watch; the first caller waits for the first lists."""
        with self._lock:
            first, self._started = not self._started, True
        if not first:
            return
        self._start_each(self._caches)

    def _start_each(self, caches: Sequence[ListWatch[Any]]) -> None:
        for cache in caches:
            cache.start()
        deadline = self._clock.monotonic() + self._call_seconds
        for cache in caches:
            cache.wait_tried(max(0.0, deadline - self._clock.monotonic()))

    def _add_workloads(self, gangs: Sequence[_Found]) -> None:
        """Add the Workloads of gangs in queues; one request for a gang that ends, and whose cached Workload is silent.

        Kueue ends a Workload before its pods, but its watch may be behind theirs.
        """
        if not gangs and not self._settings.queue:
            return
        with self._lock:
            late = self._workloads.cache not in self._caches  # the cluster had a queue before the settings changed
            if late:
                self._caches += (self._workloads.cache,)
        if late:
            self._start_each((self._workloads.cache,))
        with self._or_without_kueue(gangs):
            self._add_each_workload(gangs)

    @contextlib.contextmanager
    def _or_without_kueue(self, gangs: Sequence[_Found]) -> Iterator[None]:
        """Do without Workloads if the settings name no queue, and the cluster does not know them any more."""
        try:
            yield
        except NoSuchType:
            if self._settings.queue:
                raise
            for found in gangs:
                found.without_kueue = True

    def _add_each_workload(self, gangs: Sequence[_Found]) -> None:
        workloads = self._workloads.snapshot({found.jobset.uid for found in gangs if found.jobset is not None})
        for found in gangs:
            assert found.jobset is not None
            ending = is_ending(found.jobset, found.jobs, found.pods)
            cached = workloads.get(found.jobset.uid)
            found.workload = self._workloads.confirm(found.jobset, cached, ending=ending)

    def _note_waits(self, pods: Sequence[SeenPod]) -> None:
        now = self._clock.monotonic()
        waiting = [pod.uid for pod in pods if pod.waiting is not None and failures.may_pass(pod.waiting)]
        with self._lock:
            self._waits = {uid: self._waits.get(uid, now) for uid in waiting}

    def _waited(self, pod: SeenPod) -> float:
        with self._lock:
            since = self._waits.get(pod.uid)
        return 0.0 if since is None else self._clock.monotonic() - since


def _with_run(cache: ListWatch[_Part]) -> Sequence[_Part]:
    return [part for part in cache.snapshot().values() if part.run]


class _Verified:
    """The API for list-watches: each list begins with a look at the cluster's identity."""

    def __init__(self, api: KubernetesApi, identity: ClusterIdentity) -> None:
        self._api = api
        self._identity = identity
        self.watch = api.watch

    @property
    def cluster(self) -> str:
        return self._api.cluster

    def list_each(self, path: str, reduce: Callable[[dict[str, Any]], T], *, label_selector: str = "") -> Listing[T]:
        self._identity.check()
        return self._api.list_each(path, reduce, label_selector=label_selector)
