"""Sweeping: what nobody owns any more. Patience first: a thing is swept only after it was ownerless for several ticks,
because a listing may lag behind what another daemon or a user has just written.

Layer: daemon. Gangs that failed or were taken back go first: they hold quota, and others wait for it.
"""

from __future__ import annotations

from bastion.core import limits
from bastion.core.bucket.keys import Run
from bastion.core.model.gangs import GangState, GangStatus
from bastion.core.model.world import World
from bastion.core.reconcile.effects import CloseGate, DeleteGang, DropRun, DropRuns, DropUserRequest, Effect
from bastion.daemon.observe.observer import Observer

_ORPHAN_TICKS = 5
# Longer than any request can be under way: until then a host of the run may come up late, and look for its claim.
PAST_RUNS_KEPT_SECONDS = 3600.0


def urgency(status: GangStatus) -> tuple[int, str]:
    """Sorts what is to be swept: what only holds quota first."""
    return (0 if status.state in (GangState.FAILED, GangState.LOST) else 1), status.ref.name


class Sweeper:
    """Remembers since which tick each thing has been ownerless."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._since: dict[str, int] = {}

    def start_anew(self) -> None:
        """Forgets since when things are ownerless: another daemon acted in the meantime."""
        self._since.clear()

    def sweep(self, world: World, tick: int, now: float, *, server_time: float) -> dict[str, list[Effect]]:
        """Effects for ownerless wishes, nodes and run objects, and those of past runs, by a name of their own.

        Args:
            world: What was observed; the same tick may be looked at twice.
            tick: Its number.
            now: Seconds since the epoch.
            server_time: The same by the bucket's clock, a little while ago.
        """
        seen: dict[str, int] = {}
        work: dict[str, list[Effect]] = {}

        def old_enough(what: str, ticks: int) -> bool:
            seen[what] = self._since.get(what, tick)
            return tick - seen[what] + 1 >= ticks

        for name, meta in self._observer.folders.user_requests.listed.items():
            view = world.jobs.get(name)
            known = view is not None and (view.record is not None or view.spec_meta is not None)
            if not known and old_enough(f"wish {name}", limits.UNKNOWN_WISH_TICKS):
                work[f"wish {name}"] = [DropUserRequest(name=name, generation=meta.generation)]
        # A state that cannot be read may own anything: sweep nothing until it is mended.
        blind = any(view.frozen and view.record is None for view in world.jobs.values())
        for stray in () if blind else sorted(self._observer.ownerless_gangs, key=lambda stray: urgency(stray.status)):
            status = stray.status
            what = f"node {status.ref.name}"
            if old_enough(what, _ORPHAN_TICKS) and status.state is not GangState.DELETING:
                work[what] = [
                    CloseGate(run=status.run, reason="nobody owns this node"),
                    DeleteGang(ref=status.ref, on_bastion=stray.on_bastion),
                ]
        ownerless = self._ownerless_runs(world)
        # Claims and orders stay for longer; the rest is of no use.
        for uid in sorted({run.uid for run in ownerless} & self._uids_with_reports()):
            if old_enough(f"runs of {uid}", _ORPHAN_TICKS):
                work[f"runs of {uid}"] = [DropRuns(uid=uid)]
        for run, moved_at in ownerless.items():
            if server_time - moved_at >= PAST_RUNS_KEPT_SECONDS and old_enough(f"run {run}", _ORPHAN_TICKS):
                work[f"run {run}"] = [DropRun(run=str(run))]
        self._since = seen
        return work | {f"run {run}": [DropRun(run=str(run))] for run in self._past_runs(world, now, server_time)}

    def _past_runs(self, world: World, now: float, server_time: float) -> list[Run]:
        """Runs of attempts that have long been over, of jobs that are not: one may wait for capacity for weeks, and
        each of its attempts leaves objects that every tick lists."""
        folders = self._observer.folders
        past = []
        kept: dict[str, set[int]] = {}
        records = {
            view.record.uid: view.record
            for view in world.jobs.values()
            if view.record and not (view.frozen or view.orphan_gangs or view.gangs_unknown)
        }
        for text in {*folders.claims.listed, *(name.partition("/")[0] for name in folders.run_objects.listed)}:
            run = Run.parse(text)
            record = records.get(run.uid) if run is not None else None
            if run is None or record is None or not 0 < run.attempt < record.next_attempt:
                continue
            if run.uid not in kept:
                kept[run.uid] = {a.number for a in record.attempts if now - a.ended_at < PAST_RUNS_KEPT_SECONDS}
                kept[run.uid] |= {record.attempt.number} if record.attempt is not None else set()
            # A wall clock may step; the bucket's own instants do not.
            if run.attempt not in kept[run.uid] and server_time - self._moved_at(text) >= PAST_RUNS_KEPT_SECONDS:
                past.append(run)
        return sorted(past, key=str)

    def _moved_at(self, run: str) -> float:
        """The server time of the run's claim or order, whichever is newer."""
        folders = self._observer.folders
        found = (folders.claims.listed.get(run), folders.run_objects.listed.get(f"{run}/order"))
        return max((meta.updated for meta in found if meta is not None), default=0.0)

    def _ownerless_runs(self, world: World) -> dict[Run, float]:
        """Runs of no job that is known, each with the server time of its newest claim, order or report."""
        owned = {view.record.uid for view in world.jobs.values() if view.record}
        owned |= {run.uid for stray in self._observer.ownerless_gangs if (run := Run.parse(stray.status.run))}
        # A state that cannot be read may own anything: sweep nothing until it is mended.
        if any(view.frozen for view in world.jobs.values()):
            return {}
        folders = self._observer.folders
        moved_at: dict[str, float] = {}
        for name, meta in (*folders.run_objects.listed.items(), *folders.claims.listed.items()):
            if name.partition("-")[0] not in owned:
                text = name.partition("/")[0]
                moved_at[text] = max(meta.updated, moved_at.get(text, 0.0))
        for text in folders.beats.runs():
            if text.partition("-")[0] not in owned:
                moved_at.setdefault(text, 0.0)
        return {run: at for text, at in sorted(moved_at.items()) if (run := Run.parse(text)) is not None}

    def _uids_with_reports(self) -> set[str]:
        """Uids of runs, known or not, that have beats or reports."""
        folders = self._observer.folders
        return {name.partition("-")[0] for name in folders.beats.runs()} | {
            name.partition("-")[0] for name in folders.run_objects.listed if not name.endswith("/order")
        }
