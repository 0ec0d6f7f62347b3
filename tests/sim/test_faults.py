"""Invariants under random faults: lost requests and replies, lost nodes, late creates, stockouts, dead daemons.

Each seed is one history. What must hold in every one of them is written as checks that run after every step.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter

import pytest

from bastion.core import keys
from bastion.core.slices import SliceState
from bastion.testing.cluster import Cluster
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.scripted_hosts import runs_for

POOL = 64
# `make soak` runs thousands.
SEEDS = int(os.environ.get("BASTION_SIM_SEEDS", "60"))
STEPS = 160


class History:
    """One seeded history: a cluster, its users, and the trouble they meet."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.cluster = Cluster()
        self.faulty = FaultyStore(self.cluster.store, seed=seed, before=0.01, after=0.01)
        self.cluster.daemon = self.cluster.new_daemon(self.faulty)
        self.cluster.slices.ready_seconds = self.random.choice([0.0, 2.0, 5.0])
        self.cluster.slices.delete_seconds = self.random.choice([0.0, 3.0])
        self.cluster.slices.hide_new_seconds = self.random.choice([0.0, 3.0])
        self.submitted: dict[str, str] = {}
        self.cancelled: set[str] = set()
        self.attempts: dict[str, int] = {}

    def step(self) -> None:
        self._user()
        self._trouble()
        self.cluster.step()
        self.check()

    def _user(self) -> None:
        chance = self.random.random()
        if chance < 0.12 and len(self.submitted) < 8:
            name = f"job-{len(self.submitted)}"
            user, project = self.random.choice([("alice", "a"), ("bob", "b")])
            size = self.random.choice(["", "tpu-v4-8", "tpu-v4-16", "tpu-v4-32"])
            seconds = self.random.choice([1.0, 8.0, 40.0])
            self.cluster.hosts.scripts[name] = runs_for(seconds, self.random.choice([0, 0, 3]))
            self.submitted[name] = self.cluster.submit(name, user=user, project=project, instance_type=size)
        elif chance < 0.15 and self.submitted:
            name = self.random.choice(sorted(self.submitted))
            if name not in self.cancelled and self.cluster.status(name) in ("PENDING", "ACTIVE"):
                self.cluster.cancel(name, uid=self.submitted[name])
                self.cancelled.add(name)

    def _trouble(self) -> None:
        slices = self.cluster.slices
        chance = self.random.random()
        if chance < 0.02:
            self.cluster.clock.advance(6)
            self.cluster.daemon = self.cluster.new_daemon(self.faulty)
        elif chance < 0.04:
            nodes = [status for status in slices.list() if status.state is SliceState.READY]
            if nodes:
                slices.lose(self.random.choice(nodes).node_id)
        elif chance < 0.06:
            slices.lose_replies += 1
        elif chance < 0.08:
            slices.late_creates += 1
        elif chance < 0.10:
            slices.stockouts += 1

    def in_use(self) -> int:
        """Units of nodes whose attempts are not over.

        A creation whose request was lost may still happen after its attempt was given up; its gate is closed then, and
        it is swept. Nobody can know of it before it exists, so it does not count.
        """
        records = [record for name in self.submitted if (record := self.cluster.record(name))]
        runs = {f"{record.uid}-{record.attempt.number}" for record in records if record.attempt}
        return self.cluster.in_use(runs)

    def check(self) -> None:
        cluster = self.cluster
        assert self.in_use() <= POOL, "more is in use than the pool has"
        for name, uid in self.submitted.items():
            live = cluster.hosts.live(name)
            assert len(live) <= 1, f"two incarnations of {name} run at once: {live}"
            for began in cluster.hosts.began:
                if began.job == name:
                    assert began.run.startswith(uid)
            record = cluster.record(name)
            known = cluster.store.head(keys.active(name)) or record or cluster.store.head(keys.complete(name))
            assert known, f"{name} is lost"
            number = record.next_attempt if record else 0
            assert not record or number >= self.attempts.get(name, 0), "attempts went back"
            self.attempts[name] = max(number, self.attempts.get(name, 0))
        once = Counter((b.run, b.host) for b in cluster.hosts.began)
        assert all(count == 1 for count in once.values()), f"a host ran a run twice: {once}"

    def finish(self) -> None:
        """The trouble ends; everything must end well."""
        self.faulty.enabled = False
        for _ in range(1500):
            if all(self.cluster.result(name) for name in self.submitted):
                break
            self.cluster.step()
            self.check()
        for name in self.submitted:
            result = self.cluster.result(name)
            assert result is not None, f"{name} never ended: {self.cluster.history(name)}"
            numbers = [int(re.search(r"#(\d+) ", line)[1]) for line in self.cluster.history(name)]  # type: ignore[index]
            assert numbers == list(range(1, len(numbers) + 1)), f"history of {name}: {numbers}"
            if name in self.cancelled and result["outcome"] != "cancelled":
                assert result["outcome"] in ("succeeded", "failed"), "a cancel was undone"
        for _ in range(40):
            self.cluster.step()
        assert self.cluster.slices.list() == [], "a slice leaked"
        left = [k for k in self.cluster.listed() if k.startswith(("jobs/states/", "jobs/claims/", "runs/", "beats/"))]
        assert left == []


@pytest.mark.parametrize("seed", range(SEEDS))
def test_invariants_hold_in_a_random_history(seed: int) -> None:
    history = History(seed)
    for _ in range(STEPS):
        history.step()
    history.finish()
