"""Each cell of the table of slice states: a job in that phase meets its gang in that state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from bastion.core.bucket import keys
from bastion.core.errors import ProvisionerUnavailable
from bastion.core.model.gangs import GangFailure, GangRequest, GangState, GangStatus
from bastion.core.model.job_record import JobRecord
from bastion.core.reconcile import gang_table
from bastion.core.reconcile.gang_table import Action, Phase, Seen
from bastion.testing.cluster import Cluster

CELLS = [(seen, phase) for seen in Seen for phase in Phase]


class Scene:
    """A job in a phase, with the gang's request.

    Attributes:
        asked: How many gangs had been created when the phase was reached.
        generation: Of the job's state then.
    """

    def __init__(self, phase: Phase) -> None:
        self.cluster = Cluster()
        slices = self.cluster.slices
        if phase in (Phase.STARTING, Phase.WAITING):
            slices.ready_seconds = 1e9
        if phase is Phase.WAITING:
            slices.waits[""] = "WAITING_FOR_RESOURCES"
        self.cluster.submit("job", instance_type="tpu-v4-16")
        self.cluster.settle(4)
        if phase in (Phase.RUNNING, Phase.STOPPING, Phase.OVER):
            assert self.cluster.hosts.live("job")
        if phase is Phase.STOPPING:
            self.cluster.hosts.stuck |= {("job", 0), ("job", 1)}
            self.cluster.cancel("job")
            self.cluster.settle(2)
            assert self.record.attempt is not None
            assert self.record.attempt.ending is not None
        if phase is Phase.OVER:
            slices.lose(self.request.ref.name)
            self.cluster.run_until(lambda: self.record.attempt is None)
            slices.ready_seconds = 1e9
            slices.create(self.request)
        slices.waits.clear()
        self.asked = len(slices.created)
        self.deleted = len(slices.deleted)
        self.generation = self.state_generation()

    @property
    def request(self) -> GangRequest:
        return self.cluster.slices.created[0]

    @property
    def record(self) -> JobRecord:
        found = self.cluster.record("job")
        assert found is not None
        return found

    def state_generation(self) -> int:
        meta = self.cluster.store.head(keys.state("job"))
        return meta.generation if meta else 0

    def show(self, seen: Seen) -> None:
        """From now on a look at the gang gives that."""
        slices, name = self.cluster.slices, self.request.ref.name
        if seen is Seen.ABSENT:
            slices.vanish(name)
        elif seen is Seen.SILENT:

            def silent(zone: str = "") -> Sequence[GangStatus]:
                raise ProvisionerUnavailable("no answer")

            slices.list = silent  # type: ignore[method-assign]
        else:
            no_capacity = GangFailure(cause="capacity", message="no more capacity")
            failure = no_capacity if seen is Seen.FAILED else None
            slices.put_into(name, GangState(seen.value), waiting="ACCEPTED", failure=failure)

    # -- what can be seen of what was done ----------------------------------------------------------------------

    def untouched(self) -> bool:
        return not self.new_deletions() and len(self.cluster.slices.created) == self.asked

    def new_deletions(self) -> list[str]:
        return self.cluster.slices.deleted[self.deleted :]

    def last_cause(self) -> str:
        """Why the first attempt ended or ends; empty as long as it goes on."""
        record = self.record
        if record.attempts:
            return record.attempts[0].cause.value
        ending = record.attempt.ending if record.attempt else None
        return ending.cause.value if ending else ""


def is_asked_for(scene: Scene) -> None:
    scene.cluster.settle(4)
    assert [request.ref for request in scene.cluster.slices.created] == [scene.request.ref] * (scene.asked + 1)


def has_its_wait_recorded(scene: Scene) -> None:
    scene.cluster.settle(4)
    attempt = scene.record.attempt
    assert attempt is not None
    assert attempt.waiting is not None
    assert attempt.waiting.state == "ACCEPTED"
    assert scene.untouched()


def has_its_capacity_noted(scene: Scene) -> None:
    before = scene.cluster.clock.now()
    scene.cluster.step()
    attempt = scene.record.attempt
    assert attempt is not None
    assert (attempt.waiting, attempt.up_since) == (None, before)
    assert scene.untouched()


def has_its_hosts_awaited(scene: Scene) -> None:
    scene.cluster.settle(20)
    assert scene.last_cause() == ""
    assert scene.untouched()
    for _ in range(20):
        if scene.cluster.hosts.live("job"):
            return
        scene.cluster.step(100)
    assert scene.last_cause() == "infrastructure"


def goes_on(scene: Scene) -> None:
    scene.cluster.hosts.deaf |= {("job", 0), ("job", 1)}
    scene.cluster.settle(20)
    assert scene.state_generation() == scene.generation
    assert scene.untouched()
    for _ in range(20):
        scene.cluster.step(10)
    assert "sent no heartbeat for" in scene.record.attempts[0].message


def is_left_alone(scene: Scene) -> None:
    scene.cluster.settle(120)
    assert scene.state_generation() == scene.generation
    assert scene.untouched()


def is_lost(scene: Scene) -> None:
    scene.cluster.step()
    assert scene.last_cause() == "infrastructure"
    ends_and_is_cleared(scene)


def ends_by_its_cause(scene: Scene) -> None:
    scene.cluster.step()
    assert scene.last_cause() == "capacity"
    ends_and_is_cleared(scene)


def ends_and_is_cleared(scene: Scene) -> None:
    """What is left of the gang goes, and only then another attempt follows."""
    scene.cluster.settle(4)
    if scene.request.ref.name in {gang.ref.name for gang in scene.cluster.slices.existing_requests()}:
        assert not scene.new_deletions()  # it is on its way already, and nobody knows when it ends
        scene.cluster.slices.vanish(scene.request.ref.name)
    scene.cluster.run_until(lambda: len(scene.cluster.slices.created) == 2, steps=40)


def is_stopped_first(scene: Scene) -> None:
    scene.cluster.settle(30)
    assert scene.untouched()
    order = scene.cluster.json(keys.order(scene.request.run))
    assert order["action"] == "stop"
    scene.cluster.run_until(lambda: scene.cluster.result("job"), steps=60)
    assert scene.new_deletions() == [scene.request.ref.name]


def is_deleted_without_waiting(scene: Scene) -> None:
    scene.cluster.settle(3)
    assert scene.new_deletions() == [scene.request.ref.name]


def has_its_end_awaited(scene: Scene) -> None:
    scene.cluster.settle(120)
    assert scene.untouched()
    attempt = scene.record.attempt
    assert attempt is not None
    assert attempt.charged == {"v4": 16}
    scene.cluster.slices.vanish(scene.request.ref.name)
    scene.cluster.run_until(lambda: scene.cluster.result("job"), steps=5)


def is_over(scene: Scene) -> None:
    scene.cluster.run_until(lambda: scene.cluster.result("job"), steps=5)
    assert scene.untouched()


def is_swept(scene: Scene) -> None:
    scene.cluster.settle(4)
    assert scene.new_deletions() == [scene.request.ref.name]
    assert len(scene.cluster.slices.created) == scene.asked
    scene.cluster.run_until(lambda: len(scene.cluster.slices.created) == scene.asked + 1, steps=30)


def keeps_new_attempts_away(scene: Scene) -> None:
    scene.cluster.settle(60)
    assert scene.untouched()
    assert scene.record.attempt is None


def does_not_matter(scene: Scene) -> None:
    scene.cluster.run_until(lambda: len(scene.cluster.slices.created) == scene.asked + 1, steps=30)
    assert not scene.new_deletions()


CHECKS: dict[Action, Callable[[Scene], None]] = {
    Action.ASK: is_asked_for,
    Action.RECORD_WAIT: has_its_wait_recorded,
    Action.NOTE_CAPACITY: has_its_capacity_noted,
    Action.AWAIT_HOSTS: has_its_hosts_awaited,
    Action.GO_ON: goes_on,
    Action.NOT_NOW: is_left_alone,
    Action.LOST: is_lost,
    Action.BY_CAUSE: ends_by_its_cause,
    Action.STOP_FIRST: is_stopped_first,
    Action.DELETE: is_deleted_without_waiting,
    Action.AWAIT_END: has_its_end_awaited,
    Action.END: is_over,
    Action.SWEEP: is_swept,
    Action.KEEP_AWAY: keeps_new_attempts_away,
    Action.NOTHING: does_not_matter,
}


@pytest.mark.parametrize(("seen", "phase"), CELLS, ids=[f"{seen.value}-{phase.value}" for seen, phase in CELLS])
def test_what_the_table_says_is_what_is_done(seen: Seen, phase: Phase) -> None:
    scene = Scene(phase)
    scene.show(seen)
    CHECKS[gang_table.TABLE[seen][phase]](scene)


def test_the_table_has_every_cell_and_its_legend_every_word() -> None:
    assert {(seen, phase) for seen, cells in gang_table.TABLE.items() for phase in cells} == set(CELLS)
    assert set(gang_table.ACTIONS) == {action for cells in gang_table.TABLE.values() for action in cells.values()}
    assert set(gang_table.PHASES) == set(Phase)
    assert {seen.value for seen in Seen} - {"absent", "silent"} == {state.value for state in GangState}
