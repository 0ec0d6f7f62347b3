"""`bastion show`, and the end of a failed job in `why` and `logs -f`."""

from __future__ import annotations

import json

import pytest

from bastion.core.bucket import keys, outputs
from bastion.core.bucket.manifest_proofs import ManifestProofs
from bastion.core.model.job_record import JobRecord
from bastion.testing.scripted_hosts import runs_for


def running(bastion, name: str = "job", **fields: object) -> str:
    bastion.hosts.scripts[name] = runs_for(1000)
    bastion.submit(name, **fields)
    bastion.settle(8)
    assert bastion.status(name) == "ACTIVE"
    return bastion.attempt(name)


def failed(bastion, *lines: str, name: str = "job", code: int = 137, worker: int = 0, **fields: object) -> None:
    """A job whose command printed these lines and failed."""
    bastion.hosts.scripts[name] = runs_for(6, code=code)
    bastion.submit(name, **fields)
    bastion.run_until(lambda: isinstance(bastion.record(name), JobRecord) and bastion.record(name).attempt)
    for seq, line in enumerate(lines, 1):
        bastion.write_log(name, bastion.attempt(name), worker, seq, f"stdout F {line}")
    bastion.run_until(lambda: bastion.result(name))


def test_a_running_job_is_on_one_screen(run, bastion) -> None:
    attempt = running(bastion, instance_type="tpu-v4-16", command="python3 train.py --steps=10", group="sweep")
    for seq in range(1, 9):
        bastion.write_log("job", attempt, 0, seq, f"stdout F step {seq}")
    out = run("show", "job", code=0).out
    assert out.startswith("job is running on 2 hosts\n")
    for text in (
        "tpu-v4-16; project a, user alice, priority 5, queued ",
        "command  python3 train.py --steps=10",
        "group    sweep",
        f"nodes    b-{attempt} (2 of 2 hosts up)",
        "bastion logs -f job  follow it",
        "bastion cancel job   cancel it",
    ):
        assert text in out
    assert [line.strip() for line in out.splitlines() if "step " in line] == [f"step {seq}" for seq in range(4, 9)]
    assert len(out.splitlines()) <= 24


def test_a_waiting_job_has_its_reason_in_the_words_of_why(run, bastion) -> None:
    running(bastion, "holder", instance_type="tpu-v4-64")
    bastion.submit("waiter", instance_type="tpu-v4-64")
    bastion.settle(3)
    shown, why = run("show", "waiter", code=0).out, run("why", "waiter", "--noeta", code=0).out
    reason = [line for line in why.splitlines() if "starts when" in line or "held by" in line]
    assert reason
    assert all(line in shown for line in reason)
    assert "queue position: 1" in shown
    document = json.loads(run("show", "waiter", "--output=json", code=0).out)
    assert document["format"] == 1
    assert document["reason"] == json.loads(run("why", "waiter", "--output=json").out)["reason"]
    assert document["last_lines"] == document["attempts"] == []


def test_attempts_are_a_timeline_with_their_ends(run, bastion) -> None:
    bastion.hosts.scripts["job"] = runs_for(6, code=3)
    bastion.submit("job", instance_type="tpu-v4-8", max_tries=2)
    bastion.run_until(lambda: bastion.result("job"))
    lines = run("show", "job", code=0).out.splitlines()
    header = next(number for number, line in enumerate(lines) if "START (UTC)" in line)
    row = lines[header + 1].split()
    assert row[0] == "1"
    assert "2" in row  # tries
    assert "failed: worker 0 exited with code 3" in lines[header + 1]
    [attempt] = json.loads(run("show", "job", "--output=json").out)["attempts"]
    assert (attempt["cause"], len(attempt["tries"]), attempt["exit_code"]) == ("failed", 1, 3)


def test_secret_values_are_hidden_on_the_screen_and_in_the_json(run, bastion) -> None:
    run("launch", "--name=job", "--env", "LR=0.1", "--env", "API_KEY=hunter2hunter2", "--", "true", code=0)
    bastion.settle(1)
    out = run("show", "job", code=0).out
    assert "LR=0.1" in out
    for text in (out, run("show", "job", "--output=json", code=0).out):
        assert "hunter2" not in text
        assert "***" in text


