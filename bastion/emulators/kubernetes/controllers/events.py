"""Events of controllers, as client-go's tools/record/events_cache.go: repeated ones are counted in one object, and many
that differ by their message only become one.
"""

from __future__ import annotations

import contextlib
import datetime
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from bastion.emulators.kubernetes.client import ApiClient, ApiError, Obj
from bastion.emulators.kubernetes.controllers.api_objects import EVENT, name_of, namespace_of, timestamp, uid_of

_COMPONENT = "bastion-emulator"
_KNOWN_MAX = 4096
# The most that the API accepts.
_MESSAGE_MAX = 1024
# So many messages of one reason on one object have Events of their own.
_SIMILAR_MAX = 10
_COMBINED = "(combined from similar events): "
# Repeats are reported this often at most.
_REPEAT_SECONDS = 10.0


class Recorder:
    """Writes Events; one that cannot be written is lost, as upstream."""

    def __init__(self, client: ApiClient, clock: Callable[[], datetime.datetime]) -> None:
        self._client = client
        self._clock = clock
        self._known: OrderedDict[tuple[str, str, str], _Known] = OrderedDict()
        self._similar: Counter[tuple[str, str]] = Counter()
        self._lock = threading.Lock()

    def record(self, about: Obj, reason: str, message: str, *, warning: bool) -> None:
        key = (uid_of(about), reason, message)
        now = time.monotonic()
        with self._lock:
            known = self._known.get(key)
            if known is None and self._similar[key[:2]] >= _SIMILAR_MAX:
                message = _COMBINED + message
                key = (*key[:2], _COMBINED)
                known = self._known.get(key)
            if known is None:
                self._similar[key[:2]] += 1
                # Unique by time, as upstream's names.
                known = self._known[key] = _Known(f"{name_of(about)}.{time.time_ns():x}", namespace_of(about), now)
                if len(self._known) > _KNOWN_MAX:
                    forgotten, _ = self._known.popitem(last=False)
                    self._similar -= Counter([forgotten[:2]])
            else:
                known.count += 1
                if now - known.reported < _REPEAT_SECONDS:
                    return
                known.reported = now
        stamp = timestamp(self._clock())
        with contextlib.suppress(ApiError):
            if known.count == 1:
                self._client.create(EVENT.path(known.namespace), _event(known, about, reason, message, warning, stamp))
            else:
                patch = {"count": known.count, "lastTimestamp": stamp, "message": message[:_MESSAGE_MAX]}
                self._client.patch(EVENT.path(known.namespace, known.name), patch)


class _Known:
    __slots__ = ("count", "name", "namespace", "reported")

    def __init__(self, name: str, namespace: str, reported: float) -> None:
        self.name = name
        # Events about cluster objects live in `default`.
        self.namespace = namespace or "default"
        self.count = 1
        self.reported = reported


def _event(known: _Known, about: Obj, reason: str, message: str, warning: bool, stamp: str) -> Obj:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": known.name, "namespace": known.namespace},
        "involvedObject": {
            "apiVersion": about["apiVersion"],
            "kind": about["kind"],
            "name": name_of(about),
            "namespace": namespace_of(about) or None,
            "uid": uid_of(about),
        },
        "reason": reason,
        "message": message[:_MESSAGE_MAX],
        "type": "Warning" if warning else "Normal",
        "source": {"component": _COMPONENT},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }
