"""Which folders a tick lists, so that ten thousand waiting jobs cost it no more than fifteen requests.

A listing costs one request for each page of a thousand objects, so:

* Neighbours in the order of keys are listed in one go. A bucket without many jobs is listed whole, in four requests.
* Every tick lists whole what users write: specs, wishes, the quota file. What the daemon and the hosts write is listed
  as often as the budget allows: the runs (with the options and the status), the beats, one page of the states. The
  settings, which are a page of their own, are listed once in a while.
* Nothing is ever *done* on part of a picture. A tick that finds something to do calls `look(whole=True)`, which lists
  what is missing, and decides again. So how often something is listed decides only how late it is noticed.

Invariant: a shelf takes over a listing only when all of it was read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from bastion.core import limits
from bastion.daemon.thread_pool import ThreadPool
from bastion.ports import ObjectMeta, ObjectStore

# Requests of a tick in which nothing happens. With more jobs than this was made for, a quarter more than what the
# folders of the users cost: to be late with the hosts' would save little then.
_BUDGET = 15
# Every so many ticks: the operator's settings (they are listed in every tick that does something, too), the runs (of
# which a tick may have to leave out some), the beats (a host writes one in 30 s), a page of the states.
_SETTINGS_TICKS = 30
_RUNS_TICKS = 1
_HEARTBEATS_TICKS = 3
_WINDOW_TICKS = 2
# Whatever the budget says, nothing is later than so many times what is due.
_LATEST = 4


class Shelf(Protocol):
    """What keeps the objects under one prefix, or one object by its key."""

    prefix: str

    def take(self, found: Sequence[ObjectMeta]) -> None:
        """Takes over a complete listing of the prefix."""
        ...


class WindowShelf(Shelf, Protocol):
    def take(self, found: Sequence[ObjectMeta], *, after: str = "", until: str = "") -> None:
        """Takes over a listing of the keys that are greater than `after` and not greater than `until`, if given."""
        ...


class LoneObject:
    """One object as it was last listed, or written since by ourselves."""

    def __init__(self, key: str) -> None:
        self.prefix = key
        self.meta: ObjectMeta | None = None

    def take(self, found: Sequence[ObjectMeta]) -> None:
        self.meta = next((meta for meta in found if meta.key == self.prefix), None)


class _Part(Protocol):
    """What a tick lists or leaves out.

    Attributes:
        pages: Requests that it cost the last time.
    """

    @property
    def pages(self) -> int: ...

    def lateness(self, tick: int) -> float:
        """Ticks since the last time, in parts of those after which it is due."""
        ...

    def listed_in(self, tick: int) -> bool: ...

    def refresh(self, store: ObjectStore, tick: int) -> None: ...


class _Stretch:
    """Folders that are neighbours in the order of keys, and are listed together.

    Where strangers' folders lie between them, ours are listed one by one: a listing never pays for others' objects.
    """

    def __init__(self, *shelves: Shelf, period_ticks: int = 1) -> None:
        self._shelves = shelves
        self._period_ticks = period_ticks
        self._apart = False
        self._listed_in = 0
        self.pages = 1

    def lateness(self, tick: int) -> float:
        return (tick - self._listed_in) / self._period_ticks

    def listed_in(self, tick: int) -> bool:
        return self._listed_in == tick

    def refresh(self, store: ObjectStore, tick: int) -> None:
        found = None if self._apart else self._together(store)
        if found is None:
            self._apart = True
            found = [list(store.list(shelf.prefix)) for shelf in self._shelves]
        for shelf, metas in zip(self._shelves, found, strict=True):
            shelf.take(metas)
        counts = [len(metas) for metas in found] if self._apart else [sum(map(len, found))]
        self.pages = sum(pages(count) for count in counts)
        self._listed_in = tick

    def _together(self, store: ObjectStore) -> list[list[ObjectMeta]] | None:
        """By shelf; None if strangers' objects lie between them, more than fit a page."""
        prefixes = [shelf.prefix for shelf in self._shelves]
        found: list[list[ObjectMeta]] = [[] for _ in prefixes]
        strangers = 0
        mine = 0
        first, last = prefixes[0], prefixes[-1]
        common = first[: next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]
        listing = store.list(common, start_after=_just_before(first), end_before=_just_after(last))
        for meta in listing:
            while mine < len(prefixes) and meta.key >= _just_after(prefixes[mine]):
                mine += 1
            if mine < len(prefixes) and meta.key.startswith(prefixes[mine]):
                found[mine].append(meta)
                continue
            strangers += 1
            if strangers >= limits.LIST_PAGE_OBJECTS:
                return None
        return found


def _just_before(prefix: str) -> str:
    """Less than every key with that prefix."""
    return prefix[:-1]


