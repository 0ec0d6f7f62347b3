"""Events are kept for an hour, as by kube-apiserver's --event-ttl."""

from __future__ import annotations

import datetime

from bastion.emulators.kubernetes.apiserver.resources import EVENTS
from bastion.emulators.kubernetes.apiserver.store import Store

_EVENT_LIFE = datetime.timedelta(hours=1)


def sweep(store: Store, now: datetime.datetime) -> None:
    """Remove events that no write touched for an hour. `now` has a time zone."""
    oldest = (now - _EVENT_LIFE).strftime("%Y-%m-%dT%H:%M:%SZ")
    with store.lock:
        for stored in store.items(EVENTS):
            metadata = stored.object["metadata"]
            last = max(metadata["creationTimestamp"], stored.object.get("lastTimestamp") or "")
            if last < oldest:
                store.remove(stored)
