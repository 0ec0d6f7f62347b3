"""The gangs of this tick, listed after the bucket, so that a gang's state is never older than its record."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from bastion.core.bucket import keys
from bastion.core.bucket.keys import Run
from bastion.core.errors import BastionError
from bastion.core.model.clusters import where
from bastion.core.model.gangs import GangRef, GangState, GangStatus
from bastion.core.model.world import OrphanGang
from bastion.daemon.thread_pool import ThreadPool
from bastion.ports import Provisioner


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioners:
    """The sources of gangs: slices, and the bastion's own host for jobs without one."""

    slices: Provisioner
    bastion_host: Provisioner

    def of(self, *, on_bastion: bool) -> Provisioner:
        return self.bastion_host if on_bastion else self.slices


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Gangs of one zone by name; `problem` is set if the provisioner did not answer."""

    gangs: Mapping[str, GangStatus]
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gangs:
    """All gangs of one tick. `slices`: by zone; `by_uid`: those with a valid run label; `problems`: for people."""

    slices: Mapping[str, Listing]
    bastion_host: Listing
    by_uid: Mapping[str, tuple[OrphanGang, ...]]
    problems: tuple[str, ...]

    def of(self, ref: GangRef, *, on_bastion: bool) -> Listing:
        return self.bastion_host if on_bastion else self.slices[ref.zone]

    def problem(self, *, on_bastion: bool, zones: Iterable[str] | None = None) -> str:
        """Return the first failed listing's problem; empty if none failed. `zones` limits it to those zones."""
        if on_bastion:
            return self.bastion_host.problem
        listings = self.slices.values() if zones is None else (self.slices[zone] for zone in zones)
        return next((listing.problem for listing in listings if listing.problem), "")

    @property
    def lost_runs(self) -> set[str]:
        return {
            status.run
            for listing in (*self.slices.values(), self.bastion_host)
            for status in listing.gangs.values()
            if status.state is GangState.LOST
        }

    def orphans(self, uids: Iterable[str]) -> tuple[OrphanGang, ...]:
        known = set(uids)
        return tuple(gang for uid, gangs in sorted(self.by_uid.items()) if uid not in known for gang in gangs)


def list_gangs(provisioners: Provisioners, zones: Iterable[str], threads: ThreadPool) -> Gangs:
    """List all zones at once, so that an API that hangs costs one deadline. A failed listing becomes a problem."""
    asked = list(zones)
    slices = dict(zip(asked, threads.each(lambda zone: _list(provisioners.slices, zone), asked), strict=True))
    host = _list(provisioners.bastion_host, "")
    problems = [f"cannot list {_what(zone)}: {found.problem}" for zone, found in slices.items() if found.problem]
    if host.problem:
        problems.append(f"cannot list the bastion's own host: {host.problem}")
    by_uid: dict[str, tuple[OrphanGang, ...]] = {}
    for listing in (*slices.values(), host):
        for status in listing.gangs.values():
            run = Run.parse(status.run)
            if run is None or not is_named_for(run, status.ref.name):
                # Only gangs with our label and a matching name are deleted, because labels can be copied.
                problems.append(
                    f"{status.ref.name}{where(status.ref.zone)} has this bastion's label but is not named for its run, "
                    "like a copy; check it and delete it by hand"
                )
                continue
            orphan = OrphanGang(status=status, on_bastion=listing is host)
            by_uid[run.uid] = (*by_uid.get(run.uid, ()), orphan)
    return Gangs(slices=slices, bastion_host=host, by_uid=by_uid, problems=tuple(problems))


def look_up(
    get: Callable[[GangRef], GangStatus | None], refs: Iterable[GangRef], threads: ThreadPool
) -> Mapping[str, GangStatus | BastionError | None]:
    """Look up all gangs at once, by name; a failed look-up becomes its error."""

    def found(ref: GangRef) -> GangStatus | BastionError | None:
        try:
            return get(ref)
        except BastionError as error:
            return error

    asked = list(refs)
    return dict(zip((ref.name for ref in asked), threads.each(found, asked), strict=True))


def is_named_for(run: Run, name: str) -> bool:
    """Whether a gang of that name can be ours for the run: the run's own, or a slice of it."""
    gang = keys.gang(str(run))
    return name == gang or (name.startswith(f"{gang}-") and name[len(gang) + 1 :].isdecimal())


def _what(zone: str) -> str:
    return f"slices{where(zone)}"


def _list(provisioner: Provisioner, zone: str) -> Listing:
    try:
        return Listing(gangs={status.ref.name: status for status in provisioner.list(zone)})
    except BastionError as error:
        return Listing(gangs={}, problem=str(error) or type(error).__name__)
