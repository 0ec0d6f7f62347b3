"""The sweep: delete user requests of no job, gangs of no job, and objects of past runs.

A thing is deleted only after it had no owner for several ticks: a listing may lag behind what another daemon or a user
has just written. Gangs that failed or were lost go first, because they hold quota.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from bastion.core.model.gangs import GangState, GangStatus
from bastion.core.model.job_record import JobRecord
from bastion.core.model.world import World
from bastion.core.reconcile import asked
from bastion.core.reconcile.effects import DeleteGang, DropJobRequest, DropRun, DropRuns, DropUserRequest, Effect
from bastion.core.reconcile.runs import close_gate

_OWNERLESS_TICKS = 5
# Longer than any request is under way: until then a late host of the run may still look for its claim.
PAST_RUNS_KEPT_SECONDS = 3600.0


def urgency(status: GangStatus) -> tuple[int, str]:
    """Sort key for gangs to delete: those that only hold quota first."""
    return (0 if status.state in (GangState.FAILED, GangState.LOST) else 1), status.ref.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What to delete."""

    effects: Mapping[str, list[Effect]]  # by a name of their own, beside those of the jobs
    ownerless_since: Mapping[str, int]  # by thing, the number of the tick since which it has had no owner


def sweep(world: World, *, since: Mapping[str, int], tick: int, now: float, server_time: float) -> Sweep:
    """Find what has had no owner for long enough.

    Args:
        since: `Sweep.ownerless_since` of the tick before; empty after a takeover.
        tick: Number of this tick; two calls for one tick are allowed.
        now: Seconds since the epoch.
        server_time: The same by the bucket's clock, up to a lease renewal old.
    """
    return _Sweeping(world, since, tick, now, server_time).sweep()


