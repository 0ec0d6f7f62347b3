"""Mode `inbox`: what to do about objects that no job comes from, and about requests of users who may not make them.

A refusal is final for that generation of the object: what was refused does not begin when a name gets free. The daemon
alone writes below `jobs/`, so the explanations are its memory of what it refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bastion.core.bucket import keys
from bastion.core.model.job_record import JobRecord, Pin
from bastion.core.model.world import AskedOfJob, Explained, JobView, Outside, OutsideObject, UserRequest, World
from bastion.core.reconcile import asked
from bastion.core.reconcile.effects import DropInvalid, DropUserRequest, Effect, PutCopy, PutInvalid

INSTEAD = (
    "this bastion takes jobs and requests from inbox/<user>/ only, because there the bucket proves who wrote them; "
    "launch it again if it was launched before inboxes were enabled, or with a newer bastion command; or ask an "
    "administrator for an inbox"
)


def pinned(view: JobView) -> dict[str, Any]:
    """The fields of a record that say which object it was accepted from."""
    assert view.spec_meta is not None  # there is a spec
    found: dict[str, Any] = {"generation": view.spec_meta.generation}
    if view.owner:
        found["pin"] = Pin(user=view.owner, generation=view.spec_meta.generation, sha256=view.spec_sha256)
    return found


def copy_before(before: JobRecord | None, record: JobRecord) -> list[Effect]:
    """The copy for everybody, if the record pins another object than before."""
    if record.pin is None or (before is not None and before.pin == record.pin):
        return []
    return [PutCopy(name=record.name, pin=record.pin)]


def refusal_of(request: UserRequest, record: JobRecord) -> str:
    """The line of the history about a request of somebody who may not make it."""
    return f"cancel by {request.by} refused: {request_problem(request, record)}"


def request_problem(request: UserRequest, record: JobRecord) -> str:
    return request.problem or f"{record.name} is the job of {record.owner}, who may cancel it, as may administrators"


def refuse_request(request: UserRequest, record: JobRecord, view: JobView, world: World) -> Iterator[Effect]:
    """Explain it to its author, and remove it."""
    explained = view.explained_to.get(request.owner)
    if explained is None or explained.request:
        yield PutInvalid(
            name=record.name,
            owner=request.owner,
            request=True,
            spec_generation=request.generation,
            problem=f"your request was refused: {request_problem(request, record)}",
            generation=explained.generation if explained is not None else 0,
        )
    told = asked.refused(request, request_problem(request, record), record, world)
    yield DropUserRequest(name=record.name, generation=request.generation, owner=request.owner, asked=told)


def explain_denied(each: AskedOfJob, record: JobRecord, view: JobView) -> Iterator[Effect]:
    """Explain to its author why his request about the job is refused."""
    explained = view.explained_to.get(each.owner)
    if explained is None or explained.request:
        yield PutInvalid(
            name=record.name,
            owner=each.owner,
            request=True,
            spec_generation=each.generation,
            problem=f"your request was refused: {each.problem}",
            generation=explained.generation if explained is not None else 0,
        )


def outside(world: World) -> dict[str, list[Effect]]:
    """Explain what is refused, remove explanations of what is gone, and mend copies; by a name beside those of jobs."""
    if world.outside is None:
        return {}
    work = {}
    explained = {(each.name, each.owner): each for each in world.outside.explained}
    for each in world.outside.objects:
        about = _about_request if each.request else _about_spec
        effects = list(about(each, explained.get((each.name, each.owner)), world))
        if effects:
            work[_title(each)] = effects
    present = {(each.name, each.owner) for each in world.outside.objects}
    for who, stale in explained.items():
        if who not in present and not _is_kept(stale, world, world.outside):
            title = f"explanation {keys.invalid_name(stale.name, stale.owner)}"
            work[title] = [_remembered(stale) if _is_about_anothers_job(stale, world) else _dropped(stale)]
    for name in world.outside.damaged_copies:
        record = world.jobs[name].record
        if record is not None and record.pin is not None:
            work[f"copy {name}"] = [PutCopy(name=name, pin=record.pin)]
    return work


def _title(each: OutsideObject) -> str:
    return (keys.user_state if each.request else keys.active)(each.name, each.owner)


def _about_spec(each: OutsideObject, explained: Explained | None, world: World) -> Iterator[Effect]:
    if explained is not None and explained.about == each.generation and not explained.request:
        return
    if each.problem:
        yield replace(_explain(each, explained), asked=asked.refused_outside(each, world))
    elif explained is not None and not (explained.request and _is_live(each.name, world)):
        yield DropInvalid(name=each.name, owner=each.owner, generation=explained.generation)


def _about_request(each: OutsideObject, explained: Explained | None, world: World) -> Iterator[Effect]:
    """Remove it; whoever wants to end a live job may want to know why."""
    if explained is None and _is_live(each.name, world):
        yield _explain(each, None)
    told = asked.refused_outside(each, world)
    yield DropUserRequest(name=each.name, generation=each.generation, owner=each.owner, asked=told)


def _explain(each: OutsideObject, explained: Explained | None) -> PutInvalid:
    return PutInvalid(
        name=each.name,
        owner=each.owner,
        request=each.request,
        spec_generation=each.generation,
        problem=each.problem,
        generation=explained.generation if explained is not None else 0,
    )


def _is_kept(explained: Explained, world: World, seen: Outside) -> bool:
    """Whether somebody may still want to read it although its object is gone."""
    if explained.request or not explained.owner:
        return _is_live(explained.name, world) or not (explained.owner or seen.copies_listed)
    return False


def _dropped(stale: Explained) -> DropInvalid:
    return DropInvalid(name=stale.name, owner=stale.owner, generation=stale.generation)


def _remembered(stale: Explained) -> PutInvalid:
    """As long as that job lives: its history has a line about this user's request, and he may add no more."""
    return PutInvalid(
        name=stale.name,
        owner=stale.owner,
        request=True,
        spec_generation=stale.about,
        problem=stale.problem,
        generation=stale.generation,
    )


def _is_about_anothers_job(explained: Explained, world: World) -> bool:
    view = world.jobs.get(explained.name)
    return view is not None and view.record is not None and view.record.owner != explained.owner


def _is_live(name: str, world: World) -> bool:
    view = world.jobs.get(name)
    return view is not None and (view.record is not None or bool(view.frozen))
