"""What a terminal gets of a job's output and of words from outside, on a simulated bastion and a pseudo-terminal."""

from __future__ import annotations

import json

import pytest

from bastion.core.bucket import keys
from bastion.testing.scripted_hosts import runs_for

CLIPBOARD = "\x1b]52;c;ZWNobyBoaQ==\x07"
HOSTILE = f"{CLIPBOARD}\x1b[2J\x9b31mname\u202e\u200b"
SHOWN = "\\x1b]52;c;ZWNobyBoaQ==\\x07\\x1b[2J\\x9b31mname\\u202e\\u200b"


def ended(bastion, *, instance_type: str = "") -> str:
    """The uid of a job `job` that has ended."""
    bastion.hosts.scripts["job"] = runs_for(1)
    uid = bastion.submit("job", instance_type=instance_type)
    bastion.run_until(lambda: bastion.result("job"))
    return uid


# -- output ------------------------------------------------------------------------------------------------------------


def test_output_of_one_host_may_color_a_terminal_and_nothing_else(run, bastion, on_terminal) -> None:
    uid = ended(bastion)
    lines = (f"stdout F {CLIPBOARD}x", "stdout P 10%\r20%\x1b", "stdout F [31mred", "stderr F \x1b]0;title\x07")
    bastion.write_log("job", f"{uid}-1", 0, 1, *lines)
    shown = "\\x1b]52;c;ZWNobyBoaQ==\\x07x\n10%\r20%\x1b[31mred\x1b[0m\n\\x1b]0;title\\x07\n"
    assert on_terminal("logs", "job") == shown
    assert on_terminal("logs", "job", "--raw") == f"{CLIPBOARD}x\n10%\r20%\x1b[31mred\n\x1b]0;title\x07\n"
    assert run("logs", "job").out == f"{CLIPBOARD}x\n10%\r20%\x1b[31mred\n"


def test_output_of_several_hosts_is_cleaned_line_by_line(run, bastion, on_terminal) -> None:
    uid = ended(bastion, instance_type="tpu-v4-16")
    bastion.write_log("job", f"{uid}-1", 1, 1, f"stdout F {CLIPBOARD}x", "gap F \x1b[2Jlost", "\x1b[2J of no format")
    shown = on_terminal("logs", "job", "--timestamps")
    assert CLIPBOARD not in shown
    assert "\\x1b]52;c;ZWNobyBoaQ==\\x07x\n" in shown
    assert "\x1b[2J" not in shown
    assert run("logs", "job").out == f"[w01] {CLIPBOARD}x\n"


def test_an_instant_in_a_segment_is_not_believed_to_be_one(run, bastion, on_terminal) -> None:
    uid = ended(bastion)
    text = b"9999\x1b]0;title\x07 stdout F x\n"
    bastion.run_keys.write_segment(bastion.store, "job", f"{uid}-1", 0, 1, text)
    assert on_terminal("logs", "job", "--timestamps") == "9999\\x1b]0;title\\x07 x\n"


def test_waiting_for_a_job_cleans_its_output_as_well(bastion, on_terminal) -> None:
    bastion.hosts.scripts["job"] = runs_for(3)

    def write() -> None:
        record = bastion.record("job")
        if record is not None and record.attempt is not None and not bastion.listed("logs/job.d/"):
            bastion.write_log("job", bastion.attempt("job"), 0, 1, f"stdout F {CLIPBOARD}")

    bastion.on_sleep.append(write)
    assert CLIPBOARD not in on_terminal("launch", "--name=job", "--wait", "--", "x")


def test_a_line_of_ours_is_not_glued_to_an_unfinished_one(run, bastion, on_terminal) -> None:
    bastion.hosts.scripts["job"] = runs_for(4, code=7)

    def write() -> None:
        record = bastion.record("job")
        if record is not None and record.attempt is not None and not bastion.listed("logs/job.d/"):
            bastion.write_log("job", bastion.attempt("job"), 0, 1, "stdout P out", "stderr P oops")

    bastion.on_sleep.append(write)
    done = run("launch", "--name=job", "--wait", "--", "x")
    assert done.out == "out"  # exactly what the job wrote
    assert "oops\n" in done.err.splitlines(keepends=True)
    assert done.err.splitlines()[-1] == "job failed: worker 0 exited with code 7 (exit code 7)"
    assert "outoops\n" in on_terminal("logs", "job")


# -- words from outside ------------------------------------------------------------------------------------------------


@pytest.fixture
def hostile(bastion) -> str:
    """A job that a user of a hostile name cancelled, with a host that says hostile things."""
    bastion.submit("job", user="alice")
    bastion.settle(3)
    user_request = {
        "status": "CANCELLING",
        "by": HOSTILE,
        "uid": bastion.record("job").uid,
        "at": "2026-01-01T00:00:00Z",
    }
    bastion.store.put(keys.user_state("job"), json.dumps(user_request).encode(), generation=0)
    bastion.run_until(lambda: bastion.result("job"))
    return "job"


def test_words_from_outside_are_plain_in_the_bucket(bastion, hostile) -> None:
    written = [key for key in bastion.listed("") if key.startswith(("jobs/", "logs/", "status/", "project_history/"))]
    assert keys.complete(hostile) in written
    for key in written:
        text = bastion.store.get(key).data.decode()
        assert CLIPBOARD not in text, key
        assert "\\u001b" not in text, key
    assert SHOWN in bastion.store.get(keys.job_history("job")).data.decode()


@pytest.mark.parametrize("command", [("why", "job"), ("history", "job"), ("list", "--all")])
def test_words_from_outside_are_plain_on_a_terminal(on_terminal, hostile, command, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    shown = on_terminal(*command, term="dumb")  # without styles of ours
    assert "\x1b" not in shown
    assert SHOWN in shown


def test_what_an_older_version_wrote_is_plain_on_a_terminal(bastion, on_terminal) -> None:
    bastion.store.put(keys.job_history("job"), f"t aaaaaaaaaa#1 ACTIVE {HOSTILE}\n".encode(), generation=0)
    assert on_terminal("history", "job") == f"t aaaaaaaaaa#1 ACTIVE {SHOWN}\n"


def test_a_refused_spec_with_hostile_words_is_plain_everywhere(bastion, on_terminal) -> None:
    bastion.put_spec("bad", json.dumps({"version": 1, "name": "bad", HOSTILE: HOSTILE}).encode())
    bastion.settle(4)
    for command in (("list",), ("why", "bad"), ("logs", "bad")):
        assert "\x1b" not in on_terminal(*command, term="dumb")
    assert b"\\u001b" not in bastion.store.get(keys.invalid("bad")).data
    assert b"\\u001b" not in bastion.store.get(keys.STATUS).data
