"""How long each host has been silent, by its heartbeat's generation and our own clock."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.ports import Clock, ObjectMeta


class Heartbeats:
    """The last change of each heartbeat. Counting restarts after an outage of the bucket, which may affect hosts."""

    def __init__(self, clock: Clock) -> None:
        self.prefix = keys.BEATS
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}
        self._by_run: dict[str, dict[int, float]] = {}
        self._never: dict[tuple[str, int], float] = {}
        self._asked: set[tuple[str, int]] = set()
        self._answered_at = clock.monotonic()

    def start_anew(self) -> None:
        """Restart counting: the bucket does not answer us, so hosts may not reach it either."""
        self._seen.clear()
        self._never.clear()

    def bucket_answers(self) -> None:
        """Call in every tick in which the bucket answered."""
        now = self._clock.monotonic()
        if now - self._answered_at >= limits.HEARTBEAT_PERIOD_SECONDS:
            self.start_anew()
        self._answered_at = now

    def take(self, found: Sequence[ObjectMeta]) -> None:
        self.bucket_answers()
        now = self._clock.monotonic()
        self._never = {host: since for host, since in self._never.items() if host in self._asked}
        self._asked = set()
        seen: dict[str, tuple[int, float]] = {}
        by_run: dict[str, dict[int, float]] = {}
        for meta in found:
            run, _, host = meta.key[len(keys.BEATS) :].rpartition(".")
            if not (host.isascii() and host.isdigit()) or len(host) > 6:
                continue
            before = self._seen.get(meta.key)
            since = before[1] if before is not None and before[0] == meta.generation else now
            seen[meta.key] = (meta.generation, since)
            by_run.setdefault(run, {})[int(host)] = now - since
        self._seen, self._by_run = seen, by_run

    def silent_seconds(self, run: str) -> dict[int, float]:
        """Return seconds since each host's last heartbeat, by host index; hosts without any are missing."""
        return self._by_run.get(run, {})

    def never_heard(self, run: str, hosts: Iterable[int]) -> dict[int, float]:
        """Return, for those of `hosts` without a heartbeat, the seconds since the first of consecutive calls."""
        now = self._clock.monotonic()
        silent = {}
        for host in set(hosts).difference(self.silent_seconds(run)):
            self._asked.add((run, host))
            silent[host] = now - self._never.setdefault((run, host), now)
        return silent

    def runs(self) -> set[str]:
        return set(self._by_run)
