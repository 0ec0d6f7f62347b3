"""Random jobs that await one another, while they fail, are cancelled, and the daemon is killed at random."""

from __future__ import annotations

import os
import random

import pytest

from bastion.core.bucket import keys
from bastion.core.instants import from_rfc3339
from bastion.testing.cluster import LONG_QUEUES, QUOTA, Cluster
from bastion.testing.scripted_hosts import runs_for
from tests.support.killed_daemon import Killed, kill_at, revive

SEEDS = int(os.environ.get("BASTION_SIM_SEEDS", "4"))
JOBS = 14
STEPS = 1500


class History:
    """Jobs with a random graph; each awaits some of those before it."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.cluster = Cluster(quota=QUOTA + LONG_QUEUES)
        self.uids: dict[str, str] = {}
        self.after: dict[str, list[tuple[str, str]]] = {}

    def submit(self, number: int) -> None:
        draw, name = self.draw, f"j{number}"
        others = draw.sample(sorted(self.uids), min(len(self.uids), draw.choice((0, 1, 1, 2))))
        self.after[name] = [(other, draw.choice(("succeeded", "ended"))) for other in others]
        self.cluster.hosts.scripts[name] = runs_for(draw.randint(1, 9), code=draw.choice((0, 0, 0, 4)))
        self.uids[name] = self.cluster.submit(
            name,
            instance_type=draw.choice(("", "tpu-v4-16", "tpu-v4-32")),
            after=[{"job": other, "uid": self.uids[other], "on": on} for other, on in self.after[name]] or None,
            cleanup_command=draw.choice((None, None, "clean")),
        )

    def happen(self) -> None:
        draw, cluster = self.draw, self.cluster
        name = draw.choice(sorted(self.uids))
        if draw.random() < 0.01 and cluster.record(name) is not None and not cluster.store.head(keys.user_state(name)):
            cluster.cancel(name, self.uids[name])
        if len(self.uids) == JOBS and draw.random() < 0.02:  # a lifecycle rule
            found = cluster.store.head(keys.complete(name))
            if found is not None and all(
                name not in dict(self.after[other]) or self.settled(other) for other in self.uids
            ):
                cluster.store.delete(found.key, generation=found.generation)

    def settled(self, name: str) -> bool:
        """Whether nobody needs to know any more how those ended that the job awaits."""
        record = self.cluster.record(name)
        return self.over(name) or (record is not None and len(record.after_met or ()) == len(self.after[name]))

    def over(self, name: str) -> bool:
        return any("COMPLETED" in line for line in self.cluster.history(name)) and self.cluster.record(name) is None

    def run(self) -> None:
        cluster, number = self.cluster, 0
        kill_at(cluster, self.draw.randint(5, 200), after=True)
        for _ in range(STEPS):
            if number < JOBS and self.draw.random() < 0.5:
                self.submit(number)
                number += 1
            if number == JOBS and all(map(self.over, self.uids)):
                return
            if self.uids:
                self.happen()
            try:
                cluster.step()
            except Killed:
                revive(cluster)
                kill_at(cluster, self.draw.randint(5, 200), after=self.draw.random() < 0.5)
        raise AssertionError(cluster.describe())

    def moment(self, name: str, text: str) -> float | None:
        """When the first line with this text was written."""
        line = next((line for line in self.cluster.history(name) if text in line), None)
        return None if line is None else from_rfc3339(line.partition(" ")[0])

    def outcome(self, name: str) -> str:
        (line,) = [line for line in self.cluster.history(name) if " COMPLETED completed: " in line]
        return line.partition(" COMPLETED completed: ")[2].partition(";")[0]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_job_starts_after_all_that_it_awaits_or_is_refused_for_one_of_them(seed: int) -> None:
    history = History(seed)
    history.run()
    for name, after in history.after.items():
        started = history.moment(name, "attempt 1 is starting")
        outcome = history.outcome(name)
        failed = [other for other, on in after if on == "succeeded" and history.outcome(other) != "succeeded"]
        if started is None:
            assert outcome == "cancelled" or (outcome == "refused" and failed), (name, outcome)
            continue
        assert not failed and outcome != "refused"
        for other, _ in after:
            over = history.moment(other, " CLEANING ")
            assert over is not None and over <= started
        waited = [line for line in history.cluster.history(name) if "waited for" in line]
        assert len(waited) == (1 if after else 0)
    assert history.cluster.slices.list() == []
