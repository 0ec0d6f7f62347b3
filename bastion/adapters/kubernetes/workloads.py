"""The Workloads of the gangs in queues of Kueue, from a cache; asked for where the cache may lag behind their pods.

Kueue does not copy our labels to Workloads, so all of the namespace are watched, and those of others are not kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager

from bastion.adapters.kubernetes import kueue, terms
from bastion.adapters.kubernetes.api import KubernetesApi
from bastion.adapters.kubernetes.kueue import SeenWorkload
from bastion.adapters.kubernetes.list_watch import ListWatch
from bastion.adapters.kubernetes.seen import SeenJobSet
from bastion.ports import Clock

# How often the Workload of one gang is asked for while its pods are lost and the cache tells no eviction; sooner while
# no answer has told why: it may have come before Kueue did anything.
_PERIOD_SECONDS = 15.0
_UNEXPLAINED_SECONDS = 2.0


class Workloads:
    """Thread-safe. `asking` surrounds the request of `confirm`."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        clock: Clock,
        *,
        cache: ListWatch[SeenWorkload | None],
        asking: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._asking = asking
        self._api = api
        self._path = terms.collection("workloads", namespace)
        self._clock = clock
        self.cache = cache
        self._lock = threading.Lock()
        # By the JobSet's uid: when it is asked for again, and what was found.
        self._asked: dict[str, tuple[float, SeenWorkload | None]] = {}

    def snapshot(self, jobsets: Collection[str] = ()) -> Mapping[str, SeenWorkload]:
        """Return all of gangs by the uid of their JobSet. Raises ProvisionerUnavailable while the cache is stale.

        Args:
            jobsets: Uids of those that exist; what was asked of others is forgotten.
        """
        found = {each.owner: each for each in self.cache.snapshot().values() if each is not None}
        with self._lock:
            self._asked = {uid: asked for uid, asked in self._asked.items() if uid in jobsets}
        return found

    def ask(self, jobset: SeenJobSet) -> SeenWorkload | None:
        """Return the Workload of a JobSet by a request. Raises ProvisionerUnavailable."""
        selector = f"{terms.LABEL_JOB_UID}={jobset.uid}"
        found = self._api.list_each(self._path, kueue.shrink, label_selector=selector).items
        return next((each for each in found if each is not None and each.owner == jobset.uid), None)

    def confirm(self, jobset: SeenJobSet, cached: SeenWorkload | None, *, ending: bool) -> SeenWorkload | None:
        """Return the cached Workload, or what a request says if only that tells why pods end: an eviction, or that no
        Workload admits them. Such a word stays: the cache may still show the Workload of before.

        Args:
            jobset: Of the gang.
            cached: Its Workload in the snapshot.
            ending: Whether its pods end, so that there may be more to know. Raises ProvisionerUnavailable then.
        """
        if cached is not None and kueue.eviction(cached) is not None:
            return cached
        now = self._clock.monotonic()
        with self._lock:
            due, found = self._asked.get(jobset.uid, (now, cached))
        if ending and now >= due:
            with self._asking():
                found = self.ask(jobset)
            period = _PERIOD_SECONDS if _explains(found) else _UNEXPLAINED_SECONDS
            with self._lock:
                self._asked[jobset.uid] = (now + period, found)
            return found
        if ending and _explains(found):
            return found
        evicted = found is not None and kueue.eviction(found) is not None
        return found if evicted else cached or found


def _explains(workload: SeenWorkload | None) -> bool:
    """Whether a Workload tells why the pods of its gang end."""
    return not kueue.admits(workload) or (workload is not None and kueue.eviction(workload) is not None)
