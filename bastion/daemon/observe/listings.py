"""The folders that a tick lists, so that ten thousand waiting jobs cost at most fifteen requests.

A listing costs one request per page of a thousand objects, so:

* Folders that are neighbors in key order are listed together. A bucket with few jobs takes four requests.
* Every tick lists what users write: specs, requests, the quota file. The rest is listed as the budget allows: the runs
  (with options and status), the heartbeats, one page of the states, and rarely the settings.
* A tick acts only on a complete picture: if it finds something to do, it calls `look(whole=True)` and decides again.
  The budget only affects when something is noticed.

Invariant: a cache takes a listing only when it was read to its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Protocol, TypeAlias

from bastion.core import limits
from bastion.daemon.thread_pool import ThreadPool
from bastion.ports import ObjectMeta, ObjectStore

# Budget of an idle tick in requests. With very many jobs it is a quarter more than the users' folders cost.
_BUDGET = 15
# Periods in ticks: the operator's settings, the runs, the heartbeats (one per host in 30 s), a page of the states.
_SETTINGS_TICKS = 30
_RUNS_TICKS = 1
_HEARTBEATS_TICKS = 3
_WINDOW_TICKS = 2
# The copies of specs in mode `inbox`, if they are many.
_COPIES_TICKS = 30
# Maximum lateness in periods, whatever the budget.
_LATEST = 4


class ListedFolder(Protocol):
    """Holds the objects under one prefix, or one object."""

    prefix: str

    def take(self, found: Sequence[ObjectMeta]) -> None: ...


class PagedFolder(ListedFolder, Protocol):
    def take(self, found: Sequence[ObjectMeta], *, after: str = "", until: str = "") -> None:
        """Take a listing of the keys greater than `after`, up to `until` if given."""
        ...


class LoneObject:
    """One object as last listed or written."""

    def __init__(self, key: str) -> None:
        self.prefix = key
        self.meta: ObjectMeta | None = None

    def take(self, found: Sequence[ObjectMeta]) -> None:
        self.meta = next((meta for meta in found if meta.key == self.prefix), None)


class _Part(Protocol):
    """A unit that a tick lists or skips; `pages` is its last cost in requests."""

    @property
    def pages(self) -> int: ...

    def lateness(self, tick: int) -> float: ...

    def listed_in(self, tick: int) -> bool: ...

    def refresh(self, store: ObjectStore, tick: int) -> None: ...


class _Neighbors:
    """Folders that are neighbors in key order. If foreign objects lie between them, they are listed one by one."""

    def __init__(self, *folders: ListedFolder, period_ticks: int = 1) -> None:
        self._folders = folders
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
            found = [list(store.list(folder.prefix)) for folder in self._folders]
        for folder, metas in zip(self._folders, found, strict=True):
            folder.take(metas)
        counts = [len(metas) for metas in found] if self._apart else [sum(map(len, found))]
        self.pages = sum(pages(count) for count in counts)
        self._listed_in = tick

    def _together(self, store: ObjectStore) -> list[list[ObjectMeta]] | None:
        """Return the listing by cache; None if foreign objects between them exceed a page."""
        prefixes = [folder.prefix for folder in self._folders]
        found: list[list[ObjectMeta]] = [[] for _ in prefixes]
        strangers = 0
        mine = 0
        first, ends = prefixes[0], [_just_after(prefix) for prefix in prefixes]
        last = prefixes[-1]
        common = first[: next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]
        listing = store.list(common, start_after=_just_before(first), end_before=ends[-1])
        for meta in listing:
            while mine < len(prefixes) and meta.key >= ends[mine]:
                mine += 1
            if mine < len(prefixes) and meta.key.startswith(prefixes[mine]):
                found[mine].append(meta)
                continue
            strangers += 1
            if strangers >= limits.LIST_PAGE_OBJECTS:
                return None
        return found


def _just_before(prefix: str) -> str:
    return prefix[:-1]


def _just_after(prefix: str) -> str:
    return prefix[:-1] + chr(ord(prefix[-1]) + 1)


def pages(count: int) -> int:
    """The requests of a listing with that many objects, at most: a full page may be followed by one of other keys."""
    return count // limits.LIST_PAGE_OBJECTS + 1


class _Window:
    """A page at a time through folders, in rounds; foreign changes are seen within one round."""

    pages = 1

    def __init__(self, *folders: PagedFolder) -> None:
        self._folders = folders
        self._index = 0
        self._after = ""
        self._moved_in = 0

    def lateness(self, tick: int) -> float:
        return (tick - self._moved_in) / _WINDOW_TICKS

    def listed_in(self, tick: int) -> bool:
        return self._moved_in == tick

    def start_anew(self, tick: int) -> None:
        self._index, self._after, self._moved_in = 0, "", tick

    def refresh(self, store: ObjectStore, tick: int) -> None:
        folder = self._folders[self._index]
        # One less than a page: a page of a cloud bucket begins with the last object of the previous one.
        most = limits.LIST_PAGE_OBJECTS - 1
        found = list(islice(store.list(folder.prefix, start_after=self._after), most))
        ended = len(found) < most
        folder.take(found, after=self._after, until="" if ended else found[-1].key)
        if ended:
            self._index, self._after = (self._index + 1) % len(self._folders), ""
        else:
            self._after = found[-1].key
        self._moved_in = tick


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedFolders:
    """What the tick lists; `quota` is None if the quota file is under another ROOT."""

    specs: ListedFolder
    claims: ListedFolder
    invalid: PagedFolder
    states: PagedFolder
    user_requests: ListedFolder
    quota: LoneObject | None
    requests: ListedFolder
    runs: ListedFolder
    options: LoneObject
    status: LoneObject
    heartbeats: ListedFolder
    settings: LoneObject
    identity: LoneObject
    identity_copy: LoneObject
    # In mode `inbox`: the source of specs and requests, and what is listed instead of those.
    inbox: ListedFolder
    copies: ListedFolder
    foreign_requests: ListedFolder


class _InboxFront:
    """The inboxes and claims, in every tick; the copies of specs are listed along while all of it is one page."""

    def __init__(self, f: ListedFolders) -> None:
        self._together = _Neighbors(f.inbox, f.copies, f.claims)
        self._inbox, self._claims = _Neighbors(f.inbox), _Neighbors(f.claims)
        self._listed_in = self._together_in = 0

    @property
    def _small(self) -> bool:
        return self._together.pages == 1

    @property
    def pages(self) -> int:
        return 1 if self._small else self._inbox.pages + self._claims.pages

    def lateness(self, tick: int) -> float:
        return float(tick - self._listed_in)

    def listed_in(self, tick: int) -> bool:
        return self._listed_in == tick

    def refresh(self, store: ObjectStore, tick: int) -> None:
        if self._small or tick - self._together_in >= _COPIES_TICKS:
            self._together.refresh(store, tick)
            self._together_in = tick
        else:
            self._inbox.refresh(store, tick)
            self._claims.refresh(store, tick)
        self._listed_in = tick


# What every tick lists, what it lists while that is one page, and the users' part of the second.
_Parts: TypeAlias = tuple[_Part, _Neighbors, _Neighbors]


class _InboxParts:
    """What takes the places of the open mode's parts."""

    def __init__(self, f: ListedFolders) -> None:
        front = _InboxFront(f)
        back = _Neighbors(f.invalid, f.states, f.foreign_requests)
        self.parts: _Parts = front, back, _Neighbors(f.foreign_requests, period_ticks=_COPIES_TICKS)


