"""How much more would have to be free for a job, given those ahead of it in the queue.

Layer: `scheduler`, pure.
"""

from __future__ import annotations

# Beyond so many different sizes ahead of a job, its missing units are bounded more coarsely to stay cheap.
_SIZES_WEIGHED = 64


class Shortfall:
    """The waiting jobs ahead of the one in hand, for one resource type."""

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
        # Others are ahead without being in the queue: jobs larger than the pool, and those whose room is being made.
        self._all_units += amount
        self._largest = max(self._largest, amount)
        self._units_of_size[amount] = self._units_of_size.get(amount, 0) + amount

    def missing(self, amount: int, first: int = 0) -> int:
        """How much more has to be free so that `amount` is left over, whichever of the jobs ahead then start.

        Jobs ahead that do not fit in that are passed, so they do not count. The least such number; it only grows
        with the queue, so the search goes on from the last answer for the same question.

        Args:
            first: The size up to which jobs ahead must start, too.
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
