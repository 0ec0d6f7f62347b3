"""Compare the time from launch to first output with JAX alone: `python bench/first_output.py [--runs=5]`.

The baseline is the program itself on four processes that form the same slice, without scheduler, bucket or agent. The
other side is `bastion launch --wait` on a running local bastion, from the command's start to the first line of output.
Both alternate in one run; the ratio counts.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bastion.agent.environment import SLICE_HOOK

PROGRAM = "import jax; print(jax.process_index(), jax.devices())"
HOSTS, DEVICES = 4, 4
BASTION = str(Path(sys.executable).with_name("bastion"))


def jax_alone() -> float:
    """Return the seconds until the last of four processes has printed the slice's devices."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    began = time.monotonic()
    processes = []
    for host in range(HOSTS):
        environment = {
            **os.environ,
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(DEVICES),
            "PJRT_NPROC": str(8 * DEVICES),
            "PYTHONPATH": str(SLICE_HOOK),
            "BASTION_COORDINATOR_ADDRESS": address,
            "BASTION_NUM_PROCESSES": str(HOSTS),
            "BASTION_PROCESS_ID": str(host),
            "JAX_COORDINATOR_BIND_ADDRESS": address,
        }
        command = [sys.executable, "-c", PROGRAM]
        processes.append(
            subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        )
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit(f"JAX alone failed: {codes}")
    return time.monotonic() - began


def launched(home: str) -> tuple[float, float]:
    """Return the seconds from `bastion launch` to its first line of output, and to its end."""
    launch = [BASTION, "launch", "--instance_type=tpu-v4-32", "--bundle=none", "--wait"]
    command = [*launch, "--", "python3", "-c", PROGRAM]
    began = time.monotonic()
    process = subprocess.Popen(
        command, env={**os.environ, "BASTION_HOME": home}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None  # it was asked for
    first = process.stdout.readline()
    to_first = time.monotonic() - began
    process.communicate()
    if process.returncode or not first:
        raise SystemExit(f"the launch failed with {process.returncode}")
    return to_first, time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as home:
        try:
            launched(home)  # the first one starts the daemon and the emulator
            pairs = [(jax_alone(), *launched(home)) for _ in range(runs)]
        finally:
            subprocess.run([BASTION, "local", "down"], env={**os.environ, "BASTION_HOME": home}, check=False)
    alone = statistics.median(pair[0] for pair in pairs)
    ratio = statistics.median(pair[1] / pair[0] for pair in pairs)
    whole = statistics.median(pair[2] / pair[0] for pair in pairs)
    print(f"jax.devices() on {HOSTS} processes alone: median {alone:.2f} s of {runs} runs")
    print(f"launch to first output: {ratio:.2f} x that; launch to exit code: {whole:.2f} x that")


if __name__ == "__main__":
    main()
