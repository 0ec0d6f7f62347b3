"""Each row of the table of gang states in a cluster, in each phase of its job: what is done follows `gang_table`."""

from __future__ import annotations

import pytest

from bastion.core.model.gangs import GangState, GangStatus
from bastion.core.reconcile import gang_table
from bastion.core.reconcile.gang_table import Action, Phase, Seen
from tests.sim.test_slice_table import CHECKS, Scene, ends_and_is_cleared
from tests.support.gang_documents import CASES

CELLS = [(case, phase) for case in CASES for phase in Phase]
# Phases in which the platform's own word decides how an attempt ends.
_OPEN = (Phase.STARTING, Phase.WAITING, Phase.RUNNING)


def show(scene: Scene, status: GangStatus) -> None:
    """From now on the job's gang is seen as the cluster's documents say."""
    scene.cluster.slices.put_into(
        scene.request.ref.name,
        status.state,
        waiting="ACCEPTED" if status.state is GangState.WAITING else "",
        failure=status.failure,
        partial=status.partial,
    )


def expected_cause(status: GangStatus, phase: Phase) -> str:
    """Why an attempt in that phase ends."""
    cause = status.failure.cause if status.failure is not None else "infrastructure"
    if status.state is GangState.FAILED and phase is Phase.RUNNING:
        return "infrastructure"  # a gang that ran was created
    return cause


@pytest.mark.parametrize(("case", "phase"), CELLS, ids=[f"{case}-{phase.value}" for case, phase in CELLS])
def test_what_the_documents_say_is_what_is_done(case: str, phase: Phase) -> None:
    status = CASES[case][1]().status
    action = gang_table.TABLE[Seen(status.state.value)][phase]
    scene = Scene(phase)
    show(scene, status)
    if action not in (Action.LOST, Action.BY_CAUSE):
        CHECKS[action](scene)
        return
    assert phase in _OPEN
    scene.cluster.step()
    cause = expected_cause(status, phase)
    assert scene.last_cause() == cause
    if cause in ("infrastructure", "capacity"):
        ends_and_is_cleared(scene)
        return
    if cause == "evicted":  # another attempt follows at once
        scene.cluster.run_until(lambda: len(scene.cluster.slices.created) > scene.asked, steps=10)
        record = scene.cluster.record("job")
        assert record is not None
        assert (record.infrastructure_failures, record.not_before) == (0, None)
        assert scene.request.ref.name in scene.cluster.slices.deleted
        return
    # The job's own doing, or its image's: nothing follows.
    scene.cluster.run_until(lambda: scene.cluster.result("job"), steps=20)
    end = scene.cluster.result("job")
    assert end is not None and status.failure is not None
    assert (end["outcome"], end["failed_worker"]) == (cause, status.failure.host)
    assert status.failure.message[:60] in end["message"]
    assert len(scene.cluster.slices.created) == scene.asked
    assert scene.request.ref.name in scene.cluster.slices.deleted
