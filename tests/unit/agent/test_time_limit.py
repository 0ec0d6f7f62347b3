"""The job's own time limit on a host: from when it counts, and that nothing makes it longer."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from bastion.agent.bucket_link import BucketLink
from bastion.agent.host_state import HostState
from bastion.agent.identity import HostIdentity
from bastion.agent.stop_reasons import StopReasons
from bastion.agent.time_limit import TimeLimit
from bastion.core import limits
from bastion.core.bucket import host_errors, keys
from bastion.core.bucket.protocol import AgentArguments, HostPhase, Order, OrderAction, TimeLeft
from bastion.testing.manual_clock import ManualClock
from bastion.testing.memory_store import MemoryStore

RUN = "abcdefghij-1"
SLACK = limits.OVERTIME_HOST_SLACK_SECONDS


class Agent:
    """The parts of one agent; another one of the same host has the same folder, store and clock."""

    def __init__(self, folder: Path, store: MemoryStore, clock: ManualClock, boot_id: str = "boot-1") -> None:
        arguments = AgentArguments(root="/b/t-bastion", bastion="t-bastion", job="j", run=RUN, run_key="ab" * 32)
        identity = HostIdentity(arguments=arguments, worker=0)
        self.clock = clock
        self.link = BucketLink(store, identity, clock=clock, rng=Random(1), on_change=lambda: None)
        state = HostState(folder, run=RUN, host=0)
        state.folder.mkdir(exist_ok=True)
        self.limit = TimeLimit(self.link, state, boot_id=boot_id, clock=clock)
        self.reasons = StopReasons(identity, self.link, None, clock=clock, time_limit=self.limit)

    def live(self, seconds: float) -> None:
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.clock.advance(min(max(self.link.step(), 0.001), end - self.clock.monotonic()))

    def left(self) -> float | None:
        left = self.limit.seconds_left
        return None if left is None else round(left - SLACK, 1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(clock: ManualClock) -> MemoryStore:
    return MemoryStore(now=clock.now)


def order(store: MemoryStore, seconds: float | None, *, from_order: bool = False, number: int = 1) -> None:
    left = None if seconds is None else TimeLeft(seconds=seconds, from_order=from_order, grace_seconds=7.0)
    meta = store.head(keys.order(RUN))
    data = Order(run=RUN, action=OrderAction.RUN, time_left=left, try_number=number).to_bytes()
    store.put(keys.order(RUN), data, generation=0 if meta is None else meta.generation)


def test_without_a_limit_nothing_counts(tmp_path: Path, clock: ManualClock, store: MemoryStore) -> None:
    agent = Agent(tmp_path, store, clock)
    assert agent.limit.seconds_left is None
    order(store, None)
    agent.live(10.0)
    agent.limit.passed_gate()
    assert (agent.limit.seconds_left, agent.reasons.of_try(1), agent.reasons.next_look(5.0)) == (None, None, 5.0)


def test_the_first_order_counts_from_the_gate(tmp_path: Path, clock: ManualClock, store: MemoryStore) -> None:
    order(store, 100.0)
    agent = Agent(tmp_path, store, clock)
    agent.live(500.0)  # the other hosts wait for machines
    assert agent.left() is None
    agent.limit.passed_gate()
    agent.live(60.0)
    agent.limit.passed_gate()  # of another try
    assert agent.left() == 40.0
    assert agent.reasons.next_look(5.0) == 5.0
    agent.live(40.0)
    assert (agent.reasons.of_try(1), agent.reasons.next_look(5.0)) == (None, pytest.approx(SLACK))
    clock.advance(SLACK)
    stop = agent.reasons.of_try(1)
    assert stop is not None
    assert (stop.phase, stop.error) == (HostPhase.STOPPED, host_errors.OVERTIME)
    assert stop.deadline == pytest.approx(clock.monotonic() + 7.0)
    assert (agent.reasons.after_end(1), agent.reasons.next_look(5.0)) == (None, 5.0)


def test_later_orders_count_from_when_they_were_written_and_make_nothing_longer(
    tmp_path: Path, clock: ManualClock, store: MemoryStore
) -> None:
    order(store, 100.0)
    agent = Agent(tmp_path, store, clock)
    agent.live(1.0)
    agent.limit.passed_gate()
    order(store, 80.0, from_order=True)
    agent.live(10.0)
    assert agent.left() == 70.0
    order(store, 900.0, from_order=True, number=2)  # of a daemon that learned of the attempt much later
    agent.live(10.0)
    assert agent.left() == 60.0


@pytest.mark.parametrize("from_order", [False, True])
def test_another_agent_of_the_host_goes_on_with_the_same_time(
    tmp_path: Path, clock: ManualClock, store: MemoryStore, from_order: bool
) -> None:
    agent = Agent(tmp_path, store, clock)
    order(store, 100.0, from_order=from_order)
    agent.live(1.0)
    agent.limit.passed_gate()
    agent.live(29.0)
    again = Agent(tmp_path, store, clock)
    again.live(10.0)
    again.limit.passed_gate()
    assert again.left() == pytest.approx(61.0, abs=1.0)
    rebooted = Agent(tmp_path, store, clock, boot_id="boot-2")
    rebooted.live(10.0)
    rebooted.limit.passed_gate()
    # The monotonic clock of another boot says nothing; what the bucket says still counts.
    assert rebooted.left() == pytest.approx(51.0 if from_order else 100.0, abs=1.0)


def test_an_order_to_stop_comes_before_the_time(tmp_path: Path, clock: ManualClock, store: MemoryStore) -> None:
    agent = Agent(tmp_path, store, clock)
    order(store, 5.0)
    agent.live(1.0)
    agent.limit.passed_gate()
    meta = store.head(keys.order(RUN))
    assert meta is not None
    stop = Order(run=RUN, action=OrderAction.STOP, reason="overtime: the daemon says so")
    store.put(keys.order(RUN), stop.to_bytes(), generation=meta.generation)
    agent.live(60.0)
    found = agent.reasons.of_try(1)
    assert found is not None
    assert (found.error, found.message) == ("", "overtime: the daemon says so")
