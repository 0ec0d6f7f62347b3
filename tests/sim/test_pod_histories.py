"""Invariants under the faults of a Kubernetes cluster, beside all those of `test_faults`: gangs that are half placed,
listings from caches that lag, pods whose JobSet somebody deleted, losses that the platform explains, and gangs that end
themselves after their last reports.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from bastion.core.model.gangs import GangFailure, GangState, GangStatus
from tests.sim.test_faults import STEPS, History

SEEDS = int(os.environ.get("BASTION_SIM_SEEDS", "12"))
OUT_OF_MEMORY = "ran out of memory and was killed (OOMKilled)"
TAKEN_BACK = GangFailure(cause="evicted", message="another queue needs the machines")
CLASSES = {"half placed", "listing lags", "orphaned", "out of memory", "evicted", "ended itself"}


class PodHistory(History):
    """A history whose slices are pods.

    Attributes:
        hits: How often each class of fault was met.
    """

    def __init__(self, seed: int, *, split: bool) -> None:
        self.hits: Counter[str] = Counter()
        super().__init__(seed, split=split)
        self.lag = self.random.choice([0.0, 2.0, 6.0])
        self.cluster.slices.lag_seconds = self.lag
        self.trouble = True

    def _gangs(self, *states: GangState) -> list[GangStatus]:
        """What there is, not what a cache shows."""
        slices = self.cluster.slices
        slices.lag_seconds = 0.0
        found = [gang for gang in slices.list() if gang.state in states and gang.token]
        slices.lag_seconds = self.lag
        return found

    def _trouble(self) -> None:
        slices = self.cluster.slices
        slices.lag_seconds = 0.0
        super()._trouble()
        slices.lag_seconds = self.lag
        slices.half_placed = bool(slices.waits) and self.random.random() < 0.7
        self.hits["half placed"] += any(gang.partial for gang in self._gangs(GangState.WAITING))
        self.hits["listing lags"] += self.lag > 0
        chance = self.random.random()
        if chance < 0.02:
            self._strike("orphaned", GangState.READY, GangState.CREATING, GangState.WAITING, GangState.LOST)
        elif chance < 0.05:
            self._strike("out of memory", GangState.READY)
        elif chance < 0.07:
            self._strike("evicted", GangState.READY, GangState.CREATING)

    def _strike(self, kind: str, *states: GangState) -> None:
        gangs = self._gangs(*states)
        if not gangs:
            return
        name = self.random.choice(gangs).ref.name
        self.hits[kind] += 1
        if kind == "orphaned":
            self.cluster.slices.orphan(name)
        else:
            killed = GangFailure(cause="failed", message=OUT_OF_MEMORY, host=0, exit_code=137)
            failure = killed if kind == "out of memory" else TAKEN_BACK
            self.cluster.slices.put_into(name, GangState.LOST, failure=failure)

    def _step(self) -> None:
        super()._step()
        if not self.trouble:
            return
        for gang in self._gangs(GangState.READY):
            if self.cluster.hosts.finished(gang.run) and self.random.random() < 0.5:
                self.hits["ended itself"] += 1
                self.cluster.slices.put_into(gang.ref.name, GangState.LOST)

    def finish(self) -> None:
        self.trouble = False
        self.lag = self.cluster.slices.lag_seconds = 0.0
        self.cluster.slices.half_placed = False
        super().finish()


def run(seed: int, *, split: bool) -> Counter[str]:
    history = PodHistory(seed, split=split)
    for _ in range(STEPS):
        history.step()
    history.finish()
    return history.hits


@pytest.mark.parametrize("batch", range(max(1, SEEDS // 12)))
def test_invariants_hold_and_each_class_of_fault_is_met(batch: int) -> None:
    hits: Counter[str] = Counter()
    for seed in range(6 * batch, 6 * batch + 6):
        hits += run(seed, split=False)
    assert hits.keys() >= CLASSES, hits


@pytest.mark.parametrize("seed", range(max(1, SEEDS // 12)))
def test_two_daemons_that_both_act_break_nothing_but_the_room_they_share(seed: int) -> None:
    run(seed, split=True)
