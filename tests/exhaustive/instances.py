"""Every small instance: at most three projects, five jobs and eight chips, cut by symmetry.

An instance is what each project is entitled to of a pool of 8 (`SHARES`), how many ticks an eviction takes
(`STOPPING`), how far apart jobs arrive (`Gap`), and the jobs in the order of their arrival, each a project and a size.

Cut by symmetry: projects that are entitled to the same are interchangeable, so the first job of one of them belongs to
the first of them. Pools of 4 and 2 are those of 8 with everything doubled. Beyond that, `parts` says what is left out.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

POOL = 8
KIND = "v4"
PROJECTS = ("a", "b", "c")
SIZES = (8, 4, 2, 1)
STOPPING = (0, 1, 2, 3)
# Ticks that a job runs, where jobs end.
LENGTHS = (1, 4)
# All ways to divide the pool, the greatest share first. The first four, one of each kind, are tried with more jobs.
SHARES = (
    (4, 4, 0),
    (4, 2, 2),
    (8, 0, 0),
    (3, 3, 2),
    (7, 1, 0),
    (6, 2, 0),
    (6, 1, 1),
    (5, 3, 0),
    (5, 2, 1),
    (4, 3, 1),
)
MAIN_SHARES = SHARES[:4]

Shares = tuple[int, int, int]
Wish = tuple[str, int]


class Gap(Enum):
    """When the next job arrives."""

    AT_ONCE = "at_once"  # in the same tick
    TICK = "tick"  # in the next tick, while evictions may be on their way
    REST = "rest"  # when the jobs before it have come to rest


@dataclass(frozen=True, slots=True)
class Instance:
    shares: Shares
    stopping: int
    gap: Gap
    wishes: tuple[Wish, ...]
    # Ticks that each job runs; empty: all of them are endless.
    lengths: tuple[int, ...] = ()

    def __str__(self) -> str:
        jobs = ", ".join(f"{project} {size}" for project, size in self.wishes)
        lengths = f", running {self.lengths} ticks" if self.lengths else ""
        return f"shares {self.shares}, eviction takes {self.stopping}, {self.gap.value}: {jobs}{lengths}"


def sequences(shares: Shares, count: int) -> Iterator[tuple[Wish, ...]]:
    """All orders of arrival of so many jobs."""
    for wishes in itertools.product(itertools.product(PROJECTS, SIZES), repeat=count):
        if is_canonical(shares, [project for project, _ in wishes]):
            yield wishes


def blocks(shares: Shares, count: int) -> Iterator[tuple[Wish, ...]]:
    """All multisets of so many jobs, project by project in every order of the projects, the large ones first."""
    for order in itertools.permutations(PROJECTS):
        for wishes in itertools.combinations_with_replacement(itertools.product(order, SIZES), count):
            projects = [project for project, _ in wishes]
            # Projects without a job come last, in their own order, so that no instance is tried twice.
            absent = [project for project in order if project not in projects]
            if list(order[len(order) - len(absent) :]) == sorted(absent) and is_canonical(shares, projects):
                yield wishes


def is_canonical(shares: Shares, projects: Sequence[str]) -> bool:
    """Whether no project is used before an earlier one that is entitled to the same."""
    seen: set[str] = set()
    for project in projects:
        index = PROJECTS.index(project)
        if any(shares[other] == shares[index] and PROJECTS[other] not in seen for other in range(index)):
            return False
        seen.add(project)
    return True


@dataclass(frozen=True, slots=True)
class Part:
    """The instances of one division of the pool, one duration of evictions, and one gap between arrivals."""

    shares: Shares
    stopping: int
    gap: Gap
    finite: bool

    def __str__(self) -> str:
        kind = "finite" if self.finite else "endless"
        return f"{'-'.join(map(str, self.shares))}_{kind}_{self.gap.value}_stopping{self.stopping}"

    def instances(self) -> Iterator[Instance]:
        if self.finite:
            for wishes in self._all_up_to(3):
                for lengths in itertools.product(LENGTHS, repeat=len(wishes)):
                    yield Instance(self.shares, self.stopping, self.gap, wishes, lengths)
            return
        for wishes in self._all_up_to(4 if self.shares in MAIN_SHARES else 3):
            yield Instance(self.shares, self.stopping, self.gap, wishes)
        if self.shares in MAIN_SHARES and self.gap is not Gap.TICK:
            for wishes in blocks(self.shares, 5):
                yield Instance(self.shares, self.stopping, self.gap, wishes)

    def _all_up_to(self, count: int) -> Iterator[tuple[Wish, ...]]:
        for size in range(1, count + 1):
            yield from sequences(self.shares, size)


def parts() -> list[Part]:
    """All that is tried.

    Endless jobs: up to four in every order for `MAIN_SHARES`, up to three for the other divisions; five jobs project by
    project (one borrows before the next one comes), the large ones first. Jobs that end: up to three in every order,
    each of both lengths, unless each waits for the others to come to rest: then nobody ever meets.
    """
    endless = [Part(shares, stopping, gap, False) for shares in SHARES for gap in Gap for stopping in STOPPING]
    finite = [
        Part(shares, stopping, gap, True)
        for shares in MAIN_SHARES
        for gap in (Gap.AT_ONCE, Gap.TICK)
        for stopping in STOPPING
    ]
    return endless + finite
