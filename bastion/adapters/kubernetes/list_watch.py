"""A cache of one collection that a thread keeps current: list once, then watch.

An idle consumer costs no request but the watch, which the server ends every few minutes and which goes on from the
last version. After 410 or an ERROR event the collection is listed again, and compared, so that missed deletions are
seen. A cache that was not confirmed for `stale_seconds` raises instead of answering: silence must never look like "no
change". The model is client-go's Reflector (staging/src/k8s.io/client-go/tools/cache/reflector.go).

API servers send a bookmark each minute (apiserver/pkg/storage/cacher/cacher.go, defaultBookmarkFrequency), and keep 75
s of events at least (eventFreshDuration).
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from bastion.adapters.kubernetes.api import Listing, Watch
from bastion.adapters.kubernetes.api_errors import Expired, NoAnswer, NoSuchType, Overloaded, explain_event
from bastion.adapters.kubernetes.operations import operation
from bastion.adapters.kubernetes.watched_objects import UnknownEvent, WatchedObjects
from bastion.core.errors import CredentialsRefused, MissingPermission, ProvisionerError, ProvisionerUnavailable
from bastion.ports import Clock

T = TypeVar("T")
_log = logging.getLogger(__name__)
# The longest that `close` waits for a request in flight; the thread then ends with it.
_CLOSE_SECONDS = 2.0
_RETRY_AFTER_MAX_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Times of a list-watch, in seconds."""

    stale: float = 90.0  # without event, bookmark, list or accepted watch, snapshots raise
    silence: float = 75.0  # the longest pause in a watch; more than the minute between bookmarks, less than `stale`
    watch: float = 300.0  # when the server ends a watch, ± a tenth
    relist: float = 1800.0  # a list at least this often, ± a tenth
    backoff: float = 0.5  # the first pause is random below this; doubled by each failure
    backoff_max: float = 30.0
    unreachable_max: float = 5.0  # instead, without an answer: three attempts to connect cost little
    short_watch: float = 1.0  # a watch that ends sooner is a failure


class Source(Protocol):
    """What a list-watch needs of `KubernetesApi`."""

    @property
    def cluster(self) -> str: ...

    def list_each(
        self, path: str, reduce: Callable[[dict[str, Any]], T], *, label_selector: str = ""
    ) -> Listing[T]: ...

    def watch(
        self,
        path: str,
        *,
        resource_version: str,
        label_selector: str = "",
        timeout_seconds: float = ...,
        read_seconds: float = ...,
    ) -> Watch: ...


