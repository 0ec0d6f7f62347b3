"""When a node that nobody needs powers itself off."""

import os
import secrets
import subprocess
import sys
from random import Random

from bastion import processes
from bastion.agent.power import IdleWatch, power_off
from bastion.core.bucket import keys
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.manual_clock import ManualClock
from bastion.testing.memory_store import MemoryStore

HOUR = 3600.0


class Node:
    """A watch of six hours on a clock that the test moves."""

    def __init__(self) -> None:
        self.memory = MemoryStore()
        self.store = FaultyStore(self.memory)
        self.clock = ManualClock()
        self.off: list[float] = []
        self.begun = self.clock.monotonic()
        self.watch = IdleWatch(
            self.store, limit_seconds=6 * HOUR, clock=self.clock, rng=Random(1), power_off=self.power_off
        )

    def power_off(self) -> None:
        self.off.append(self.clock.monotonic() - self.begun)

    def renew(self) -> None:
        meta = self.memory.head(keys.LEASE)
        self.memory.put(keys.LEASE, b"", generation=meta.generation if meta else 0)

    def live(self, seconds: float, *, renewed_every: float = 0.0) -> None:
        end = self.clock.monotonic() + seconds
        due = self.clock.monotonic()
        while self.clock.monotonic() < end:
            if renewed_every and self.clock.monotonic() >= due:
                self.renew()
                due += renewed_every
            self.clock.advance(min(self.watch.step() or 1.0, end - self.clock.monotonic(), renewed_every or HOUR))


def test_a_node_that_waits_and_sees_no_life_for_six_hours_powers_itself_off():
    node = Node()
    node.live(5.9 * HOUR)
    assert node.off == []
    node.live(0.5 * HOUR)
    assert len(node.off) == 1
    assert 6 * HOUR <= node.off[0] <= 6.3 * HOUR


def test_a_lease_that_lies_there_and_is_not_renewed_is_no_life():
    node = Node()
    node.renew()
    node.live(6.4 * HOUR)
    assert len(node.off) == 1


def test_a_node_whose_daemon_lives_waits_for_ever():
    node = Node()
    node.live(48 * HOUR, renewed_every=20.0)
    assert node.off == []


def test_the_six_hours_begin_with_the_last_life_that_was_seen():
    node = Node()
    node.live(5 * HOUR, renewed_every=20.0)
    node.live(5.9 * HOUR)
    assert node.off == []
    node.live(0.5 * HOUR)
    assert len(node.off) == 1


def test_a_bucket_that_does_not_answer_shows_no_life():
    node = Node()
    node.store.fail_next("head", key=keys.LEASE, times=1_000)
    node.live(6.4 * HOUR, renewed_every=20.0)
    assert len(node.off) == 1


def test_a_dead_daemon_ends_no_running_command_and_the_hours_begin_with_its_end():
    node = Node()
    node.live(HOUR)
    node.watch.busy()
    node.live(48 * HOUR)
    assert node.off == []
    node.watch.idle()
    node.live(5.9 * HOUR)
    assert node.off == []
    node.live(0.5 * HOUR)
    assert len(node.off) == 1


def test_a_node_that_is_still_there_tries_again_after_another_six_hours():
    node = Node()
    node.live(13 * HOUR)
    assert len(node.off) == 2


def test_an_emulated_vm_is_powered_off_by_the_end_of_its_first_process():
    marker = secrets.token_hex(8)
    code = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1, flush=True); input()'])"
    first = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"BASTION_VM": marker},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert first.stdout is not None
        first.stdout.readline()
        power_off({"BASTION_EMULATED_TPU": "1", "BASTION_VM": marker})
        assert first.wait(20) == -15
        assert len(processes.marked("BASTION_VM", marker)) == 1
    finally:
        processes.end_marked("BASTION_VM", marker, grace_seconds=0)
        first.communicate(timeout=20)
