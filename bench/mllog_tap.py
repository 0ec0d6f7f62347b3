"""What the tap for MLLOG lines costs the log of a host: `python bench/mllog_tap.py [--rounds=6]`.

A thread writes lines as fast as the real pump and spool take them, without the tap and with it, in turns; nothing is
uploaded. Two kinds of lines: without a brace, as most are, and with one, which makes the tap search for its token.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path
from random import Random

from bastion.adapters.system_clock import SystemClock
from bastion.agent.identity import HostIdentity
from bastion.agent.logs.host_log import HostLog
from bastion.agent.results.mllog_tap import MllogTap
from bastion.core.bucket.protocol import AgentArguments
from bastion.testing.memory_store import MemoryStore

LINES = {"no brace": b"step 7: loss 1.2345, lr 0.001 :: 12345 tokens/s [rank0]\n", "a brace": b"{'step': 7, 'x': 1}\n"}
WRITE_BYTES = 64 * 1024
WRITES = 3000


def measure(line: bytes, *, tap: bool) -> tuple[float, float]:
    """Return million lines per second of time, and per second of CPU."""
    data = line * (WRITE_BYTES // len(line))
    arguments = AgentArguments(
        root="/b/x-bastion", bastion="x-bastion", job="job", run="aaaaaaaaaa-1", run_key="ab" * 32
    )
    ended = threading.Event()
    with tempfile.TemporaryDirectory() as folder:
        log = HostLog(
            MemoryStore(),
            HostIdentity(arguments=arguments, worker=0),
            Path(folder) / "spool",
            clock=SystemClock(),
            rng=Random(1),
            drop_noise=False,
            is_urgent=lambda: False,
            on_change=ended.set,
        )
        log.open()
        out, out_end = os.pipe()
        err, err_end = os.pipe()
        os.close(err_end)
        begun, used = time.perf_counter(), time.process_time()
        pump = log.pump({"stdout": out, "stderr": err}, tap=MllogTap(Path(folder) / "mllog").look if tap else None)
        for _ in range(WRITES):
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(out_end, rest) :]
        os.close(out_end)
        while not pump.done:
            ended.wait(1.0)
        lines = WRITES * len(data) / len(line) / 1e6
        return lines / (time.perf_counter() - begun), lines / (time.process_time() - used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6)
    rounds = parser.parse_args().rounds
    for kind, line in LINES.items():
        found = {tap: [] for tap in (False, True)}  # type: dict[bool, list[tuple[float, float]]]
        for _ in range(rounds):
            for tap in found:
                found[tap].append(measure(line, tap=tap))
        for tap, name in ((False, "without the tap"), (True, "with it")):
            wall, cpu = (max(each[number] for each in found[tap]) for number in (0, 1))
            print(f"{kind}, {name}: {wall:.2f} million lines/s, {cpu:.2f} per second of CPU", flush=True)


if __name__ == "__main__":
    main()