class ListWatch(Generic[T]):
    """The objects of a namespace's collection that match a label selector, by name.

    Args:
        source: The cluster's API.
        path: The collection: `/api/v1/namespaces/training/pods`.
        label_selector: As `kubectl -l` takes it.
        shrink: Reduces an object to what is kept. Compared with `==` to see changes.
        on_change: Called in the list-watch's thread after each change; must be quick and not raise.
    """

    def __init__(
        self,
        source: Source,
        path: str,
        *,
        label_selector: str,
        shrink: Callable[[Mapping[str, Any]], T],
        clock: Clock,
        on_change: Callable[[], None] = lambda: None,
        pace: Pace | None = None,
        chance: random.Random | None = None,
    ) -> None:
        self._source = source
        self._path = path
        self._label_selector = label_selector
        self._clock = clock
        self._on_change = on_change
        self._pace = pace or Pace()
        self._chance = chance or random.Random()
        self._doing = operation(source.cluster, "watch", path)
        self._objects = WatchedObjects(shrink)
        self._lock = threading.Lock()
        # Below the lock: what other threads read.
        self._confirmed_at: float | None = None
        self._absent_at: float | None = None  # when the API server last said that it has no such type
        self._last_error: ProvisionerError | None = None
        self._watch: Watch | None = None
        self._synced = threading.Event()
        self._tried = threading.Event()
        self._closed = threading.Event()
        # The thread's own.
        self._must_list = True
        self._listed_at = 0.0
        self._relist_after = 0.0
        self._failures = 0
        self._thread = threading.Thread(target=self._run, name=f"watch-{source.cluster}-{path}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End the thread. With a request in flight it ends with that request."""
        self._closed.set()
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_CLOSE_SECONDS)

    def wait_synced(self, seconds: float) -> bool:
        """Wait for the first list; returns whether there was one."""
        return self._synced.wait(seconds)

    def check(self) -> None:
        """Begin another watch, which shows whether the API server answers: its next bookmark may be a minute away."""
        with self._lock:
            watch = self._watch
        if watch is not None:
            watch.close()

    def wait_tried(self, seconds: float) -> None:
        """Wait until there was a list, or an error that `snapshot` raises."""
        self._tried.wait(seconds)

    def confirmed_since(self, instant: float) -> bool:
        """Whether the API server has shown after that instant of the monotonic clock what it has, if any."""
        with self._lock:
            return any(at is not None and at > instant for at in (self._confirmed_at, self._absent_at))

    def snapshot(self) -> Mapping[str, T]:
        """Return the objects by name: a copy.

        Raises:
            ProvisionerUnavailable: Nothing confirmed it lately; with the last error. `MissingPermission`,
                `CredentialsRefused` and `NoSuchType` if that was one.
        """
        with self._lock:
            confirmed_at, last_error = self._confirmed_at, self._last_error
            age = None if confirmed_at is None else self._clock.monotonic() - confirmed_at
            if age is not None and age <= self._pace.stale and not self._closed.is_set():
                return self._objects.copy()
        if self._closed.is_set():
            raise ProvisionerUnavailable(f"{self._doing}: it was closed")
        since = "not listed yet" if age is None else f"not confirmed for {age:.0f} s"
        if isinstance(last_error, MissingPermission):
            raise MissingPermission(f"{last_error} ({since})", permission=last_error.permission) from last_error
        if isinstance(last_error, (CredentialsRefused, NoSuchType)):
            raise type(last_error)(f"{last_error} ({since})") from last_error
        if last_error is not None:
            raise ProvisionerUnavailable(f"{last_error} ({since})") from last_error
        raise ProvisionerUnavailable(f"{self._doing}: {since}; wait")

    def _run(self) -> None:
        while not self._closed.is_set():
            pause = self.turn()
            if pause > 0:
                self._closed.wait(pause)

    def turn(self) -> float:
        """List if that is due, then watch until it ends; returns the pause until the next turn, in seconds."""
        opened_at = None
        try:
            if self._must_list or self._clock.monotonic() - self._listed_at >= self._relist_after:
                self._list()
            watch = self._open()
            opened_at = self._clock.monotonic()
            self._follow(watch)
            failure: Exception | None = None
        except Expired as error:
            self._must_list = True
            failure = error
        except ProvisionerError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - foreign objects
            # The cache must not die with the thread: what cannot be read is listed again.
            _log.exception("%s: an object cannot be read", self._doing)
            self._must_list = True
            failure = ProvisionerUnavailable(f"{self._doing}: {type(error).__name__}: {error}")
        return 0.0 if self._closed.is_set() else self._pause(failure, opened_at)

    def _list(self) -> None:
        listing = self._source.list_each(self._path, self._objects.entry, label_selector=self._label_selector)
        with self._lock:
            changed = self._objects.replace(listing.items, listing.resource_version)
            self._confirm()
        first = not self._synced.is_set()
        self._must_list = False
        self._listed_at = self._clock.monotonic()
        self._relist_after = self._jittered(self._pace.relist)
        self._synced.set()
        self._tried.set()
        if changed or first:
            self._on_change()

    def _open(self) -> Watch:
        watch = self._source.watch(
            self._path,
            resource_version=self._objects.resource_version,
            label_selector=self._label_selector,
            timeout_seconds=self._jittered(self._pace.watch),
            read_seconds=self._pace.silence,
        )
        with self._lock:
            self._watch = watch
            self._confirm()
        if self._closed.is_set():
            watch.close()
        return watch

    def _follow(self, watch: Watch) -> None:
        try:
            for event in watch:
                if event.get("type") == "ERROR":
                    self._must_list = True
                    raise explain_event(event.get("object") or {}, self._doing)
                with self._lock:
                    changed = self._objects.apply(event)
                    self._confirm()
                if changed:
                    self._on_change()
        except UnknownEvent as error:
            self._must_list = True
            raise ProvisionerUnavailable(f"{self._doing}: {error}") from error
        finally:
            with self._lock:
                self._watch = None
            with contextlib.suppress(OSError):
                watch.close()

    def _confirm(self) -> None:
        """Under the lock: the API server has just shown that the cache is what it has."""
        self._confirmed_at = self._clock.monotonic()
        self._last_error = None

    def _pause(self, failure: Exception | None, opened_at: float | None) -> float:
        """Return how long to wait after a turn: full jitter, also where watches end as soon as they begin."""
        lasted = opened_at is not None and self._clock.monotonic() - opened_at >= self._pace.short_watch
        if lasted:
            self._failures = 0
        if isinstance(failure, ProvisionerError):
            with self._lock:
                self._last_error = failure
                if isinstance(failure, NoSuchType):
                    self._absent_at = self._clock.monotonic()
            self._tried.set()
        if failure is None and lasted:
            return 0.0
        most = self._pace.backoff_max
        if isinstance(failure, NoAnswer):
            most = min(most, self._pace.unreachable_max)
        limit = min(most, self._pace.backoff * 2**self._failures)
        self._failures = min(self._failures + 1, 30)
        pause = self._chance.uniform(0.0, limit)
        if isinstance(failure, Overloaded):
            pause = max(pause, min(failure.retry_after_seconds, _RETRY_AFTER_MAX_SECONDS))
        return pause

    def _jittered(self, seconds: float) -> float:
        return seconds * self._chance.uniform(0.9, 1.1)
