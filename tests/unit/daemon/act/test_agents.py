"""The daemon's agent in the bucket: uploaded once, when something starts, and never in a tick's way."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bastion.core.bucket import keys
from bastion.core.bucket.agent_archive import Manifest, PackedAgent, Wheel
from bastion.core.errors import AgentNotPacked
from bastion.daemon.act.agents import Agents
from bastion.testing.counting_store import CountingStore
from bastion.testing.manual_clock import ManualClock
from bastion.testing.memory_store import MemoryStore

SHA = "a" * 64
PACKED = PackedAgent(
    sha256=SHA,
    archive=b"the file",
    manifest=Manifest(
        version="1", needs=(), wheels=(Wheel(name="bastion", version="1", file="b.whl", tags=("py3-none-any",)),)
    ),
)


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(now=self.clock.now)
        self.counting = CountingStore(self.store)
        self.packings = 0
        self.trouble = ""
        self.said: list[str] = []
        self.waiting: list[Callable[[], None]] = []

    def pack(self) -> PackedAgent:
        self.packings += 1
        if self.trouble:
            raise AgentNotPacked(self.trouble)
        return PACKED

    def agents(self, *, later: bool = False) -> Agents:
        run = self.waiting.append if later else lambda work: work()
        return Agents(self.counting, self.pack, self.clock, notify=self.said.append, in_background=run)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_it_is_packed_and_uploaded_when_it_is_first_asked_for_and_then_known(bench: Bench) -> None:
    agents = bench.agents()
    assert bench.packings == 0
    assert [agents.current() for _ in range(3)] == [SHA] * 3
    assert bench.packings == 1
    assert bench.store.get(keys.agent_file(SHA)).data == b"the file"
    assert Manifest.read(bench.store.get(keys.agent_manifest(SHA)).data) == PACKED.manifest
    assert bench.said == [f"nodes run agent {SHA[:12]}, packed for Python 3.10, 3.11, 3.12, 3.13, 3.14"]


def test_nothing_waits_for_it_and_it_is_asked_for_once(bench: Bench) -> None:
    agents = bench.agents(later=True)
    assert [agents.current(), agents.current()] == [None, None]
    (work,) = bench.waiting
    work()
    assert agents.current() == SHA


def test_another_daemon_finds_what_the_first_uploaded(bench: Bench) -> None:
    bench.agents().current()
    generation = bench.store.get(keys.agent_file(SHA)).meta.generation
    assert bench.agents().current() == SHA
    assert bench.store.get(keys.agent_file(SHA)).meta.generation == generation


def test_an_upload_that_was_cut_short_is_finished(bench: Bench) -> None:
    bench.store.put(keys.agent_manifest(SHA), PACKED.manifest.to_bytes(), generation=0)
    assert bench.agents().current() == SHA
    assert bench.store.head(keys.agent_file(SHA)) is not None


def test_what_lifecycle_rules_took_is_uploaded_again_and_meanwhile_attempts_start(bench: Bench) -> None:
    agents = bench.agents()
    agents.current()
    for key in (keys.agent_file(SHA), keys.agent_manifest(SHA)):
        bench.store.delete(key, generation=bench.store.get(key).meta.generation)
    bench.clock.advance(3599)
    assert agents.current() == SHA
    assert bench.store.head(keys.agent_file(SHA)) is None
    bench.clock.advance(1)
    assert agents.current() == SHA
    assert bench.store.head(keys.agent_file(SHA)) is not None


def test_trouble_is_told_until_it_is_over_and_not_tried_at_every_tick(bench: Bench) -> None:
    bench.trouble = "the package pydantic is not installed"
    agents = bench.agents()
    assert agents.current() is None
    assert agents.problem.endswith("could not be uploaded: the package pydantic is not installed")
    bench.clock.advance(9)
    assert agents.current() is None
    assert bench.packings == 1
    bench.trouble = ""
    bench.clock.advance(1)
    assert agents.current() == SHA
    assert agents.problem == ""
