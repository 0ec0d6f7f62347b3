"""`bastion logs`: order, attempts, workers, gaps, and following, on a simulated bastion."""

from __future__ import annotations

import json

import pytest

from bastion.core.bucket import keys
from bastion.testing.scripted_hosts import runs_for
from tests.support.past_attempts import add_attempts


def finished(bastion, name: str = "job", *, instance_type: str = "", **hooks: object) -> str:
    """A job that has run and ended; returns its uid."""
    bastion.hosts.scripts[name] = runs_for(1)
    uid = bastion.submit(name, instance_type=instance_type, **hooks)
    bastion.run_until(lambda: (bastion.result(name) or {}).get("uid") == uid)
    return uid


def test_the_output_of_a_job_on_one_host_appears_exactly(run, bastion) -> None:
    uid = finished(bastion)
    bastion.write_log("job", f"{uid}-1", 0, 1, "stdout P do", "stdout P ne", "stdout F !", "stderr F  two  spaces ")
    bastion.write_log("job", f"{uid}-1", 0, 2, "stdout F ", "stdout F \x1b[1mbold\x1b[0m", "stdout P no newline")
    done = run("logs", "job")
    assert (done.code, done.out) == (0, "done!\n\n\x1b[1mbold\x1b[0m\nno newline")
    assert done.err == " two  spaces \n"


def test_workers_are_prefixed_and_merged_by_time_each_in_its_order(run, bastion) -> None:
    uid = finished(bastion, instance_type="tpu-v4-16")
    for seq in range(1, 25):
        for worker in (0, 1):
            bastion.write_log("job", f"{uid}-1", worker, seq, f"stdout F {seq}")
    done = run("logs", "job")
    expected = [f"[w0{worker}] {seq}" for seq in range(1, 25) for worker in (0, 1)]
    assert done.out.splitlines() == expected


def test_one_worker_is_shown_without_a_prefix(run, bastion) -> None:
    uid = finished(bastion, instance_type="tpu-v4-16")
    bastion.write_log("job", f"{uid}-1", 0, 1, "stdout F zero")
    bastion.write_log("job", f"{uid}-1", 1, 1, "stdout F one")
    assert run("logs", "job", "--worker=1").out == "one\n"
    assert run("logs", "job", "--worker=all").out == "[w00] zero\n[w01] one\n"


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--worker=2", "the job 'job' has no worker 2; its workers are 0 to 1"),
        ("--worker=first", "is not a valid worker; use a number from 0, or all"),
        ("--worker=-1", "is not a valid worker"),
        ("--attempt=7", "attempt 7 of 'job' has no output; attempts with output: 1"),
        ("--attempt=-1", "--attempt=-1"),
        ("--uid=aaaaaaaaaa", "no job 'job' with the uid aaaaaaaaaa has output"),
    ],
)
def test_what_is_not_there_is_refused(run, bastion, flag: str, message: str) -> None:
    uid = finished(bastion, instance_type="tpu-v4-16")
    bastion.write_log("job", f"{uid}-1", 0, 1, "stdout F zero")
    done = run("logs", "job", flag, code=64)
    assert message in done.err


def test_lost_output_is_reported_where_it_is_missing(run, bastion) -> None:
    uid = finished(bastion)
    bastion.write_log("job", f"{uid}-1", 0, 3, "stdout F three", "gap F 17 bytes of output are missing here: full disk")
    bastion.write_log("job", f"{uid}-1", 0, 5, "stdout F five", "nonsense")
    done = run("logs", "job")
    assert done.out == "three\nfive\n"
    assert done.err.splitlines() == [
        "--- segments 1 to 2 are no longer in the bucket ---",
        "--- 17 bytes of output are missing here: full disk ---",
        "--- segment 4 is no longer in the bucket ---",
        "--- a log line of another format: 1970-01-01T00:16:45.000000Z nonsense ---",
    ]


def test_attempts_come_in_their_order_each_with_a_header(run, bastion) -> None:
    uid = finished(bastion)
    add_attempts(bastion, "job", (2, 10), cleanup=True)
    for attempt in (1, 2, 10):
        bastion.write_log("job", f"{uid}-{attempt}", 0, 1, f"stdout F attempt {attempt}")
    bastion.write_log("job", f"{uid}-cleanup", 0, 1, "stdout F swept")
    done = run("logs", "job")
    assert done.out == "attempt 1\nattempt 2\nattempt 10\n"
    assert done.err.splitlines()[:3] == ["--- attempt 1 ---", "--- attempt 2 ---", "--- attempt 10 ---"]
    assert "the cleanup command also has output: bastion logs --attempt=0 job" in done.err
    done = run("logs", "job", "--attempt=2")
    assert (done.out, done.err) == ("attempt 2\n", "")
    assert run("logs", "job", "--attempt=0").out == "swept\n"


def test_of_several_jobs_of_a_name_the_latest_is_shown(run, bastion) -> None:
    first = finished(bastion)
    bastion.write_log("job", f"{first}-1", 0, 1, "stdout F first")
    second = finished(bastion)
    assert run("logs", "job").err == "bastion: job has no output\n"
    bastion.write_log("job", f"{second}-1", 0, 1, "stdout F second")
    assert run("logs", "job").out == "second\n"
    assert run("logs", "job", f"--uid={first}").out == "first\n"


