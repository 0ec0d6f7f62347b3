"""Where slices may be left: zones that nothing asks for any more, and which were asked for not long ago.

A zone that the operator took out of the settings may still have slices of ours, created late by a
request that was thought lost. So it is looked at for an hour longer, and as long as it has any. Published with the
status, so that a daemon which knows nothing looks there, too. A zone that never answered is none of these: it was a
mistake.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bastion.daemon.observe.gangs import Nodes

# Longer than any request can be under way, and than anybody needs to see what became of a change of the settings.
KEPT_SECONDS = 3600.0


class ZonesInUse:
    """Remembers when each zone was last asked for, or had slices of ours."""

    def __init__(self) -> None:
        self._used_at: dict[str, float] = {}

    @property
    def known(self) -> list[str]:
        return sorted(self._used_at)

    def looked(self, nodes: Nodes, needed: Iterable[str], now: float) -> None:
        """Takes note of one tick's listings.

        Args:
            nodes: They are of the zones that are needed, and of those that are known.
            needed: By the settings, or by a job's record.
            now: On the monotonic clock.
        """
        wanted = set(needed)
        for zone, listing in nodes.slices.items():
            if not listing.problem and (zone in wanted or listing.nodes):
                self._used_at[zone] = now
        self._used_at = {zone: at for zone, at in self._used_at.items() if now - at < KEPT_SECONDS}

    def recover(self, published: Any, now: float) -> None:
        """Takes over what an earlier daemon knew, as it lies in the bucket; it may be anything."""
        for zone in published_zones(published):
            self._used_at.setdefault(zone, now)


def published_zones(status: Any) -> list[str]:
    """The zones that a status document tells; empty if it is none of ours."""
    daemon = status.get("daemon") if isinstance(status, dict) else None
    zones = daemon.get("zones") if isinstance(daemon, dict) else None
    return [zone for zone in zones if isinstance(zone, str)] if isinstance(zones, list) else []
