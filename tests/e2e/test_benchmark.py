"""Benchmarks with real processes: one from its file to the gate of CI, and some in which programs are killed or frozen.

`make long` has ten of the latter ($BASTION_BENCHMARK_DISASTERS). The moments depend on the seed, what they hit not.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bastion.benchmark import documents, measurements
from bastion.benchmark.layout import Matrix, Outcome
from bastion.core.bucket import keys
from bastion.processes import ProcessId, marked
from tests.support.local_root import USER, LocalRoot
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]
DISASTERS = int(os.environ.get("BASTION_BENCHMARK_DISASTERS", "1"))
ENDS_WITHIN_SECONDS = 300.0
STRIKES_SECONDS = 30.0 if DISASTERS > 1 else 10.0

# Each job tells its beginning and its end, and so do `up` and `down`.
FILE = """
name = "sleep"
project = "default"
repeats = {repeats}
parallel = 2

[matrix]
size = [1, 2]

[run]
command = '''
echo began {{size}} >> {witness}
echo '{{{{"metric": "seconds", "value": {value}'{{size}}$BASTION_BENCHMARK_REPEAT'}}}}' >> "$BASTION_RESULTS_FILE"
sleep {sleep}
echo ended {{size}} >> {witness}
'''
instance_type = "tpu-v4-8"
setup = ""
max_run = "60s"
deadline = "200s"

[environment]
up = ["echo up $BASTION_BENCHMARK_TIME >> {witness}"]
down = ["echo down $BASTION_BENCHMARK_TIME >> {witness}"]