class Listings:
    def __init__(self, store: ObjectStore, threads: ThreadPool, folders: ListedFolders) -> None:
        self._store = store
        self._threads = threads
        f = folders
        quota = () if f.quota is None else (f.quota,)
        self._front: _Part = _Neighbors(f.specs, f.claims)
        self._back = _Neighbors(f.invalid, f.states, f.user_requests)
        self._user_requests = _Neighbors(f.user_requests)
        self._window = _Window(f.invalid, f.states)
        self._tail = _Neighbors(*quota, f.requests, f.runs, f.options, f.status, period_ticks=_RUNS_TICKS)
        self._of_people = _Neighbors(*quota, f.requests)
        self._heartbeats = _Neighbors(f.heartbeats, period_ticks=_HEARTBEATS_TICKS)
        self._settings = _Neighbors(f.settings, f.identity, f.identity_copy, period_ticks=_SETTINGS_TICKS)
        self._open: _Parts = (self._front, self._back, self._user_requests)
        self._inbox = _InboxParts(f)
        self._inbox_is_source = False
        self._tick = 0
        self._spent = 0

    def begin(self, *, spent: int) -> None:
        """Begin a tick that has made `spent` requests already."""
        self._tick += 1
        self._spent = spent

    def use_inbox(self, on: bool) -> None:
        """List the inboxes, or else `jobs/active/` and `jobs/user_states/`."""
        self._inbox_is_source = on
        self._front, self._back, self._user_requests = self._inbox.parts if on else self._open

    @property
    def _everything(self) -> tuple[_Part, ...]:
        return (self._front, self._back, self._tail, self._heartbeats, self._settings)

    @property
    def whole(self) -> bool:
        return all(part.listed_in(self._tick) for part in self._everything)

    @property
    def sees_status(self) -> bool:
        return self._tail.listed_in(self._tick)

    def look(self, *, whole: bool) -> None:
        """List what is due, or with `whole` everything that this tick has not listed.

        Raises StoreError if a folder could not be listed; decide nothing in this tick.
        """
        wanted: Sequence[_Part] = self._everything if whole else self._due()
        self._threads.each(
            lambda part: part.refresh(self._store, self._tick),
            [part for part in wanted if not part.listed_in(self._tick)],
        )
        if self._back.listed_in(self._tick):
            self._window.start_anew(self._tick)

    def _due(self) -> list[_Part]:
        """What users write, then what is most overdue within the budget."""
        small = self._back.pages == 1
        chosen: list[_Part] = [self._front]
        optional: list[_Part] = [self._tail, self._heartbeats, *([] if small else [self._window])]
        if small:
            chosen.append(self._back)
        elif not self._inbox_is_source:
            chosen.append(self._user_requests)
        elif self._user_requests.lateness(self._tick) >= 1:
            optional.append(self._user_requests)
        if self._settings.lateness(self._tick) >= 1:
            optional.append(self._settings)
        cost = sum(part.pages for part in chosen)
        budget = max(_BUDGET, cost * 5 // 4) - self._spent
        cost += self._of_people.pages  # the quota file and requests about jobs, which lie together
        for part in sorted(optional, key=lambda part: -part.lateness(self._tick)):
            more = part.pages
            if part is self._tail:
                more -= self._of_people.pages  # they are in that listing
            if cost + more <= budget or part.lateness(self._tick) >= _LATEST:
                chosen.append(part)
                cost += more
        if self._tail not in chosen:
            chosen.append(self._of_people)
        return chosen
