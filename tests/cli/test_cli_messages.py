"""The messages of the job and quota commands stand in `messages.txt`, so that a review sees each change of wording.

`BASTION_GOLDEN=rewrite pytest tests/cli/test_cli_messages.py` rewrites the file.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from bastion.cli.main import main
from bastion.testing.cluster import QUOTA
from tests.cli.quota_files import shares

_FILE = Path(__file__).with_name("messages.txt")
_LIMITS = b"[project_rules]\nmax_queued_jobs_per_user = 2\nmax_queued_jobs = 100\n"
_SLICE = "--instance_type=tpu-v4-16"
_COMMANDS = (
    ("launch",),
    ("launch", "--"),
    ("launch", "train.py"),
    ("launch", "--name=Bad", "--", "x"),
    ("launch", "--name=", "--", "x"),
    ("launch", "--priority=many", "--", "x"),
    ("launch", "--prioritty=1", "--", "x"),
    ("launch", "--instance_type=tpu-v4-33", "--", "x"),
    ("launch", "--num_replicas=2", "--", "x"),
    ("launch", "--setup=make", "--", "x"),
    ("launch", _SLICE, "--max_wait=soon", "--", "x"),
    ("launch", _SLICE, "--stuck_after=1s", "--", "x"),
    ("launch", _SLICE, "--secret=KEY=hunter2", "--", "x"),
    ("launch", "--secret=KEY=file:/a", "--", "x"),
    ("launch", _SLICE, "--secret=KEY=file:/a", "--env=KEY=x", "--", "x"),
    ("launch", "--env=A", "--", "x"),
    ("launch", "--env=1A=x", "--", "x"),
    ("launch", "--image=train:v1", "--", "x"),
    ("launch", _SLICE, "--image=train v1", "--", "x"),
    ("launch", "--label=team", "--", "x"),
    ("launch", "--label=team=a", "--label=team=b", "--", "x"),
    ("launch", "--label=my team=a", "--", "x"),
    ("launch", "--label=job-name=x", "--", "x"),
    ("launch", "--proxy=lake:projects/p/locations/l/keyRings/r/cryptoKeys/k", "--", "x"),
    ("launch", "--project_id=zz", "--", "x"),
    ("launch", "--user_id=mallory", "--", "x"),
    ("launch", "--project_id=a", _SLICE, "--num_replicas=64", "--", "x"),
    ("launch", "--project_id=a", "--name=waiter", "--", "x"),
    ("submit",),
    ("submit", "--spec=nowhere.json"),
    ("lunch",),
    ("list", "--limit=0"),
    ("list",),
    ("list", "--label=team"),
    ("list", "--label=my team"),
    ("history", "waiter"),
    ("history", "nobody"),
    ("why", "waitr"),
    ("why", "job-0"),
    ("why", "waiter"),
    ("logs", "waiter"),
    ("logs", "waiter", "--worker=x"),
    ("logs", "waiter", "--since=yesterday"),
    ("logs", "waiter", "--grep=("),
    ("cancel", "waiter"),
    ("cancel", "waiter"),
    ("cancel", "nobody"),
    ("quota", "check", "nowhere.config"),
    ("quota", "check", "bad.config"),
    ("quota", "upload", "bad.config"),
    ("quota", "upload", "less.config", "--dry_run"),
    ("quota", "upload", "none.config", "--dry_run"),
    ("quota", "upload", "more.config"),
    ("quota", "upload", "more.config"),
    ("quota", "diff", "-", "-"),
    ("quota", "diff", "less.config", "more.config"),
    ("quota", "diff", "less.config", "bad.config"),
    ("quota", "whatif", "-", "--against=-"),
    ("quota", "whatif", "less.config"),
    ("quota", "whatif", "none.config"),
    ("quota", "show", "--raw", "--output=json"),
    ("quota",),
)


@pytest.fixture
def full(bastion):
    """Alice may queue two jobs, and has submitted three that are too large to start."""
    bastion.write_quota(QUOTA + _LIMITS)
    for number in range(3):
        bastion.clock.advance(1)
        bastion.submit(f"job-{number}", instance_type="tpu-v4-128")
    bastion.settle(3)
    Path("bad.config").write_text("total_resources = [\n", "utf-8")
    Path("less.config").write_bytes(QUOTA)
    Path("more.config").write_bytes(QUOTA + _LIMITS.replace(b"= 2", b"= 3"))
    Path("none.config").write_bytes(shares(0, 1))
    return bastion


def test_the_messages_are_those_of_the_golden_file(run, full, capsys, tmp_path) -> None:
    told = []
    for command in _COMMANDS:
        done = run(*command)
        text = re.sub(r"[a-z2-7]{10}#", "UID#", done.out + done.err).replace(str(tmp_path), "TMP")
        text = re.sub(r"generation \d+", "generation N", text)
        told.append(f"$ bastion {' '.join(command)}\n{text.rstrip()}\n[{done.code}]\n")
    rendered = "\n".join(told)
    if os.environ.get("BASTION_GOLDEN") == "rewrite":
        _FILE.write_text(rendered, "utf-8")
        return
    assert rendered == _FILE.read_text("utf-8")


def test_a_bad_name_is_refused_before_the_bastion_of_this_machine_is_started(monkeypatch, tmp_path, capsys) -> None:
    monkeypatch.delenv("BASTION_ROOT", raising=False)
    monkeypatch.setenv("BASTION_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("bastion.cli.admin.local.ensure_up", lambda _: pytest.fail("it was started"))
    assert main(["launch", "--name=Bad", "--bundle=none", "--", "x"]) == 64
    assert "'Bad' is not a valid job name" in capsys.readouterr().err
