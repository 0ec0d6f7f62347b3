"""The objects of all kinds, their versions and recent changes; every change is written to a sqlite file first.

Invariants:

* One counter gives every change its resourceVersion, over restarts too, as etcd's revision does.
* A `Stored` never changes. Keys sort as in etcd: `namespace/name`.
* History starts empty: versions from before the start are too old to watch.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bastion.emulators.kubernetes.apiserver.resources import ALL, Resource

Object = dict[str, Any]

# Per kind; with some thousand writes a minute that is a minute.
_HISTORY_MAX = 4096
_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (resource TEXT, key TEXT, body BLOB, PRIMARY KEY (resource, key));
CREATE TABLE IF NOT EXISTS revision (only INTEGER PRIMARY KEY CHECK (only = 0), value INTEGER);
INSERT OR IGNORE INTO revision VALUES (0, 1);
"""


class TooOld(Exception):
    """History does not reach back to this version; `oldest` does."""

    def __init__(self, oldest: int) -> None:
        super().__init__(str(oldest))
        self.oldest = oldest


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """One version of an object.

    Attributes:
        body: JSON without kind and apiVersion, as items of a list are sent.
        object: The same, decoded; read only. Use `copy` to change it.
    """

    resource: Resource
    key: str
    version: int
    body: bytes
    object: Object

    @property
    def name(self) -> str:
        return str(self.object["metadata"]["name"])

    @property
    def encoded(self) -> bytes:
        """JSON with kind and apiVersion."""
        head = f'{{"kind":"{self.resource.kind}","apiVersion":"{self.resource.api_version}",'
        return head.encode() + self.body[1:]

    def copy(self) -> Object:
        document: Object = json.loads(self.encoded)
        return document


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """ADDED, MODIFIED or DELETED. `now` of a deletion is the last state, with the deletion's version."""

    type: str
    version: int
    now: Stored
    before: Stored | None