def test_output_outlives_its_result(run, bastion) -> None:
    for name in ("zzzzzzzzzz", "aaaaaaaaaa"):
        bastion.clock.advance(1)
        bastion.write_log("job", f"{name}-1", 0, 1, f"stdout F of {name}")
    done = run("logs", "job")
    assert done.out == "[w00] of aaaaaaaaaa\n"
    assert done.err == "bastion: no state or result of job is left, so nothing proves who wrote this output\n"


def test_json_gives_one_object_per_line(run, bastion) -> None:
    uid = finished(bastion, instance_type="tpu-v4-16")
    bastion.write_log("job", f"{uid}-1", 1, 1, "stdout P a", "stdout F b", "stderr F \x1b[2J", "gap F lost")
    lines = [json.loads(line) for line in run("logs", "job", "--output=json").out.splitlines()]
    assert [(line["worker"], line["stream"], line["line"]) for line in lines] == [
        (1, "stdout", "ab"),
        (1, "stderr", "\x1b[2J"),
        (1, "gap", "lost"),
    ]
    assert lines[0]["attempt"] == 1


def test_a_job_without_output_says_so(run, bastion) -> None:
    bastion.submit("job")
    assert run("logs", "job").err == "bastion: job has no output yet\n"
    bastion.settle(3)
    assert run("logs", "job").err == "bastion: job has no output yet\n"


def test_a_refused_spec_has_no_output_and_says_why(run, bastion) -> None:
    bastion.put_spec("bad", b"{")
    bastion.settle(4)
    done = run("logs", "bad", code=64)
    assert "'bad' has never run: its spec is refused: the document is not valid JSON" in done.err
    assert "the spec is refused" in run("logs", "-f", "bad").err or run("logs", "-f", "bad").code == 64


def test_following_ends_with_the_job_and_shows_everything(run, bastion) -> None:
    bastion.hosts.scripts["job"] = runs_for(4, code=5)
    bastion.submit("job")
    bastion.settle(3)

    def write() -> None:
        record = bastion.record("job")
        if record is not None and record.attempt is not None:
            seq = len(bastion.listed("logs/job.d/")) + 1
            bastion.write_log("job", bastion.attempt("job"), 0, seq, f"stdout F {seq}")

    bastion.on_sleep.append(write)
    done = run("logs", "-f", "job", code=0)
    total = len(bastion.listed("logs/job.d/"))
    assert total > 2
    assert done.out == "".join(f"{n}\n" for n in range(1, total + 1))
    assert "job failed: worker 0 exited with code 5 (exit code 5)" in done.err


def test_following_an_ended_job_shows_it_and_how_it_ended(run, bastion) -> None:
    uid = finished(bastion)
    bastion.write_log("job", f"{uid}-1", 0, 1, "stdout F hi")
    done = run("logs", "job", "--follow")
    assert (done.code, done.out) == (0, "hi\n")
    assert "job succeeded: all workers exited with code 0" in done.err
    assert bastion.slept == 0


def test_following_one_worker_shows_no_other(run, bastion) -> None:
    bastion.hosts.scripts["job"] = runs_for(4)
    bastion.submit("job", instance_type="tpu-v4-16")
    bastion.settle(3)
    for worker in (0, 1):
        bastion.write_log("job", bastion.attempt("job"), worker, 1, f"stdout F {worker}")
    assert run("logs", "-f", "job", "--worker=1").out == "1\n"


def test_ctrl_c_ends_the_following_and_not_the_job(run, bastion) -> None:
    bastion.submit("job")
    bastion.settle(3)

    def interrupt() -> None:
        raise KeyboardInterrupt

    bastion.on_sleep.append(interrupt)
    assert run("logs", "-f", "job").code == 130
    assert bastion.listed(keys.JOBS_USER_STATES) == []
    assert bastion.status("job") == "ACTIVE"


def test_what_others_wrote_is_left_out_told_once_and_shown_when_asked(run, bastion) -> None:
    uid = finished(bastion)
    bastion.write_log("job", f"{uid}-1", 0, 1, "stdout F mine")
    for number in (2, 3):
        key = keys.log_segment("job", f"{uid}-1", 0, number)
        bastion.store.put(key, b"1970-01-01T00:20:00.000000Z stdout F theirs\n", generation=0)
    bastion.store.put(
        keys.log_segment("job", f"{uid}-7", 0, 1), b"1970-01-01T00:20:00.000000Z stdout F 7\n", generation=0
    )
    below = f"logs/job.d/{uid}-1/worker-0/"
    done = run("logs", "job")
    assert done.out == "mine\n"
    assert done.err.splitlines() == [
        f"bastion: left out the output of 1 attempt of which the bastion has no record, such as {uid}-7: "
        "others may have written it; use --unproved to see it",
        f"bastion: left out 2 objects below {below}: no host of this attempt proves to have written them, "
        "so others may have; use --unproved to see them",
    ]
    assert run("logs", "job", "--unproved", "--attempt=1").out == "mine\ntheirs\ntheirs\n"
    assert "7\n" in run("logs", "job", "--unproved").out
    followed = run("logs", "-f", "job")
    assert followed.out == "mine\n"
    assert sum("left out 2 objects" in line for line in followed.err.splitlines()) == 1
