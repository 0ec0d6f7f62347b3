"""Inputs from a bucket on Cloud Storage's API, by agents that are processes of their own and are killed."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import AgentArguments, HostPhase, InputOrder, Order, OrderAction, Report
from bastion.core.errors import NotFound
from bastion.net.http1 import Request
from bastion.wiring.roots import open_root
from tests.support.gcs_storage import Storage
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(120)]

SMALL = 30
LARGE = os.urandom(1 << 20) * 40  # five ranges
SIZE = SMALL * 1000 + len(LARGE)


class Machine:
    """A machine with agents, a bastion's bucket in a folder, and an input in a bucket of the endpoint."""

    def __init__(self, folder: Path, storage: Storage) -> None:
        self.folder = folder
        self.storage = storage
        self.root = f"{folder}/bucket/team-bastion"
        self.store = open_root(self.root)
        self.bucket = storage.new_bucket()
        data = storage.store(self.bucket)
        for number in range(SMALL):
            data.put(f"tokens/{number:02}", bytes([number]) * 1000, generation=0)
        data.put("tokens/large", LARGE, generation=0)
        self.agents: list[subprocess.Popen[bytes]] = []
        storage.forget()

    def order(self, run: str, command: str) -> None:
        url = f"gs://{self.bucket}/tokens"
        order = Order(
            run=run, action=OrderAction.RUN, command=command, setup="", inputs=[InputOrder(url=url, dir="data")]
        )
        self.store.put(keys.order(run), order.to_bytes(), generation=0)

    def start(self, run: str, *, cache: bool = False) -> subprocess.Popen[bytes]:
        arguments = AgentArguments(
            root=self.root,
            bastion="team-bastion",
            job="job",
            run=run,
            run_key=secrets.token_hex(32),
            poll_seconds=0.1,
            beat_seconds=1.0,
            interpreter=sys.executable,
            input_cache=str(self.folder / "cache") if cache else "",
            input_cache_bytes=1 << 30,
        )
        file = self.folder / f"{run}.json"
        file.write_bytes(arguments.to_bytes())
        agent = subprocess.Popen(
            [sys.executable, "-m", "bastion.wiring.agent", f"--arguments-file={file}"],
            env={
                **os.environ,
                "STORAGE_EMULATOR_HOST": self.storage.url,
                "BASTION_STATE_DIR": str(self.folder / "state"),
            },
        )
        self.agents.append(agent)
        return agent

    def report(self, run: str) -> Report | None:
        try:
            return protocol.read(Report, self.store.get(keys.report(run, 0)).data)
        except NotFound:
            return None

    def final(self, run: str) -> Report:
        until(lambda: (report := self.report(run)) is not None and report.phase.final, 60)
        report = self.report(run)
        assert report is not None
        return report

    def kill_at_read(self, number: int, run: str, *, cache: bool = False) -> None:
        """Start an agent, and kill it when it asks for that part of the input, from 1."""
        reached, release = threading.Event(), threading.Event()
        reads = iter(range(1, 1000))

        def before(request: Request) -> None:
            if "alt=media" in request.target and next(reads) >= number:
                reached.set()
                release.wait(60)

        self.storage.before = before
        agent = self.start(run, cache=cache)
        assert reached.wait(60)
        agent.kill()
        agent.wait()
        self.storage.before = None
        release.set()
        self.storage.forget()

    def reads(self) -> int:
        return self.storage.asked.count("media")


@pytest.fixture(name="machine")
def _machine(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "buckets").mkdir()
    (tmp_path / "bucket").mkdir()
    storage = Storage(tmp_path / "buckets")
    storage.open()
    machine = Machine(tmp_path, storage)
    yield machine
    for agent in machine.agents:
        agent.kill()
        agent.wait()
    storage.close()


# Beside the hosts' states: a host that has ended keeps nothing of its job.
COUNT = "cat data/* | wc -c > ../../../../size-$BASTION_RUN"


def test_an_agent_killed_in_the_middle_is_followed_by_one_that_goes_on(machine: Machine) -> None:
    run = "abcdefghij-1"
    machine.order(run, COUNT)
    machine.kill_at_read(25, run)
    machine.start(run)
    report = machine.final(run)
    assert (report.phase, report.exit_code) == (HostPhase.EXITED, 0)
    assert int((machine.folder / f"size-{run}").read_text()) == SIZE
    # 24 parts had been asked for; those at work when the agent died are asked for again.
    assert machine.reads() <= SMALL + 5 - 24 + 2 * 16
    assert machine.reads() < SMALL + 5


def test_another_attempt_goes_on_with_what_a_killed_agent_left_in_the_cache(machine: Machine) -> None:
    first, second, third = (f"abcdefghij-{number}" for number in (1, 2, 3))
    for run in (first, second, third):
        machine.order(run, COUNT)
    machine.kill_at_read(25, first, cache=True)
    machine.start(second, cache=True)
    assert machine.final(second).exit_code == 0
    assert machine.reads() < SMALL + 5
    machine.storage.forget()
    machine.start(third, cache=True)
    assert machine.final(third).exit_code == 0
    assert machine.reads() == 0
    assert int((machine.folder / f"size-{third}").read_text()) == SIZE
