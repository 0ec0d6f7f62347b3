"""Parsed objects by generation: each change is downloaded once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from bastion.core import limits
from bastion.core.errors import InvalidDocument, NotFound, ObjectTooLarge, StoreError
from bastion.daemon.thread_pool import ThreadPool
from bastion.ports import ObjectMeta, ObjectStore

T = TypeVar("T")


class ObjectCache(Generic[T]):
    """The objects under one prefix.

    After `take` and `fetch`, `listed` is the listing, `values` the last good content, `problems` why the present
    content is unreadable, and `unknown` the objects that could not be fetched this time.
    """

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        parse: Callable[[str, bytes], T],
        *,
        confirm_absence: bool = False,
        max_bytes: Callable[[str], int] = lambda _: limits.DOCUMENT_MAX_BYTES,
        note_read: Callable[[ObjectMeta, str, bytes], None] = lambda _meta, _name, _data: None,
    ) -> None:
        """Cache objects. `parse` and `note_read`, called before it, raise InvalidDocument; `max_bytes` is by name.

        With `confirm_absence`, objects that a listing lacks are looked up.
        """
        self.prefix = prefix
        self._store = store
        self._parse = parse
        self._confirm_absence = confirm_absence
        self._max_bytes = max_bytes
        self._note_read = note_read
        self._generations: dict[str, int] = {}
        self.listed: dict[str, ObjectMeta] = {}
        self.values: dict[str, T] = {}
        self.problems: dict[str, str] = {}
        self.unknown: dict[str, str] = {}

    def take(self, found: Sequence[ObjectMeta], *, after: str = "", until: str = "") -> None:
        """Take a listing of the prefix, or of the keys greater than `after` up to `until`; forget vanished names.

        Raises StoreError if an absence could not be confirmed; then nothing has changed.
        """
        skip = len(self.prefix)
        low, high = after[skip:], until[skip:]
        listed = {meta.key[skip:]: meta for meta in found if len(meta.key) > skip}
        gone = []
        for name in self._generations.keys() - listed.keys():
            if name <= low or (high and name > high):
                continue
            present = self._store.head(self.prefix + name) if self._confirm_absence else None
            if present is None:
                gone.append(name)
            else:
                listed[name] = present
        for name in gone:
            self.forget(name)
        if after or until:
            listed |= {name: meta for name, meta in self.listed.items() if name <= low or (high and name > high)}
        self.listed = listed

    def look_up(self, names: Iterable[str], threads: ThreadPool) -> dict[str, str]:
        """Add those of `names` that a lookup finds to the listing; return the reasons of failed lookups by name."""
        wanted = [name for name in names if name not in self.listed]
        problems = {}
        for name, found in zip(wanted, threads.each(self._look_up_one, wanted), strict=True):
            if isinstance(found, str):
                problems[name] = found
            elif found is not None:
                self.listed[name] = found
        return problems

    def _look_up_one(self, name: str) -> ObjectMeta | str | None:
        try:
            return self._store.head(self.prefix + name)
        except StoreError as error:
            return str(error)

    def forget(self, name: str) -> None:
        """Drop the content; the object may still be listed."""
        self._generations.pop(name, None)
        self.values.pop(name, None)
        self.problems.pop(name, None)

    def drop(self, name: str) -> None:
        self.forget(name)
        self.listed.pop(name, None)

    def remember(self, name: str, meta: ObjectMeta, value: T) -> None:
        self.listed[name] = meta
        self._generations[name] = meta.generation
        self.values[name] = value
        self.problems.pop(name, None)

    def generation(self, name: str) -> int:
        """Return the generation that `values[name]` or `problems[name]` was read from; 0 if neither exists."""
        return self._generations.get(name, 0)

    def fetch(self, names: Iterable[str], threads: ThreadPool) -> None:
        """Download those of `names` with a new generation, all at once."""
        listed, known = self.listed, self._generations
        wanted = [name for name in names if name in listed and known.get(name) != listed[name].generation]
        if self.unknown:
            self.unknown = {name: problem for name, problem in self.unknown.items() if name in set(wanted)}
        for name in threads.each(self._fetch_one, wanted):
            if name:
                self.drop(name)

    def _fetch_one(self, name: str) -> str:
        """Return the name if the object is gone."""
        meta = self.listed[name]
        max_bytes = self._max_bytes(name)
        if meta.size > max_bytes:
            self._generations[name] = meta.generation
            self.problems[name] = f"it is {meta.size} bytes long; the maximum is {max_bytes}"
            return ""
        try:
            stored = self._store.get(meta.key, max_bytes=max_bytes)
        except NotFound:
            return name
        except ObjectTooLarge as error:  # it grew after the listing
            self._generations[name] = meta.generation
            self.problems[name] = str(error)
            return ""
        except StoreError as error:
            self.unknown[name] = str(error)
            return ""
        self.unknown.pop(name, None)
        self._generations[name] = stored.meta.generation
        if stored.meta.generation != meta.generation:
            # A listing has the instant in milliseconds, a download in seconds.
            self.listed[name] = stored.meta
        try:
            self._note_read(stored.meta, name, stored.data)
            self.values[name] = self._parse(name, stored.data)
            self.problems.pop(name, None)
        except InvalidDocument as error:
            self.problems[name] = str(error)[: limits.PROBLEM_MAX_CHARS]  # the last good value stays
        return ""