class _Sweeping:
    def __init__(self, world: World, since: Mapping[str, int], tick: int, now: float, server_time: float) -> None:
        self._world = world
        self._since = since
        self._tick = tick
        self._now = now
        self._server_time = server_time
        self._seen: dict[str, int] = {}

    def sweep(self) -> Sweep:
        effects = {
            **self._user_requests(),
            **self._job_requests(),
            **self._gangs(),
            **self._ownerless_runs(),
            **self._past_runs(),
        }
        return Sweep(effects=effects, ownerless_since=self._seen)

    def _old_enough(self, what: str, ticks: int) -> bool:
        self._seen[what] = self._since.get(what, self._tick)
        return self._tick - self._seen[what] + 1 >= ticks

    def _user_requests(self) -> dict[str, list[Effect]]:
        effects: dict[str, list[Effect]] = {}
        for what, meta in self._world.listed.user_requests.items():
            found = keys.InboxKey.parse(meta.key) if meta.key.startswith(keys.INBOX) else None
            name, owner = (found.job, found.user) if found is not None else (what, "")
            view = self._world.jobs.get(name)
            known = view is not None and (view.record is not None or view.spec_meta is not None)
            if not known and self._old_enough(f"user request {what}", limits.UNKNOWN_REQUEST_TICKS):
                told = asked.unknown_job(owner, meta.generation, meta.updated, self._world)
                effects[f"user request {what}"] = [
                    DropUserRequest(name=name, generation=meta.generation, owner=owner, asked=told)
                ]
        return effects

    def _job_requests(self) -> dict[str, list[Effect]]:
        """Requests about no job, and what is no request."""
        effects: dict[str, list[Effect]] = {}
        for meta in self._world.listed.job_requests[: limits.REQUESTS_AT_ONCE]:
            what = f"request {meta.key}"
            found = keys.RequestKey.parse(meta.key)
            # In mode `inbox` nothing proves who wrote it, and in mode `open` no inbox counts.
            misplaced = found is None or bool(found.user) is not (self._world.outside is not None)
            view = self._world.jobs.get(found.job) if found is not None else None
            known = view is not None and (view.record is not None or view.spec_meta is not None or view.frozen)
            if (misplaced or not known) and self._old_enough(what, limits.UNKNOWN_REQUEST_TICKS):
                why = "it is not where this bastion reads requests" if misplaced else "there is no such job"
                told = asked.unknown_request(keys.inbox_user(meta.key), meta, why, self._world)
                name = found.job if found is not None else ""
                effects[what] = [DropJobRequest(key=meta.key, name=name, generation=meta.generation, asked=told)]
        return effects

    def _gangs(self) -> dict[str, list[Effect]]:
        # A state that cannot be read may own any of them.
        if any(view.frozen and view.record is None for view in self._world.jobs.values()):
            return {}
        effects: dict[str, list[Effect]] = {}
        for orphan in sorted(self._world.listed.orphan_gangs, key=lambda orphan: urgency(orphan.status)):
            status = orphan.status
            what = f"gang {status.ref.name}"
            if self._old_enough(what, _OWNERLESS_TICKS) and status.state is not GangState.DELETING:
                effects[what] = [
                    close_gate(self._world.settings, status.run, status.token, "no job owns this gang"),
                    DeleteGang(ref=status.ref, on_bastion=orphan.on_bastion),
                ]
        return effects

    def _ownerless_runs(self) -> dict[str, list[Effect]]:
        """Objects of runs of unknown jobs. Claims and orders stay longer than reports and heartbeats."""
        effects: dict[str, list[Effect]] = {}
        moved_at = self._runs_without_owner()
        listed = self._world.listed
        reporting = {name.partition("-")[0] for name in listed.heartbeat_runs}
        reporting |= {name.partition("-")[0] for name in listed.run_objects if not name.endswith("/order")}
        for uid in sorted({run.uid for run in moved_at} & reporting):
            if self._old_enough(f"runs of {uid}", _OWNERLESS_TICKS):
                effects[f"runs of {uid}"] = [DropRuns(uid=uid)]
        for run, moved in moved_at.items():
            kept = self._server_time - moved < PAST_RUNS_KEPT_SECONDS
            if not kept and self._old_enough(f"run {run}", _OWNERLESS_TICKS):
                effects[f"run {run}"] = [DropRun(run=str(run))]
        return effects

    def _runs_without_owner(self) -> dict[Run, float]:
        """Runs of unknown jobs, each with the server time of its newest claim, order or report."""
        world, listed = self._world, self._world.listed
        # A state that cannot be read may own any of them.
        if any(view.frozen for view in world.jobs.values()):
            return {}
        owned = {view.record.uid for view in world.jobs.values() if view.record}
        owned |= {run.uid for orphan in listed.orphan_gangs if (run := Run.parse(orphan.status.run))}
        moved_at: dict[str, float] = {}
        claims = ((keys.run_of_claim(name), meta) for name, meta in listed.claims.items())
        for name, meta in (*listed.run_objects.items(), *claims):
            if name.partition("-")[0] not in owned:
                text = name.partition("/")[0]
                moved_at[text] = max(meta.updated, moved_at.get(text, 0.0))
        for text in listed.heartbeat_runs:
            if text.partition("-")[0] not in owned:
                moved_at.setdefault(text, 0.0)
        return {run: at for text, at in sorted(moved_at.items()) if (run := Run.parse(text)) is not None}

    def _past_runs(self) -> dict[str, list[Effect]]:
        """Runs of past attempts of live jobs: while a job waits for weeks, every tick lists their objects."""
        listed = self._world.listed
        records = {
            view.record.uid: view.record
            for view in self._world.jobs.values()
            if view.record and not (view.frozen or view.orphan_gangs or view.gangs_unknown)
        }
        kept: dict[str, set[int]] = {}
        past: list[Run] = []
        claimed: dict[str, float] = {}
        for name, meta in listed.claims.items():
            text = keys.run_of_claim(name)
            claimed[text] = max(meta.updated, claimed.get(text, 0.0))
        for text in {*claimed, *(name.partition("/")[0] for name in listed.run_objects)}:
            run = Run.parse(text)
            record = records.get(run.uid) if run is not None else None
            if run is None or record is None or not 0 < run.attempt < record.next_attempt:
                continue
            if run.uid not in kept:
                kept[run.uid] = set(self._kept_attempts(record))
            # The wall clock may step; the bucket's own instants do not.
            if (
                run.attempt not in kept[run.uid]
                and self._server_time - self._moved_at(text, claimed) >= PAST_RUNS_KEPT_SECONDS
            ):
                past.append(run)
        return {f"run {run}": [DropRun(run=str(run))] for run in sorted(past, key=str)}

    def _kept_attempts(self, record: JobRecord) -> Iterable[int]:
        yield from (a.number for a in record.attempts if self._now - a.ended_at < PAST_RUNS_KEPT_SECONDS)
        if record.attempt is not None:
            yield record.attempt.number

    def _moved_at(self, run: str, claimed: Mapping[str, float]) -> float:
        """The server time of the run's claims or order, the newest of them."""
        order = self._world.listed.run_objects.get(f"{run}/order")
        return max(claimed.get(run, 0.0), order.updated if order is not None else 0.0)
