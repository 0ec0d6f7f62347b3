"""Zones that may have orphaned slices, because they were in use recently.

A zone removed from the settings may still have slices of ours, created late. It is listed for another hour, and while
it has any. The status publishes these zones for a successor. A zone that never answered does not count.
"""

from __future__ import annotations

from collections.abc import Iterable

from bastion.daemon.observe.gangs import Gangs

# Longer than any request can be under way, and long enough to see the effect of new settings.
KEPT_SECONDS = 3600.0


class ZonesInUse:
    """The time at which each zone was last needed, or had slices of ours."""

    def __init__(self) -> None:
        self._used_at: dict[str, float] = {}

    @property
    def known(self) -> list[str]:
        return sorted(self._used_at)

    def note_listings(self, gangs: Gangs, needed: Iterable[str], now: float) -> None:
        """Record one tick's listings at monotonic time `now`. `needed`: zones of the settings and the records."""
        wanted = set(needed)
        for zone, listing in gangs.slices.items():
            if not listing.problem and (zone in wanted or listing.gangs):
                self._used_at[zone] = now
        self._used_at = {zone: at for zone, at in self._used_at.items() if now - at < KEPT_SECONDS}

    def recover(self, zones: Iterable[str], now: float) -> None:
        """Take over the zones that the predecessor published."""
        for zone in zones:
            self._used_at.setdefault(zone, now)
