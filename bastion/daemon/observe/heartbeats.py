"""How long each host has been silent, by its beat's generation and our own clock alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.ports import Clock, ObjectMeta


class Heartbeats:
    """Remembers when each beat last moved.

    A restarted daemon starts counting anew, and so does one that could not look for a while, or could not write: hosts
    that share its outage cannot beat either. It only ever waits longer.
    """

    def __init__(self, clock: Clock) -> None:
        self.prefix = keys.BEATS
        self._clock = clock
        self._seen: dict[str, tuple[int, float]] = {}
        self._by_run: dict[str, dict[int, float]] = {}
        self._never: dict[tuple[str, int], float] = {}
        self._asked: set[tuple[str, int]] = set()
        self._answered_at = clock.monotonic()

    def start_anew(self) -> None:
        """Forgets for how long hosts have been silent: the bucket does not answer us, so they may not reach it."""
        self._seen.clear()
        self._never.clear()

    def bucket_answers(self) -> None:
        """To be told in every tick in which the bucket answered, whether or not the beats were listed."""
        now = self._clock.monotonic()
        if now - self._answered_at >= limits.BEAT_PERIOD_SECONDS:
            self.start_anew()
        self._answered_at = now

    def take(self, found: Sequence[ObjectMeta]) -> None:
        """Takes over a listing of all beats."""
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
        """Seconds since each host's beat last moved, by host index; hosts that never beat are missing."""
        return self._by_run.get(run, {})

    def never_heard(self, run: str, hosts: Iterable[int]) -> dict[int, float]:
        """Those of `hosts` that never beat: seconds since this was first asked, tick by tick."""
        now = self._clock.monotonic()
        silent = {}
        for host in set(hosts).difference(self.silent_seconds(run)):
            self._asked.add((run, host))
            silent[host] = now - self._never.setdefault((run, host), now)
        return silent

    def runs(self) -> set[str]:
        return set(self._by_run)
