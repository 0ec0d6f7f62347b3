"""How much more must be free for a job, given the jobs ahead of it in the queue."""

from __future__ import annotations

# Beyond this many different sizes ahead of a job, missing units are bounded more coarsely.
_SIZES_WEIGHED = 64


class Shortfall:
    """The jobs ahead of the current one and the free units, for one resource type."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.jobs = 0
        self.units = 0
        self._all_units = 0
        self._largest = 0
        self._units_of_size: dict[int, int] = {}
        self._needed: dict[tuple[int, int], int] = {}

    def add(self, amount: int, competes: bool) -> None:
        if competes:
            self.jobs += 1
            self.units += amount
        # Jobs outside the queue count here, too: jobs larger than the pool, and jobs with a promise.
        self._all_units += amount
        self._largest = max(self._largest, amount)
        self._units_of_size[amount] = self._units_of_size.get(amount, 0) + amount

    def missing(self, amount: int, first: int = 0) -> int:
        """How much more must be free to leave `amount`, whichever jobs ahead then start.

        Jobs ahead that do not fit are passed and do not count. Jobs ahead up to the size `first` must start, too. The
        result only grows with the queue, so the search continues from the last answer to the same question.
        """
        question = (amount, first)
        needed = self._needed.get(question, max(amount, first, self.free))
        while needed < self._largest and len(self._units_of_size) <= _SIZES_WEIGHED:
            taken = 0
            for size, units in self._units_of_size.items():
                if size <= needed:
                    taken += units
            if taken + amount <= needed:
                break
            needed = taken + amount
        else:
            needed = max(needed, self._all_units + amount)
        self._needed[question] = needed
        return max(0, needed - self.free)
