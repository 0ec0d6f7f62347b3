"""`--max_run` with real processes: a job ends within seconds of its time, whoever is left to end it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from bastion import processes
from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import HostPhase, Order, Report
from bastion.core.instants import from_rfc3339
from tests.support.local_root import LocalRoot, RootJob
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

MOST = {"tpu-v4-8": 8, "": 3}  # a slice takes a while to come up
LATE_SECONDS = 5.0


class Ticking:
    """A job whose command writes the time until it is ended, and says so."""

    def __init__(self, root: LocalRoot, witness: Path, instance_type: str = "") -> None:
        self.root, self.witness, self.instance_type = root, witness, instance_type
        self.name = instance_type or "on-bastion"
        command = f'trap "echo bye; exit 5" TERM; while :; do date +%s.%N >> {witness}; sleep 0.1; done'
        self.job = RootJob(root, self.name, command, instance_type=instance_type, max_run_seconds=MOST[instance_type])

    def times(self) -> list[float]:
        return [float(line) for line in self.witness.read_text().splitlines()] if self.witness.exists() else []

    def ended(self) -> bool:
        times = self.times()
        return time.time() - times[-1] > 1.0 if times else self.job.result() is not None

    def run(self) -> str:
        state = json.loads(self.root.store.get(keys.state(self.name)).data)
        return f"{state['metadata']['record']['uid']}-1"

    def began_at(self) -> float:
        """When its time began: with its slice, or with its command."""
        if not self.instance_type:
            return self.times()[0]
        state = json.loads(self.root.store.get(keys.state(self.name)).data)
        return from_rfc3339(state["metadata"]["record"]["attempt"]["started_at"])

    def told(self) -> bool:
        """Whether its hosts know what the daemon knows of its time."""
        left = protocol.read(Order, self.root.store.get(keys.order(self.run())).data).time_left
        return left is not None and left.from_order

    def report(self) -> Report:
        return protocol.read(Report, self.root.store.get(keys.report(self.run(), 0)).data)

    def check_result(self) -> None:
        until(self.job.result)
        result = self.job.result()
        assert result is not None
        assert (result["outcome"], result["exit_code"]) == ("failed", 124)
        assert result["message"].endswith(f"for {MOST[self.instance_type]}s, the limit set by --max_run")
        assert [attempt["cause"] for attempt in result["attempts"]] == ["overtime"]
        if self.times():
            assert "bye" in self.job.output(f"{result['uid']}-1")


@pytest.mark.parametrize("alive", [True, False], ids=["the daemon alive", "the daemon gone"])
def test_a_job_ends_at_its_time_with(new_root: Callable[[str], LocalRoot], tmp_path: Path, alive: bool) -> None:
    root = new_root("root")
    daemon = root.start_daemon()
    jobs = [Ticking(root, tmp_path / "slice", "tpu-v4-8"), Ticking(root, tmp_path / "bastion")]
    # On a busy machine the time of the slice may be over before its command begins.
    until(lambda: all(job.times() or job.job.result() for job in jobs))
    if not alive:
        until(lambda: all(job.job.result() or job.told() for job in jobs))
        daemon.kill()
        daemon.wait()
    running = [job for job in jobs if not job.job.result()]
    began = {job.name: job.began_at() for job in running}
    until(lambda: all(job.ended() for job in running))
    for job in running:
        assert -1.0 <= job.times()[-1] - began[job.name] - MOST[job.instance_type] <= LATE_SECONDS
    if not alive:
        until(lambda: all(job.report().phase is HostPhase.STOPPED for job in running))
        assert {job.report().error for job in running} == {"Overtime"}
        root.start_daemon()
    for job in jobs:
        job.check_result()


def test_an_agent_that_was_frozen_ends_its_command_when_it_goes_on(
    new_root: Callable[[str], LocalRoot], tmp_path: Path
) -> None:
    root = new_root("root")
    daemon = root.start_daemon()
    job = Ticking(root, tmp_path / "witness")
    until(job.times)
    daemon.kill()
    daemon.wait()
    agents = [each for each in processes.marked("BASTION_E2E", str(os.getpid())) if is_agent(each.pid, job.run())]
    assert agents
    for agent in agents:
        agent.signal(signal.SIGSTOP)
    until(lambda: time.time() - job.times()[0] > MOST[""] + 2.5)
    assert not job.ended()  # nobody is left who could
    for agent in agents:
        agent.signal(signal.SIGCONT)
    thawed_at = time.time()
    until(job.ended)
    assert job.times()[-1] - thawed_at < LATE_SECONDS
    root.start_daemon()
    job.check_result()


def is_agent(pid: int, run: str) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return b"bastion.wiring.agent" in command
