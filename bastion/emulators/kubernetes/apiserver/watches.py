"""A watch as a stream of JSON lines.

Sources: apiserver pkg/storage/cacher/{cacher,cache_watcher,watch_cache}.go and pkg/endpoints/handlers/watch.go.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bastion.emulators.kubernetes.apiserver.resources import Resource
from bastion.emulators.kubernetes.apiserver.selectors import Matches
from bastion.emulators.kubernetes.apiserver.statuses import ApiFailure, expired
from bastion.emulators.kubernetes.apiserver.store import Change, Store, Stored, TooOld
from bastion.net.http1 import Disconnect

# Upstream's --min-request-timeout; a watch without timeoutSeconds lasts one to two times that.
_DEFAULT_SECONDS = 1800.0
# How often an idle watch asks whether the client is still there.
_PEER_CHECK_SECONDS = 1.0
# The last bookmark comes this long before the end of a watch that lasts longer.
_LAST_BOOKMARK_SECONDS = 2.0

_INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What a client watches.

    Attributes:
        after: Changes after this version.
        initial: Objects to send as ADDED first.
        initial_end: Send a bookmark after `initial` that marks its end.
        bookmark_seconds: Interval of bookmarks; 0: none.
        encode: What an event shows of an object.
        cut: Whether the server ends this watch by a reset, asked often.
    """

    store: Store
    resource: Resource
    namespace: str
    matches: Matches
    after: int
    initial: tuple[Stored, ...] = ()
    initial_end: bool = False
    bookmark_seconds: float = 0.0
    timeout_seconds: int | None = None
    encode: Callable[[Stored], bytes] = lambda stored: stored.encoded
    cut: Callable[[], bool] = lambda: False
    ended: Callable[[], bool] = lambda: False
    clock: Callable[[], float] = field(default=time.monotonic)

    def lines(self) -> Iterator[bytes]:
        """The events. An empty piece: nothing to send yet."""
        yield b""
        after = self.after
        if self.initial:
            yield b"".join(_line("ADDED", self.encode(stored)) for stored in self.initial)
        if self.initial_end:
            yield self._bookmark(after, _INITIAL_EVENTS_END)
        seconds = _DEFAULT_SECONDS * (1 + random.random()) if self.timeout_seconds is None else self.timeout_seconds
        start = self.clock()
        end = start + seconds
        bookmarks = self._bookmark_times(start, end)
        bookmark = next(bookmarks)
        while not self.ended() and (now := self.clock()) < end:
            pause = min(_PEER_CHECK_SECONDS, end - now, max(0.0, bookmark - now))
            try:
                after, changes = self._await_changes(after, pause)
            except TooOld as error:
                yield _error(too_old(after, error.oldest))
                return
            if self.cut():
                raise Disconnect(reset=True)
            # An empty piece finds out whether the client is still there.
            yield b"".join(line for change in changes for line in self._seen(change))
            if self.clock() >= bookmark:
                yield self._bookmark(after)
                bookmark = next(bookmarks)

    def _await_changes(self, after: int, seconds: float) -> tuple[int, list[Change]]:
        """New changes, and the version up to which this watch knows everything. Raises TooOld."""
        with self.store.lock:
            changes = self.store.wait_for_change(self.resource, after, seconds, lambda: self.ended() or self.cut())
            return max(after, self.store.version), changes

    def _bookmark_times(self, start: float, end: float) -> Iterator[float]:
        """When to send bookmarks; without them, at the end of time."""
        if self.bookmark_seconds:
            due = start + self.bookmark_seconds
            last = end - _LAST_BOOKMARK_SECONDS
            while due < last:
                yield due
                due += self.bookmark_seconds
            if last > start:
                yield last
        while True:
            yield float("inf")

    def _seen(self, change: Change) -> Iterator[bytes]:
        """A change as this watch's selectors show it: an object that stops to match is DELETED."""
        if self.namespace and not change.now.key.startswith(f"{self.namespace}/"):
            return
        before = change.before is not None and self.matches(change.before.object)
        now = change.type != "DELETED" and self.matches(change.now.object)
        if now:
            yield _line("MODIFIED" if before else "ADDED", self.encode(change.now))
        elif before:
            assert change.before is not None
            last = change.now if change.type == "DELETED" else _with_version(change.before, change.version)
            yield _line("DELETED", self.encode(last))

    def _bookmark(self, version: int, annotations: dict[str, str] | None = None) -> bytes:
        metadata: dict[str, object] = {"resourceVersion": str(version), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        document = {"kind": self.resource.kind, "apiVersion": self.resource.api_version, "metadata": metadata}
        return _line("BOOKMARK", json.dumps(document).encode())


def _with_version(stored: Stored, version: int) -> Stored:
    document = stored.copy()
    document["metadata"]["resourceVersion"] = str(version)
    body = json.dumps({name: value for name, value in document.items() if name not in ("kind", "apiVersion")})
    return Stored(resource=stored.resource, key=stored.key, version=version, body=body.encode(), object=document)


def too_old(wanted: int, oldest: int) -> ApiFailure:
    return expired(f"too old resource version: {wanted} ({oldest})")


def _line(kind: str, encoded: bytes) -> bytes:
    return b'{"type":"%s","object":%s}\n' % (kind.encode(), encoded)


def _error(failure: ApiFailure) -> bytes:
    return _line("ERROR", json.dumps(failure.status()).encode())
