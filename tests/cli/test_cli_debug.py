"""`bastion debug replay` and `debug diff`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bastion.core import recorded_tick
from bastion.core.tick import TickInput, TickOutput
from bastion.daemon.observe.policy_source import PolicyStatus
from bastion.testing.cluster import Cluster


@pytest.fixture
def tick(tmp_path: Path) -> Path:
    """A tick in which one job starts and another waits."""
    path = tmp_path / "tick-1.json.gz"

    def record(given: TickInput, output: TickOutput, policy: PolicyStatus) -> str:
        if output.plan.acting:
            path.write_bytes(gzip.compress(recorded_tick.to_bytes(given, output, quota_file=policy.data)))
        return ""

    cluster = Cluster()
    cluster.daemon._record = record
    cluster.submit("first", instance_type="tpu-v4-64")
    cluster.submit("second", user="bob", project="b", instance_type="tpu-v4-128")
    cluster.run_until(path.exists)
    return path


def test_replay_shows_every_decision_and_effect(run, tick: Path) -> None:
    done = run("debug", "replay", str(tick))
    lines = done.out.splitlines()
    assert done.code == 0
    assert any(line.startswith("first: start on tier 0") for line in lines)
    assert any(line.startswith("first: effect ") and "CreateGang b-" in line for line in lines)
    assert any(line.startswith("second: wait: ExceedsPool: ") for line in lines)
    document = json.loads(run("debug", "replay", "--output=json", str(tick)).out)
    assert document["decided"] == lines


def test_diff_is_empty_where_this_version_decides_the_same(run, tick: Path) -> None:
    done = run("debug", "diff", str(tick))
    assert (done.code, done.out) == (0, "")
    assert "decides the same as version" in done.err


def test_diff_shows_what_is_decided_otherwise(run, tick: Path) -> None:
    document = json.loads(gzip.decompress(tick.read_bytes()))
    document["decided"] = [line.replace("first: start", "first: wait") for line in document["decided"]]
    tick.write_bytes(gzip.compress(json.dumps(document).encode()))
    done = run("debug", "diff", str(tick), code=64)
    assert [line[:12] for line in done.out.splitlines()] == ["-first: wait", "+first: star"]


@pytest.mark.parametrize("data", [b"", b"text", gzip.compress(b"{}"), gzip.compress(b"[1]" * 9)[:-4]])
def test_what_is_no_recorded_tick_is_refused(run, tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    for command in ("replay", "diff"):
        done = run("debug", command, str(tmp_path / "file"))
        assert (done.code, done.out) == (64, "")
        assert "cannot read" in done.err
    assert "cannot read" in run("debug", "replay", str(tmp_path / "gone")).err
