"""Jobs that cannot create their pods, for a quota or an admission policy: only events tell."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from bastion.adapters.kubernetes import terms
from bastion.adapters.kubernetes.api import KubernetesApi
from bastion.adapters.kubernetes.documents import Word
from bastion.adapters.kubernetes.seen import SeenJob, SeenJobSet, SeenPod
from bastion.core.errors import ProvisionerUnavailable
from bastion.ports import Clock

# How long pods may be missing before events are read, and then how often, per gang.
PATIENCE_SECONDS = 5.0
_PERIOD_SECONDS = 30.0
# JobSet's webhook holds the followers of a slice back until its leader is placed (jobset: pkg/webhooks/pod_webhook.go).
_FOLLOWERS_WAIT = "vpod.kb.io"


class RefusedPods:
    """Reads the events of gangs that lack pods, rarely; thread-safe. `asking` surrounds each request."""

    def __init__(
        self,
        api: KubernetesApi,
        namespace: str,
        clock: Clock,
        *,
        asking: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._asking = asking
        self._api = api
        self._namespace = namespace
        self._clock = clock
        self._lock = threading.Lock()
        # By the JobSet's uid: when it is read next, and what the events said.
        self._known: dict[str, tuple[float, Word | None]] = {}

    def of(self, jobset: SeenJobSet | None, jobs: Sequence[SeenJob], pods: Sequence[SeenPod]) -> Word | None:
        """Return why the gang's pods cannot be created; None if they can, or if it is unknown."""
        if jobset is None:
            return None
        complete = len(pods) >= jobset.hosts * jobset.num_slices
        if not jobs or complete or jobset.deleting or jobset.suspended:
            with self._lock:
                self._known.pop(jobset.uid, None)
            return None
        now = self._clock.monotonic()
        with self._lock:
            due, word = self._known.setdefault(jobset.uid, (now + PATIENCE_SECONDS, None))
            if now < due:
                return word
            self._known[jobset.uid] = (now + _PERIOD_SECONDS, word)
        try:
            with self._asking():
                word = self._read(jobs)
        except ProvisionerUnavailable:
            return word
        with self._lock:
            self._known[jobset.uid] = (now + _PERIOD_SECONDS, word)
        return word

    def _read(self, jobs: Sequence[SeenJob]) -> Word | None:
        path = f"{terms.collection('events', self._namespace)}"
        uids = {job.uid for job in jobs}
        events = self._api.list(path, field_selector="reason=FailedCreate").items
        ours = [
            event
            for event in events
            if (event.get("involvedObject") or {}).get("uid") in uids
            and _FOLLOWERS_WAIT not in str(event.get("message", ""))
        ]
        if not ours:
            return None
        last = max(ours, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""))
        return Word("FailedCreate", str(last.get("message", ""))[:500])