[metrics.seconds]
unit = "s"
better = "lower"
gate = "5%"
"""


@dataclass
class Bench:
    """A user with a file, and what its jobs witnessed."""

    root: LocalRoot
    folder: Path
    clients: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def file(self) -> Path:
        return self.folder / "bench.toml"

    @property
    def witness(self) -> list[str]:
        path = self.folder / "witness"
        return path.read_text().splitlines() if path.exists() else []

    def write(self, *, value: str = "1.00", sleep: float = 0.1, repeats: int = 2) -> None:
        text = FILE.format(witness=self.folder / "witness", value=value, sleep=sleep, repeats=repeats)
        self.file.write_text(text)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "bastion.cli.main", "benchmark", *arguments, f"--root={self.root.url}"]
        environment = {**os.environ, "BASTION_HOME": str(self.root.home.path)}
        client = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=self.folder
        )
        self.clients.append(client)
        return client

    def bastion(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        client = self.start(*arguments)
        out, err = client.communicate(timeout=ENDS_WITHIN_SECONDS)
        assert client.returncode == code, (arguments, out, err, self.finisher_log())
        return out, err

    def run(self, *more: str, code: int = 0) -> str:
        out, _ = self.bastion("run", str(self.file), f"--user_id={USER}", *more, code=code)
        return out.strip()

    def runs(self) -> list[str]:
        return list(measurements.runs(self.root.store, "sleep"))

    def matrix(self, run: str) -> Matrix:
        return documents.read_matrix(self.root.store, "sleep", run)

    def ended(self) -> bool:
        store = self.root.store
        return not any(store.list(keys.JOBS_STATES)) and not any(store.list(keys.JOBS_ACTIVE))

    def finisher_log(self) -> str:
        texts = []
        for run in self.runs():
            finisher = self.matrix(run).finisher
            for key in (keys.log(finisher), keys.cleanup_log(finisher)):
                with contextlib.suppress(Exception):
                    texts.append(f"{key}:\n{self.root.store.get(key).data.decode()}")
        return "\n".join(texts)


@pytest.fixture
def bench(new_root: Callable[[str], LocalRoot], tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(new_root("bench"), tmp_path)
    yield bench
    for client in bench.clients:
        with contextlib.suppress(ProcessLookupError):
            client.send_signal(signal.SIGCONT)
        client.kill()
        client.wait()


def test_a_benchmark_from_its_file_to_the_gate(bench: Bench) -> None:
    bench.root.start_daemon()
    bench.write()
    out, _ = bench.bastion("check", str(bench.file), f"--user_id={USER}")
    assert "jobs        4 (2 repeats of each cell, 2 at a time)" in out
    # A client that is killed once the first job is there.
    client = bench.start("run", str(bench.file), f"--user_id={USER}")
    until(lambda: next(bench.root.store.list(keys.JOBS_ACTIVE), None))
    client.kill()
    client.wait()
    bench.run("--wait")
    (first,) = bench.runs()
    assert [line.partition(" ")[0] for line in (bench.witness[0], bench.witness[-1])] == ["up", "down"]
    assert sorted(bench.witness[1:-1]) == ["began 1"] * 2 + ["began 2"] * 2 + ["ended 1"] * 2 + ["ended 2"] * 2
    out, _ = bench.bastion("report", f"sleep/{first}")
    assert "seconds (s)" in out
    # Slower code: CI's gate holds it up.
    bench.write(value="1.20")
    bench.run("--wait")
    out, _ = bench.bastion("compare", f"sleep/{first}", "sleep", "--gate=5%", code=3)
    assert "slower" in out
    out, _ = bench.bastion("compare", "sleep", f"sleep/{first}", "--gate=5%")
    assert "faster" in out


class Disaster:
    """Kills and freezes the programs of a run, one after the other, until it ends."""

    def __init__(self, bench: Bench, seed: int) -> None:
        self.bench = bench
        self.random = random.Random(seed)
        self.told: list[str] = []
        self._frozen: list[tuple[float, ProcessId]] = []
        self._finisher_deaths = 0

    def strike(self) -> None:
        kind = self.random.choice(("client", "daemon", "finisher", "member", "member"))
        victims = self._victims(kind)
        if not victims or (kind == "finisher" and self._finisher_deaths >= 2):
            return
        victim = self.random.choice(victims)
        number = self.random.choice((signal.SIGKILL, signal.SIGSTOP))
        self._finisher_deaths += kind == "finisher"
        self.told.append(f"{time.monotonic():.1f} {number.name} {kind} {victim}")
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim.pid, number)
        if number is signal.SIGSTOP:
            self._frozen.append((time.monotonic() + self.random.uniform(0.5, STRIKES_SECONDS / 2), victim))

    def _victims(self, kind: str) -> list[ProcessId]:
        found = []
        for each in marked("BASTION_E2E", str(os.getpid())):
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{each.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
                found.append((line, each))
        words = {
            "client": "benchmark run ",
            "daemon": "daemon run ",
            "finisher": "--arguments-file",
            "member": "bastion.wiring.agent --metadata",
        }
        also = {"finisher": ("benchmark begin", "benchmark finish"), "member": ("sleep ",)}
        return [each for line, each in found if any(word in line for word in (words[kind], *also.get(kind, ())))]

    def thaw(self, *, all_of_them: bool = False) -> None:
        for at, victim in list(self._frozen):
            if all_of_them or time.monotonic() >= at:
                self._frozen.remove((at, victim))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim.pid, signal.SIGCONT)


@pytest.mark.parametrize("seed", range(DISASTERS))
def test_a_run_ends_by_itself_whatever_is_killed_or_frozen(bench: Bench, seed: int) -> None:
    bench.root.start_daemon()
    bench.write(sleep=2.0)
    disaster = Disaster(bench, seed)
    client = bench.start("run", "--wait", str(bench.file), f"--user_id={USER}")
    began = time.monotonic()
    while time.monotonic() - began < ENDS_WITHIN_SECONDS:
        if time.monotonic() - began < STRIKES_SECONDS and disaster.random.random() < 0.15:
            disaster.strike()
        disaster.thaw()
        if bench.root.daemons[-1].poll() is not None:
            bench.root.start_daemon()
        if client.poll() in (0, 5):
            break
        if client.poll() is not None:
            client = bench.start("run", "--wait", str(bench.file), f"--user_id={USER}")
        time.sleep(0.1)
    disaster.thaw(all_of_them=True)
    what = "\n".join(disaster.told)
    until(bench.ended)
    lines = bench.witness
    for run in bench.runs():
        found = measurements.read_run(bench.root.store, "sleep", run)
        jobs = [job for cell in found.cells for job in cell.jobs]
        assert len(jobs) == 4
        assert all(job.values or job.problem for job in jobs), what
        assert all(job.outcome is not Outcome.MISSING or job.problem for job in jobs), what
    assert lines[-1].startswith("down "), (what, lines, bench.finisher_log())
    assert lines[0].startswith(("up ", "down ")), (what, lines)
    assert not any(line.startswith("began") for line in lines[: lines.index("up 1")]) if "up 1" in lines else True
