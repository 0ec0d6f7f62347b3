"""Time the steps of a program, and write what Bastion collects.

Each step is a line in `$BASTION_RESULTS_FILE`. MLPerf's `:::MLLOG` lines frame all of them, as the package
mlperf_logging prints them; Bastion makes `run_seconds` of the two. Only host 0 writes: a step ends on all hosts at
once.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

# Makes everything that is needed, and returns one step, which waits until its result is there.
Program = Callable[[], Callable[[], object]]

# EX_UNAVAILABLE of sysexits.h.
NOT_INSTALLED = 69


def main(programs: Mapping[str, Program], *, steps: int) -> None:
    """Run the program of the framework that the command line names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--framework", required=True, choices=sorted(programs))
    parser.add_argument("--steps", type=int, default=steps)
    options = parser.parse_args()
    if importlib.util.find_spec(options.framework) is None:
        print(
            f"{options.framework} is not installed in {sys.executable}: install it, or exclude it in bench.toml",
            file=sys.stderr,
        )
        sys.exit(NOT_INSTALLED)
    step = programs[options.framework]()
    event("run_start", "INTERVAL_START")
    for number in range(1, options.steps + 1):
        begun = time.perf_counter()
        step()
        line("step_seconds", time.perf_counter() - begun, step=number, unit="s")
    event("run_stop", "INTERVAL_END", status="success")


def is_first_host() -> bool:
    return os.environ.get("BASTION_HOST_INDEX", "0") == "0"


def line(metric: str, value: float, *, step: int, unit: str) -> None:
    """Write a value; without Bastion, print it."""
    text = json.dumps({"metric": metric, "value": value, "step": step, "unit": unit})
    path = os.environ.get("BASTION_RESULTS_FILE")
    if path is None:
        print(text)
    elif is_first_host():
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(text + "\n")


def event(key: str, kind: str, **metadata: object) -> None:
    if is_first_host():
        told = {"namespace": "", "time_ms": int(time.time() * 1000), "event_type": kind, "key": key, "value": None}
        print(":::MLLOG " + json.dumps({**told, "metadata": metadata}), flush=True)