def key_of(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


class Store:
    """All objects. Every method is safe in any thread; `lock` makes a read and a write one step.

    `changed` is notified after each change; it holds `lock`. `has_kueue`: of a cluster with Kueue.
    """

    def __init__(self, file: Path, *, has_kueue: bool = False) -> None:
        self.has_kueue = has_kueue
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        # It holds secrets; sqlite gives its other files the same mode.
        file.touch(mode=0o600)
        self._database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
        # A crash of the process loses nothing; a power cut may.
        self._database.executescript("PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;" + _SCHEMA)
        self._objects: dict[Resource, dict[str, Stored]] = {resource: {} for resource in ALL}
        self._sorted: dict[Resource, list[Stored] | None] = dict.fromkeys(ALL)
        self._history: dict[Resource, deque[Change]] = {resource: deque() for resource in ALL}
        (self.version,) = self._database.execute("SELECT value FROM revision").fetchone()
        # The newest version that is too old to start from.
        self._forgotten: dict[Resource, int] = dict.fromkeys(ALL, self.version - 1)
        self._load()

    def _load(self) -> None:
        by_name = {resource.qualified: resource for resource in ALL}
        for name, key, body in self._database.execute("SELECT resource, key, body FROM objects"):
            if (resource := by_name.get(name)) is not None:
                document = json.loads(body)
                version = int(document["metadata"]["resourceVersion"])
                self._objects[resource][key] = Stored(
                    resource=resource, key=key, version=version, body=body, object=document
                )

    def close(self) -> None:
        with self.lock:
            self._database.close()

    def get(self, resource: Resource, namespace: str, name: str) -> Stored | None:
        with self.lock:
            return self._objects[resource].get(key_of(namespace, name))

    def items(self, resource: Resource, namespace: str = "") -> list[Stored]:
        """All objects of a kind by key, or those of one namespace."""
        with self.lock:
            items = self._sorted[resource]
            if items is None:
                objects = self._objects[resource]
                items = self._sorted[resource] = [objects[key] for key in sorted(objects)]
            return _within(items, namespace)

    def items_at(self, resource: Resource, version: int, namespace: str = "") -> list[Stored]:
        """The objects as they were at a version. Raises TooOld."""
        with self.lock:
            if version >= self.version:
                return self.items(resource, namespace)
            if version <= self._forgotten[resource]:
                raise TooOld(self._forgotten[resource] + 1)
            objects = dict(self._objects[resource])
            for change in reversed(self._history[resource]):
                if change.version <= version:
                    break
                if change.before is None:
                    objects.pop(change.now.key, None)
                else:
                    objects[change.now.key] = change.before
            return _within([objects[key] for key in sorted(objects)], namespace)

    def put(self, resource: Resource, document: Object) -> Stored:
        """Create or replace an object, which gets its resourceVersion."""
        metadata = document["metadata"]
        key = key_of(metadata.get("namespace", ""), metadata["name"])
        with self.lock:
            before = self._objects[resource].get(key)
            stored = self._stored(resource, key, document)
            self._database.execute("BEGIN")
            self._database.execute(
                "INSERT OR REPLACE INTO objects VALUES (?, ?, ?)", (resource.qualified, key, stored.body)
            )
            self._commit(stored.version)
            self._objects[resource][key] = stored
            kind = "ADDED" if before is None else "MODIFIED"
            self._record(Change(type=kind, version=stored.version, now=stored, before=before))
            return stored

    def remove(self, stored: Stored) -> Stored:
        """Remove an object; return its last state, with the deletion's version."""
        resource = stored.resource
        with self.lock:
            before = self._objects[resource][stored.key]
            last = self._stored(resource, stored.key, stored.copy())
            self._database.execute("BEGIN")
            self._database.execute(
                "DELETE FROM objects WHERE resource = ? AND key = ?", (resource.qualified, stored.key)
            )
            self._commit(last.version)
            del self._objects[resource][stored.key]
            self._record(Change(type="DELETED", version=last.version, now=last, before=before))
            return last

    def _stored(self, resource: Resource, key: str, document: Object) -> Stored:
        version = self.version + 1
        versioned = {**document, "metadata": {**document["metadata"], "resourceVersion": str(version)}}
        return draft_of(resource, key, version, versioned)

    def _commit(self, version: int) -> None:
        self._database.execute("UPDATE revision SET value = ?", (version,))
        self._database.execute("COMMIT")

    def _record(self, change: Change) -> None:
        resource = change.now.resource
        history = self._history[resource]
        self.version = change.version
        self._sorted[resource] = None
        history.append(change)
        if len(history) > _HISTORY_MAX:
            self._forgotten[resource] = history.popleft().version - 1
        self.changed.notify_all()

    def expire_history(self) -> None:
        """Forget all changes: every version before the current one is too old."""
        with self.lock:
            for resource, history in self._history.items():
                history.clear()
                self._forgotten[resource] = self.version - 1
            self.changed.notify_all()

    def changes(self, resource: Resource, after: int) -> list[Change]:
        """The changes of a kind after a version, in order. Raises TooOld."""
        with self.lock:
            if after <= self._forgotten[resource]:
                raise TooOld(self._forgotten[resource] + 1)
            found: deque[Change] = deque()
            for change in reversed(self._history[resource]):
                if change.version <= after:
                    break
                found.appendleft(change)
            return list(found)

    def wait_for_change(
        self, resource: Resource, after: int, seconds: float, ended: Callable[[], bool]
    ) -> list[Change]:
        """Like `changes`, after waiting for one at most that long. Raises TooOld."""
        with self.lock:
            self.changed.wait_for(lambda: ended() or self._news(resource, after), timeout=seconds)
            return self.changes(resource, after)

    def _news(self, resource: Resource, after: int) -> bool:
        history = self._history[resource]
        return after <= self._forgotten[resource] or (bool(history) and history[-1].version > after)

    def __iter__(self) -> Iterator[Stored]:
        with self.lock:
            return iter([stored for resource in ALL for stored in self.items(resource)])


def draft_of(resource: Resource, key: str, version: int, document: Object) -> Stored:
    """A version of an object that is not stored: the result of a dry run, or the last state before a deletion."""
    content = {name: value for name, value in document.items() if name not in ("kind", "apiVersion")}
    body = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    return Stored(resource=resource, key=key, version=version, body=body, object=json.loads(body))


def _within(items: list[Stored], namespace: str) -> list[Stored]:
    if not namespace:
        return list(items)
    prefix = f"{namespace}/"
    return [stored for stored in items if stored.key.startswith(prefix)]
