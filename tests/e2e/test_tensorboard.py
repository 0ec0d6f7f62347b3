"""A job's curve from the command to TensorBoard's own reader: while it runs, and after a preemption."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.curves import curve
from tests.support.local_root import LocalRoot, RootJob
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]

EXAMPLE = Path(__file__).parents[2] / "examples" / "tensorboard" / "curve.py"
TWO_PROJECTS = b"""
[toml-schema]
version = "1"
[total_resources]
v4 = 8
[project_rules]
keep_idle_seconds = 0.0
[project_membership]
default = [".*"]
owner = [".*"]
[project_resources.default]
v4 = 0.0
[project_resources.owner]
v4 = 1.0
"""


def bastion(root: LocalRoot, *arguments: str) -> str:
    command = [sys.executable, "-m", "bastion.cli.main", *arguments, f"--root={root.url}"]
    environment = {**os.environ, "BASTION_HOME": str(root.home.path)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60).stdout


def test_a_job_that_is_preempted_and_resumed_is_one_curve(new_root: Callable[[str], LocalRoot], tmp_path: Path) -> None:
    root = new_root("board")
    quota = root.store.get("project-quotas/project-quotas.config").meta
    root.store.put("project-quotas/project-quotas.config", TWO_PROJECTS, generation=quota.generation)
    root.start_daemon()
    command = f"{sys.executable} {EXAMPLE} --steps=200 --pace=0.05"
    job = RootJob(root, "board", command, instance_type="tpu-v4-8", output_dir="out", setup="")
    logs = tmp_path / "logs"

    def mirrored() -> list[int]:
        bastion(root, "tensorboard", "board", f"--logdir={logs}", "--once")
        return [step for step, _ in curve(logs / "board")]

    until(lambda: len(mirrored()) >= 20, 90)
    running = mirrored()
    assert running == [*range(len(running))]
    assert job.result() is None, "it runs"
    owner = RootJob(root, "owner", "true", instance_type="tpu-v4-8", setup="", project_id="owner")
    until(lambda: owner.result() is not None and job.result() is not None, 120)
    assert mirrored() == [*range(200)]
    told: dict[str, Any] = json.loads(bastion(root, "why", "board", "--output=json"))["goodput"]
    attempts = json.loads(bastion(root, "why", "board", "--output=json"))["result"]["attempts"]
    assert [attempt["cause"] for attempt in attempts] == ["evicted", "succeeded"]
    assert told["lost_steps"] == max(0, attempts[0]["last_step"] - attempts[1]["first_step"])
    whole = sum(told[f"{name}_seconds"] for name in ("waiting", "restarting", "productive", "lost"))
    assert curve(logs / "board" / "bastion", "bastion/goodput")[-1][0] == pytest.approx(whole, abs=1)
