"""Parsed objects by generation: an object is downloaded once per change, however often it is listed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar

from bastion.core import limits
from bastion.core.errors import InvalidDocument, NotFound, ObjectTooLarge, StoreError
from bastion.daemon.thread_pool import ThreadPool
from bastion.ports import ObjectMeta, ObjectStore

T = TypeVar("T")


class ObjectCache(Generic[T]):
    """What the objects under one prefix hold.

    After `take` and `fetch`, `listed` is the listing, `values` the last good content, and `problems` why the present
    content could not be read. An object that could not be fetched this time is in `unknown`: what depends on it waits.
    """

    def __init__(
        self,
        store: ObjectStore,
        prefix: str,
        parse: Callable[[str, bytes], T],
        *,
        confirm_absence: bool = False,
        max_bytes: Callable[[str], int] = lambda _: limits.DOCUMENT_MAX_BYTES,
    ) -> None:
        """What is kept, and how.

        Args:
            store: The bucket.
            prefix: Of the keys.
            parse: What is kept of an object, by its name and content; raises `InvalidDocument`.
            confirm_absence: An object missing in a listing counts as gone only when a lookup says so, too.
            max_bytes: How large an object of that name may be; a larger one is not read.
        """
        self.prefix = prefix
        self._store = store
        self._parse = parse
        self._confirm_absence = confirm_absence
        self._max_bytes = max_bytes
        self._generations: dict[str, int] = {}
        self.listed: dict[str, ObjectMeta] = {}
        self.values: dict[str, T] = {}
        self.problems: dict[str, str] = {}
        self.unknown: dict[str, str] = {}

    def take(self, found: Sequence[ObjectMeta], *, after: str = "", until: str = "") -> None:
        """Takes over a listing of the whole prefix, or of its keys greater than `after` and up to `until`, if given.

        Names (keys without the prefix) that vanished are forgotten.

        Raises:
            StoreError: an absence could not be confirmed; nothing has changed.
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
        """Adds those of `names` to the listing that a lookup finds: a listing may lack what is new.

        Returns:
            Lookups that were not answered, by name, and why.
        """
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
        """Drops what was read of the object; it may still be listed."""
        self._generations.pop(name, None)
        self.values.pop(name, None)
        self.problems.pop(name, None)

    def drop(self, name: str) -> None:
        """Forgets an object that we have just deleted, also as listed."""
        self.forget(name)
        self.listed.pop(name, None)

    def remember(self, name: str, meta: ObjectMeta, value: T) -> None:
        """Keeps what we have just written ourselves, so that it is not downloaded again."""
        self.listed[name] = meta
        self._generations[name] = meta.generation
        self.values[name] = value
        self.problems.pop(name, None)

    def generation(self, name: str) -> int:
        """The generation that `values[name]` or `problems[name]` was read from; 0 if neither exists."""
        return self._generations.get(name, 0)

    def fetch(self, names: Iterable[str], threads: ThreadPool) -> None:
        """Downloads those of `names` whose generation is not the known one, all at once."""
        listed, known = self.listed, self._generations
        wanted = [name for name in names if name in listed and known.get(name) != listed[name].generation]
        if self.unknown:
            self.unknown = {name: problem for name, problem in self.unknown.items() if name in set(wanted)}
        for name in threads.each(self._fetch_one, wanted):
            if name:
                self.drop(name)

    def _fetch_one(self, name: str) -> str:
        """Returns the name if the object turns out to be gone."""
        meta = self.listed[name]
        max_bytes = self._max_bytes(name)
        if meta.size > max_bytes:
            self._generations[name] = meta.generation
            self.problems[name] = f"it has {meta.size} bytes; {max_bytes} are the most"
            return ""
        try:
            stored = self._store.get(self.prefix + name, max_bytes=max_bytes)
        except NotFound:
            return name
        except ObjectTooLarge as error:  # it has grown since the listing, which will tell its new generation
            self._generations[name] = meta.generation
            self.problems[name] = str(error)
            return ""
        except StoreError as error:
            self.unknown[name] = str(error)
            return ""
        self.unknown.pop(name, None)
        self._generations[name] = stored.meta.generation
        if stored.meta.generation != meta.generation:
            # Of the same generation the listing knows the instant to the millisecond, a download to the second only.
            self.listed[name] = stored.meta
        try:
            self.values[name] = self._parse(name, stored.data)
            self.problems.pop(name, None)
        except InvalidDocument as error:
            self.problems[name] = str(error)[: limits.PROBLEM_MAX_CHARS]  # the last good value stays beside it
        return ""
