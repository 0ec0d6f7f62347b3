"""A cache of one list of the API, kept current by a watch (client-go's tools/cache reflector and store).

A watch that breaks resumes at the version that the cache has seen. After a 410 it lists again and reports the
differences, so that no deletion is missed.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable, Iterator, Mapping

from bastion.emulators.kubernetes.client.requests import ApiClient, ApiError, Obj, Watch

Key = tuple[str, str]  # namespace (empty for cluster objects) and name
# Old and new object; None: did not exist, or is gone. Called by the informer's thread, or by that of `learn`.
OnChange = Callable[[Obj | None, Obj | None], None]

_PAGE = 500
_WATCH_SECONDS = 300
_PAUSE_SECONDS = 0.1
_PAUSE_MAX_SECONDS = 5.0


class Informer:
    """A cache of the objects below an API path, such as `/api/v1/pods`. Its objects are shared: never change them.

    Events of one list come in the order of their versions, and versions compare as numbers (etcd's revisions); so an
    object that a caller wrote itself can enter the cache before its event: `learn`.
    """

    def __init__(
        self,
        client: ApiClient,
        path: str,
        *,
        on_change: OnChange | None = None,
        label_selector: str = "",
        field_selector: str = "",
    ) -> None:
        self._client = client
        self.path = path
        self._on_change: list[OnChange] = [on_change] if on_change is not None else []
        self._query: dict[str, str | int] = {}
        if label_selector:
            self._query["labelSelector"] = label_selector
        if field_selector:
            self._query["fieldSelector"] = field_selector
        self._objects: dict[Key, Obj] = {}
        # The version that the cache has seen all events of.
        self._seen = 0
        self._lock = threading.Lock()
        # Changes are reported in the order in which they enter the cache.
        self._reporting = threading.RLock()
        self._synced = threading.Event()
        # How many lists were asked for, and the last of these that is in the cache.
        self._asked = self._served = 0
        self._listed = threading.Condition()
        self._stop = threading.Event()
        self._pause = _PAUSE_SECONDS
        self._watch: Watch | None = None
        self._thread: threading.Thread | None = None

    def subscribe(self, on_change: OnChange) -> None:
        """Add a callback; before `start`."""
        self._on_change.append(on_change)

    @property
    def has_synced(self) -> bool:
        return self._synced.is_set()

    def wait_synced(self, timeout_seconds: float) -> bool:
        return self._synced.wait(timeout_seconds)

    def items(self) -> dict[Key, Obj]:
        with self._lock:
            return dict(self._objects)

    def get(self, namespace: str, name: str) -> Obj | None:
        with self._lock:
            return self._objects.get((namespace, name))

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=f"informer {self.path}", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch and its thread."""
        self._stop.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()
        if self._thread is not None:
            self._thread.join()

    def learn(self, obj: Obj) -> None:
        """Take over the answer to a write before its event comes; ignored if the cache has seen that version."""
        with self._reporting:
            with self._lock:
                version = _version(obj)
                known = self._objects.get(key(obj))
                if version <= self._seen or (known is not None and version <= _version(known)):
                    return
                self._objects[key(obj)] = obj
            self._report(known, obj)

    def resync(self, timeout_seconds: float = 5.0) -> bool:
        """List again, and wait for it: after a write of which nobody knows whether it was carried out."""
        with self._listed:
            self._asked += 1
            asked = self._asked
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()
        with self._listed:
            return self._listed.wait_for(lambda: self._served >= asked, timeout_seconds)

    def _run(self) -> None:
        listed = False
        while not self._stop.is_set():
            try:
                if not listed or self._served < self._asked:
                    asked = self._asked
                    self._relist()
                    listed = True
                    with self._listed:
                        self._served = asked
                        self._listed.notify_all()
                self._follow()
            except ApiError as error:  # noqa: PERF203
                # Gone: the events after our version are no longer kept.
                listed = listed and error.code != 410
                pause = error.retry_after if error.retry_after is not None else self._pause * (0.5 + random.random())
                self._stop.wait(pause)
                self._pause = min(2 * self._pause, _PAUSE_MAX_SECONDS)

    def _relist(self) -> None:
        found: dict[Key, Obj] = {}
        query = dict(self._query)
        while True:
            page = self._client.list(self.path, limit=_PAGE, **query)
            kind = {
                "apiVersion": page.get("apiVersion", ""),
                "kind": str(page.get("kind", "")).removesuffix("List"),
            }
            for item in page.get("items") or ():
                # Objects in a list do not repeat their kind.
                found[key(item)] = {**kind, **item}
            token = page["metadata"].get("continue")
            if not token:
                break
            query["continue"] = token
        with self._reporting:
            with self._lock:
                before = self._objects
                self._seen = int(page["metadata"]["resourceVersion"])
                for name, obj in before.items():
                    if _version(obj) > self._seen and name not in found:
                        found[name] = obj
                self._objects = found
            self._synced.set()
            for name, obj in found.items():
                if before.get(name) != obj:
                    self._report(before.get(name), obj)
            for name, obj in before.items():
                if name not in found:
                    self._report(obj, None)

    def _follow(self) -> None:
        """Apply the events of one watch until it ends. Raises ApiError."""
        watch = self._client.watch(
            self.path,
            resource_version=str(self._seen),
            timeout_seconds=int(_WATCH_SECONDS * (0.75 + random.random() / 2)),
            **self._query,
        )
        self._pause = _PAUSE_SECONDS
        with self._lock:
            self._watch = watch
        try:
            # `stop` or `resync` may have come before the watch was known.
            if self._stop.is_set() or self._served < self._asked:
                return
            for event in watch:
                obj: Obj = event["object"]
                if event["type"] == "ERROR":
                    raise ApiError(int(obj.get("code", 500)), str(obj.get("reason", "")), str(obj.get("message", "")))
                self._apply(event["type"], obj)
        finally:
            with self._lock:
                self._watch = None
            watch.release()

    def _apply(self, kind: str, obj: Obj) -> None:
        with self._reporting:
            with self._lock:
                version = _version(obj)
                self._seen = max(self._seen, version)
                if kind == "BOOKMARK":
                    return
                known = self._objects.get(key(obj))
                if known is not None and _version(known) > version:
                    return
                if kind == "DELETED":
                    self._objects.pop(key(obj), None)
                else:
                    self._objects[key(obj)] = obj
            if kind == "DELETED":
                self._report(known or obj, None)
            elif known is None or _version(known) < version:
                self._report(known, obj)

    def _report(self, old: Obj | None, new: Obj | None) -> None:
        for on_change in self._on_change:
            on_change(old, new)


def key(obj: Obj) -> Key:
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _version(obj: Obj) -> int:
    return int(obj["metadata"].get("resourceVersion") or 0)


@contextlib.contextmanager
def running(informers: Mapping[str, Informer], *, sync_seconds: float = 30.0) -> Iterator[None]:
    """Start informers, wait for their first lists, and stop them at the end. Raises TimeoutError."""
    for informer in informers.values():
        informer.start()
    try:
        for informer in informers.values():
            if not informer.wait_synced(sync_seconds):
                raise TimeoutError(
                    f"no list of {informer.path} within {sync_seconds:.0f} s; check the API server and its token"
                )
        yield
    finally:
        for informer in informers.values():
            informer.stop()
