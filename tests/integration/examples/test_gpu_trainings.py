"""The trainings of `examples/gpu` as two processes: stopped or killed anywhere, they end like one that never was."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.extras import needs
from tests.support.moe_training import (
    DISTURBED,
    EXAMPLES,
    QUICK_XLA,
    SIZES,
    STEPS,
    check_same,
    make_data,
)

pytestmark = pytest.mark.timeout(600)
HOOK = Path(__file__).parents[3] / "bastion" / "agent" / "jax_hook"


class Runs:
    """Runs of one training script, by default with two processes, as hosts: each has a folder of its own."""

    def __init__(self, folder: Path, script: str) -> None:
        self.folder, self._script = folder, EXAMPLES / script
        self._data = make_data(folder / "data")

    def run(self, name: str, *faults: str, hosts: int = 2) -> tuple[list[int], list[str]]:
        """Start or go on with a training; returns exit codes and outputs. When a host is killed, the other is, too."""
        folder = self.folder / name
        (folder / "faults").mkdir(parents=True, exist_ok=True)
        for each in faults:
            (folder / "faults" / each).touch()
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        processes = [self._process(folder, port, host, hosts) for host in range(hosts)]
        outputs: list[str] = []
        try:
            for process in reversed(processes):
                outputs.insert(0, process.communicate(timeout=200)[0])
                if process.returncode < 0:
                    processes[0].kill()
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return [process.returncode for process in processes], outputs

    def files(self, name: str) -> dict[str, bytes]:
        """What host 0 left."""
        return {path.name: path.read_bytes() for path in (self.folder / name / "out-0").iterdir() if path.is_file()}

    def _process(self, folder: Path, port: int, host: int, hosts: int) -> subprocess.Popen[str]:
        environment = {
            **os.environ,
            "FAULTS": str(folder / "faults"),
            "BASTION_HOST_INDEX": str(host),
            "BASTION_OUTPUT_DIR": str(folder / f"out-{host}"),
            "BASTION_CHECKPOINT_FILE": str(folder / f"checkpoint-{host}"),
            "BASTION_STEP_FILE": str(folder / f"step-{host}"),
            "PYTHONPATH": str(HOOK),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(host),
            "WORLD_SIZE": str(hosts),
            "LOCAL_RANK": "0",
            "OMP_NUM_THREADS": "1",
            "XLA_FLAGS": QUICK_XLA,
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(2 // hosts),
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
            "JAX_NUM_PROCESSES": str(hosts),
            "JAX_PROCESS_ID": str(host),
        }
        command = [sys.executable, str(DISTURBED), str(self._script), f"--data={self._data}", *SIZES]
        return subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )


def check_stopped(runs: Runs) -> None:
    """A host that is told to stop in step 8 takes the other with it, and what they did is saved."""
    codes, outputs = runs.run("disturbed", "stop-7-1")
    assert codes == [1, 1], outputs
    assert all("stops after step 9" in output for output in outputs), outputs
    assert "saved step 9" in outputs[0]
    folder = runs.folder / "disturbed"
    assert (folder / "checkpoint-0").exists()
    assert (folder / "step-0").read_text() == "9"
    assert sorted(path.name for path in (folder / "out-0" / "checkpoints").iterdir()) == [
        "step-00000005",
        "step-00000009",
    ]
    assert not list((folder / "out-1" / "checkpoints").iterdir())


def check_ends(runs: Runs, *, begin: int) -> None:
    codes, outputs = runs.run("disturbed")
    assert codes == [0, 0], outputs
    assert all(f"begins at step {begin}\n" in output for output in outputs), outputs
    assert f"saved step {STEPS}" in outputs[0]
    check_same(runs.files("disturbed"), runs.files("undisturbed"))


def test_a_torch_training_that_is_stopped_and_killed_ends_like_one_that_never_was(tmp_path: Path) -> None:
    needs("torch")
    runs = Runs(tmp_path, "moe_torch.py")
    codes, outputs = runs.run("undisturbed")
    assert codes == [0, 0], outputs
    check_stopped(runs)
    codes, outputs = runs.run("disturbed", "kill-17-1")
    assert codes[1] == -signal.SIGKILL, outputs
    check_ends(runs, begin=15)


def test_a_jax_training_that_is_stopped_ends_like_one_process_that_never_was(tmp_path: Path) -> None:
    needs("jax")
    runs = Runs(tmp_path, "moe_jax.py")
    codes, outputs = runs.run("undisturbed", hosts=1)
    assert codes == [0], outputs
    check_stopped(runs)
    check_ends(runs, begin=9)