def test_outputs_are_those_that_a_host_of_the_job_proves_to_have_stored(run, bastion) -> None:
    attempt = running(bastion, instance_type="tpu-v4-8", output_dir="out")
    uid = attempt.rpartition("-")[0]
    place = keys.outputs("job", uid, 0)
    assert f"/test-bastion/outputs/job/{uid}/\n" in run("show", "job").out
    manifest = outputs.Manifest(run=attempt, seq=1, files={"model": outputs.StoredFile(mode=0o644, mtime_ns=1)})
    bastion.store.put(f"{place}{outputs.manifest_name(1)}", manifest.to_bytes(), generation=0)
    assert "worker 0:" not in run("show", "job").out  # nothing proves who wrote it
    signed = ManifestProofs(place=place).to_bytes(
        manifest.model_copy(update={"seq": 2}), bastion.run_keys.drawn(attempt)
    )
    bastion.store.put(f"{place}{outputs.manifest_name(2)}", signed, generation=0)
    assert "(worker 0: 1 file, 0 B)" in run("show", "job").out


def test_lines_that_no_host_of_the_job_proves_are_not_shown(run, bastion) -> None:
    attempt = running(bastion)
    bastion.store.put(
        keys.log_segment("job", attempt, 0, 1), b"1970-01-01T00:00:01.000000Z stdout F forged\n", generation=0
    )
    assert "forged" not in run("show", "job", code=0).out


@pytest.mark.parametrize("width", [80, 40])
def test_on_a_terminal_it_fits_the_width(on_terminal, bastion, monkeypatch, width: int) -> None:
    attempt = running(bastion, command="echo " + "word " * 100)
    bastion.write_log("job", attempt, 0, 1, "stdout F " + "x" * 300 + "\x1b[31m")
    monkeypatch.setenv("COLUMNS", str(width))
    shown = on_terminal("show", "job").splitlines()
    assert "\x1b" not in "".join(shown)
    assert max(map(len, shown)) <= width


def test_a_line_of_ten_megabytes_is_cut(run, bastion) -> None:
    attempt = running(bastion)
    for seq in range(1, 11):
        bastion.write_log("job", attempt, 0, seq, f"stdout {'F' if seq == 10 else 'P'} " + "y" * 1_000_000)
    done = run("show", "job", code=0)
    assert len(done.out) < 30_000
    assert "yyy" in done.out


def test_jobs_that_are_new_refused_unknown_or_foreign(run, bastion) -> None:
    bastion.submit("fresh", command="echo fresh")
    out = run("show", "fresh", code=0).out
    assert "waiting for the scheduler" in out
    assert "command  echo fresh" in out
    bastion.store.put(keys.active("broken"), b"{}", generation=0)
    bastion.settle(2)
    assert "bastion cancel broken" in run("show", "broken", code=0).out
    assert "did you mean fresh?" in run("show", "fersh", code=64).err
    bastion.store.put(keys.complete("theirs"), b'{"name": "theirs", "command": 7}', generation=0)
    for output in ((), ("--output=json",)):
        assert "theirs" in run("show", "theirs", *output, code=0).out
        assert "theirs" in run("why", "theirs", *output, code=0).out


def test_why_of_a_failed_job_has_the_last_ten_lines_of_the_worker_that_failed(run, bastion) -> None:
    failed(bastion, *(f"line {number}" for number in range(1, 13)), code=139)
    out = run("why", "job", code=0).out
    assert "exit code 139: SIGSEGV ended it" in out
    assert [line.strip() for line in out.splitlines() if "line " in line][-10:] == [
        f"line {number}" for number in range(3, 13)
    ]
    assert "last lines of worker 0, attempt 1:" in out
    document = json.loads(run("why", "job", "--output=json", code=0).out)
    assert [line["line"] for line in document["last_lines"]] == [f"line {number}" for number in range(3, 13)]


def test_a_job_that_succeeded_or_was_cancelled_needs_no_explanation(run, bastion) -> None:
    bastion.hosts.scripts["good"] = runs_for(1)
    bastion.submit("good")
    bastion.run_until(lambda: bastion.result("good"))
    assert "last lines" not in run("why", "good", code=0).out
    assert "exit code 0:" not in run("show", "good", code=0).out


@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_following_the_output_of_a_failed_job_tells_on_stderr_how_it_failed(run, bastion, when: str) -> None:
    if when == "before":
        failed(bastion, "hello", code=3)
    else:
        bastion.hosts.scripts["job"] = runs_for(20, code=3)
        bastion.submit("job")
        bastion.settle(5)
        bastion.write_log("job", bastion.attempt("job"), 0, 1, "stdout F hello")
    done = run("logs", "-f", "job", code=0)
    assert done.out == "hello\n"
    assert done.err.splitlines()[-1] == "job failed: worker 0 exited with code 3 (exit code 3)"


def test_following_a_job_that_failed_without_output_tells_it_too(run, bastion) -> None:
    failed(bastion, code=3)
    assert run("logs", "-f", "job", code=0).err.splitlines()[-1].startswith("job failed: ")
