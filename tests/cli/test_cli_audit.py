"""`bastion audit`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from bastion.core.bucket import keys
from bastion.core.model.identity import Inbox
from bastion.testing.scripted_hosts import runs_for

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "share-a-bastion.md"


@pytest.fixture
def shared(bastion):
    """A job of alice that mallory wanted to cancel, and she did; and a spec that was refused."""
    bastion.use_inboxes({"alice": Inbox()})
    bastion.settle(2)
    bastion.submit("train-1", inbox="alice", instance_type="tpu-v4-16")
    bastion.run_until(lambda: bastion.hosts.live("train-1"))
    bastion.cancel("train-1", inbox="mallory")
    bastion.settle(2)
    bastion.cancel("train-1", inbox="alice")
    bastion.put_spec("bad", b"{}", "alice")
    bastion.run_until(lambda: bastion.result("train-1"))
    bastion.settle(3)
    return bastion


def test_it_answers_who_cancelled_a_job_in_lines_of_eighty_columns(run, shared) -> None:
    done = run("audit", "--job=train-1", code=0)
    rows = [re.split(r"  +", line) for line in done.out.splitlines()]
    assert rows[0] == ["TIME", "WHO", "PROOF", "REQUEST", "JOB", "OUTCOME"]
    assert [[*row[1:5], row[5].partition(":")[0]] for row in rows[1:]] == [
        ["alice", "inbox", "submit", "train-1", "accepted"],
        ["mallory", "inbox", "cancel", "train-1", "refused"],
        ["alice", "inbox", "cancel", "train-1", "accepted"],
        ["alice", "daemon", "end", "train-1", "cancelled"],
    ]
    assert all(len(line) <= 80 for line in done.out.splitlines() if "refused" not in line)
    assert "train-1 is the job of alice, who may cancel it, as may administrators" in done.out


@pytest.mark.parametrize(
    ("flags", "jobs"),
    [
        (("--outcome=refused",), ["train-1", "bad"]),
        (("--user=mallory",), ["train-1"]),
        (("--request=cancel", "--outcome=accepted"), ["train-1"]),
        (("--job=other",), []),
        (("--since=1s", "--job=train-1"), []),
        (("--since=1h30m", "--user=alice", "--request=submit"), ["train-1", "bad"]),
        (("--since=2027-01-15", "--request=end"), ["train-1"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_it_shows_what_is_asked_for(run, shared, flags: tuple[str, ...], jobs: list[str]) -> None:
    done = run("audit", *flags, "--output=json", code=0)
    assert [line.get("job") for line in json.loads(done.out)] == jobs
    assert ("has no such line since" in done.err) is not bool(jobs)


def test_json_has_all_that_the_trail_has(run, shared) -> None:
    (line,) = json.loads(run("audit", "--job=bad", "--output=json").out)
    meta = shared.store.head(keys.active("bad", "alice"))
    assert line["generation"] == meta.generation
    assert line["proof"] == "inbox folder"
    assert len(line["sha256"]) == 64
    assert "is missing" in line["why"]


def test_lines_of_others_forms_and_ids_that_are_there_twice_are_left_out(run, shared) -> None:
    (key,) = shared.listed(keys.AUDIT)
    before = run("audit").out
    found = shared.store.get(key)
    junk = b'{"v":1}\nnonsense\n\xff\n' + b"x" * 100_000 + b"\n" + found.data.splitlines()[0][:50]
    shared.store.put(key, found.data + found.data + junk, generation=found.meta.generation)
    assert run("audit").out == before


def test_days_before_are_not_read_and_a_part_number_is_a_number(run, bastion) -> None:
    bastion.submit("old", instance_type="tpu-v4-128")
    bastion.settle(2)
    bastion.clock.advance(20 * 86_400)
    bastion.submit("new", instance_type="tpu-v4-128")
    bastion.settle(2)
    assert "old" not in run("audit").out
    assert "old" in run("audit", "--since=30d").out


def test_every_line_of_the_page_is_a_command(run, shared) -> None:
    section = PAGE.read_text("utf-8").partition("## Who asked for what")[2].partition("\n## ")[0]
    commands = re.findall(r"^bastion (audit .*)$", section, re.MULTILINE)
    assert len(commands) == 4
    for command in commands:
        run(*command.replace("2026-11-20", "2027-01-01").split(), code=0)


def test_what_cannot_be_meant_is_refused(run, bastion) -> None:
    assert "--request" in run("audit", "--request=nonsense", code=64).err
    assert "is not a valid time" in run("audit", "--since=1h30", code=64).err
    assert "--user is empty" in run("audit", "--user=", code=64).err
    assert "--job is empty" in run("audit", "--job=", code=64).err
    bastion.hosts.scripts["job"] = runs_for(1)
    assert run("audit", code=0).err.startswith("bastion: the audit trail has no such line since ")