def _just_after(prefix: str) -> str:
    """Greater than every key with that prefix."""
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def pages(count: int) -> int:
    """Requests of a listing of so many objects."""
    return max(1, -(-count // limits.LIST_PAGE_OBJECTS))


class _Window:
    """Walks through folders, one page at a time and round again: whatever a foreign hand changes there is seen when the
    window comes by."""

    pages = 1

    def __init__(self, *shelves: WindowShelf) -> None:
        self._shelves = shelves
        self._index = 0
        self._after = ""
        self._moved_in = 0

    def lateness(self, tick: int) -> float:
        return (tick - self._moved_in) / _WINDOW_TICKS

    def listed_in(self, tick: int) -> bool:
        return self._moved_in == tick

    def start_anew(self, tick: int) -> None:
        """After everything was listed at once."""
        self._index, self._after, self._moved_in = 0, "", tick

    def refresh(self, store: ObjectStore, tick: int) -> None:
        shelf = self._shelves[self._index]
        # One less than a page: a bucket in the cloud begins its page with the object that was the last one before.
        most = limits.LIST_PAGE_OBJECTS - 1
        found = list(islice(store.list(shelf.prefix, start_after=self._after), most))
        ended = len(found) < most
        shelf.take(found, after=self._after, until="" if ended else found[-1].key)
        if ended:
            self._index, self._after = (self._index + 1) % len(self._shelves), ""
        else:
            self._after = found[-1].key
        self._moved_in = tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelves:
    """Where the listings go. `quota` is None if the quota file lies under another ROOT."""

    specs: Shelf
    claims: Shelf
    invalid: WindowShelf
    states: WindowShelf
    user_requests: Shelf
    quota: LoneObject | None
    runs: Shelf
    options: LoneObject
    status: LoneObject
    heartbeats: Shelf
    settings: LoneObject


class Listings:
    """Lists what a tick needs, and fills the shelves."""

    def __init__(self, store: ObjectStore, threads: ThreadPool, shelves: Shelves) -> None:
        self._store = store
        self._threads = threads
        s = shelves
        quota = () if s.quota is None else (s.quota,)
        self._front = _Stretch(s.specs, s.claims)
        self._back = _Stretch(s.invalid, s.states, s.user_requests)
        self._user_requests = _Stretch(s.user_requests)
        self._window = _Window(s.invalid, s.states)
        self._tail = _Stretch(*quota, s.runs, s.options, s.status, period_ticks=_RUNS_TICKS)
        self._quota = _Stretch(*quota) if quota else None
        self._heartbeats = _Stretch(s.heartbeats, period_ticks=_HEARTBEATS_TICKS)
        self._settings = _Stretch(s.settings, period_ticks=_SETTINGS_TICKS)
        self._everything = (self._front, self._back, self._tail, self._heartbeats, self._settings)
        self._tick = 0
        self._spent = 0

    def begin(self, *, spent: int) -> None:
        """A new tick, in which so many requests were already made."""
        self._tick += 1
        self._spent = spent

    @property
    def whole(self) -> bool:
        """Whether this tick has listed everything."""
        return all(stretch.listed_in(self._tick) for stretch in self._everything)

    @property
    def sees_status(self) -> bool:
        """Whether this tick has listed the status."""
        return self._tail.listed_in(self._tick)

    def look(self, *, whole: bool) -> None:
        """Lists what is due, or (`whole`) everything that this tick has not listed yet.

        Raises:
            StoreError: a folder could not be listed; nothing can be decided in this tick.
        """
        wanted: Sequence[_Part] = self._everything if whole else self._due()
        self._threads.each(
            lambda part: part.refresh(self._store, self._tick),
            [part for part in wanted if not part.listed_in(self._tick)],
        )
        if self._back.listed_in(self._tick):
            self._window.start_anew(self._tick)

    def _due(self) -> list[_Part]:
        """What users write, and of the rest what is most overdue, as long as the budget lasts."""
        small = self._back.pages == 1
        chosen: list[_Part] = [self._front, self._back if small else self._user_requests]
        rest: list[_Part] = [self._tail, self._heartbeats, *([] if small else [self._window])]
        if self._settings.lateness(self._tick) >= 1:
            rest.append(self._settings)
        cost = sum(part.pages for part in chosen)
        budget = max(_BUDGET, cost * 5 // 4) - self._spent
        cost += 1  # the quota file, wherever it lies
        for part in sorted(rest, key=lambda part: -part.lateness(self._tick)):
            more = part.pages
            if part is self._tail and self._quota is not None:
                more -= 1  # the quota file is in that listing
            if cost + more <= budget or part.lateness(self._tick) >= _LATEST:
                chosen.append(part)
                cost += more
        if self._quota is not None and self._tail not in chosen:
            chosen.append(self._quota)
        return chosen
