"""A job on two hosts stores files; `bastion outputs` is killed in the middle, goes on, and brings them all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.local_root import LocalRoot, RootJob
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]

STORES = (
    "mkdir -p out/bin out/empty && head -c 70000000 /dev/urandom > out/big && "
    "echo $BASTION_HOST_INDEX > out/bin/run && chmod +x out/bin/run && : > out/none && ln -s bin/run out/latest"
)


def outputs(root: LocalRoot, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "bastion.cli.main", "outputs", "store", f"--root={root.url}", *arguments]


def test_what_two_hosts_stored_is_fetched_also_after_a_kill(
    new_root: Callable[[str], LocalRoot], tmp_path: Path
) -> None:
    root = new_root("outputs")
    root.start_daemon()
    job = RootJob(root, "store", STORES, instance_type="tpu-v4-16", output_dir="out")
    until(job.result, 100)
    to = tmp_path / "to"
    with subprocess.Popen(outputs(root, f"--to={to}"), stderr=subprocess.PIPE) as fetching:
        until(lambda: [*(to / ".bastion-outputs/partial").glob("*")], 30)
        fetching.send_signal(signal.SIGKILL)
    whole = [path for path in to.rglob("big") if ".bastion-outputs" not in path.parts]
    assert all(path.stat().st_size == 70_000_000 for path in whole)
    again = subprocess.run(outputs(root, f"--to={to}"), check=False, capture_output=True, text=True)
    assert again.returncode == 0, again.stderr
    for host in (0, 1):
        folder = to / f"worker-{host}"
        assert (folder / "bin/run").read_text() == f"{host}\n"
        assert os.access(folder / "bin/run", os.X_OK)
        assert (folder / "latest").readlink() == Path("bin/run")
        assert (folder / "empty").is_dir()
        assert (folder / "none").read_bytes() == b""
        assert (folder / "big").stat().st_size == 70_000_000
    third = subprocess.run(outputs(root, f"--to={to}"), check=False, capture_output=True, text=True)
    assert "fetched 0 files, 0 B" in third.stderr
