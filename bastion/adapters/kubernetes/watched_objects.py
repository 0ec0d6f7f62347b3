"""The state of a list-watch: what is kept of each object, and the version to go on from; pure, not thread-safe.

Watch semantics: https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class UnknownEvent(Exception):
    """The event has no meaning here; the cache can no longer be trusted."""


class WatchedObjects(Generic[T]):
    """The objects of one collection, each shrunk, by name.

    Args:
        shrink: Reduces an object to what is kept; must not keep parts of it alive that are large.
    """

    def __init__(self, shrink: Callable[[Mapping[str, Any]], T]) -> None:
        self._shrink = shrink
        self._items: dict[str, T] = {}
        self.resource_version = ""

    def entry(self, item: Mapping[str, Any]) -> tuple[str, T]:
        """Return an object's name, and what is kept of it."""
        return str(item["metadata"]["name"]), self._shrink(item)

    def replace(self, entries: list[tuple[str, T]], resource_version: str) -> bool:
        """Take over a list, which also shows what was deleted; returns whether anything differs."""
        before, self._items = self._items, dict(entries)
        self.resource_version = resource_version
        return before != self._items

    def apply(self, event: Mapping[str, Any]) -> bool:
        """Take over an event other than ERROR; returns whether anything differs. Raises UnknownEvent."""
        try:
            kind, item = event["type"], event["object"]
            version = str(item["metadata"]["resourceVersion"])
            if kind == "BOOKMARK":
                self.resource_version = version
                return False
            if kind == "DELETED":
                changed = self._items.pop(str(item["metadata"]["name"]), None) is not None
            elif kind in ("ADDED", "MODIFIED"):
                name, kept = self.entry(item)
                changed = name not in self._items or self._items[name] != kept
                self._items[name] = kept
            else:
                raise UnknownEvent(f"an event of the unknown type {kind!r}")
        except (LookupError, TypeError) as error:
            raise UnknownEvent(f"an event without {error}") from error
        self.resource_version = version
        return changed

    def copy(self) -> dict[str, T]:
        return dict(self._items)

    def __len__(self) -> int:
        return len(self._items)
