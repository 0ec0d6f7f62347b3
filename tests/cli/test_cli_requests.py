"""What each command asks of a bucket in the cloud; the table of `docs/reference/requests.md` says the same numbers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bastion.cli import connect
from bastion.testing.counting_store import CountingStore
from bastion.testing.scripted_hosts import runs_for
from tests.support.bench_files import text
from tests.support.simulated_benchmarks import matrix_of, result_of, store_run

TABLE = Path(__file__).parents[2] / "docs" / "reference" / "requests.md"


@pytest.fixture
def remote(bastion, monkeypatch: pytest.MonkeyPatch) -> CountingStore:
    """The simulated bastion's bucket, as if it lay in the cloud."""
    counting = CountingStore(bastion.store)
    monkeypatch.setenv("BASTION_ROOT", "gs://bucket/test-bastion")
    monkeypatch.setattr(connect, "open_root", lambda _url: counting)
    return counting


def finished(bastion, name: str = "job", *, instance_type: str = "") -> str:
    bastion.hosts.scripts[name] = runs_for(1)
    uid = bastion.submit(name, instance_type=instance_type)
    bastion.run_until(lambda: (bastion.result(name) or {}).get("uid") == uid)
    return uid


def running(bastion, name: str = "job", **fields: object) -> None:
    bastion.submit(name, **fields)
    bastion.settle(4)
    assert bastion.status(name) == "ACTIVE"


def documented(command: str) -> int:
    """The number of requests that the table gives for a command."""
    row = re.search(rf"^\| {re.escape(f'`{command}`')}[^|]*\| ([0-9]+)", TABLE.read_text("utf-8"), re.MULTILINE)
    assert row is not None, f"the table has no row of {command}"
    return int(row[1])


def test_list_costs_what_the_table_says_however_many_jobs_there_are(run, bastion, remote) -> None:
    for number in range(30):
        bastion.submit(f"job-{number}")
    bastion.settle(3)
    assert run("list").out.count("job-") == 30
    assert remote.requests == documented("bastion list")


def test_list_all_costs_one_read_more_for_each_completed_job_that_is_shown(run, bastion, remote) -> None:
    for name in ("one", "two", "three"):
        finished(bastion, name)
    done = run("list", "--all", "--limit=2")
    assert "showing 2 of 3 completed jobs" in done.err
    assert remote.requests == documented("bastion list --all") + 2


def test_why_costs_what_the_table_says(run, bastion, remote) -> None:
    running(bastion)
    assert "job is running" in run("why", "job").out
    assert remote.requests == documented("bastion why JOB")
    finished(bastion, "done")
    remote.reset()
    assert "succeeded" in run("why", "done").out
    assert remote.requests <= documented("bastion why JOB")


def test_why_of_a_waiting_job_costs_one_read_more_for_each_ended_job_that_its_estimate_is_made_of(
    run, bastion, remote
) -> None:
    for name in ("one", "two", "three"):
        finished(bastion, name)
    running(bastion, "holder", instance_type="tpu-v4-64")
    bastion.submit("waiter", instance_type="tpu-v4-64")
    bastion.settle(2)
    remote.reset()
    assert "estimated start: unknown: " in run("why", "waiter").out
    assert remote.requests == documented("bastion why JOB --eta") + 3
    remote.reset()
    run("why", "waiter", "--noeta")
    assert remote.requests == documented("bastion why JOB")


def test_show_costs_what_why_does_and_two_more_for_lines_and_two_for_outputs(run, bastion, remote) -> None:
    running(bastion, instance_type="tpu-v4-8", output_dir="out")
    bastion.write_log("job", bastion.attempt("job"), 0, 1, "stdout F hello")
    remote.reset()
    assert "hello" in run("show", "job").out
    assert remote.requests == documented("bastion show JOB") - 1  # there is no manifest to read
    bastion.submit("waiter", instance_type="tpu-v4-64")
    bastion.settle(2)
    remote.reset()
    run("show", "waiter")
    assert remote.requests <= documented("bastion why JOB")


def test_why_of_a_failed_job_costs_its_last_lines_too(run, bastion, remote) -> None:
    bastion.hosts.scripts["job"] = runs_for(6, code=3)
    bastion.submit("job")
    bastion.settle(4)
    bastion.write_log("job", bastion.attempt("job"), 0, 1, "stdout F hello")
    bastion.run_until(lambda: bastion.result("job"))
    remote.reset()
    assert "hello" in run("why", "job").out
    assert remote.requests <= documented("bastion why JOB")


def test_waiting_for_jobs_costs_the_same_for_one_and_for_many_and_one_read_for_each_end(run, bastion, remote) -> None:
    names = [f"job-{number}" for number in range(20)]
    for name in names:
        bastion.hosts.scripts[name] = runs_for(120)
        bastion.submit(name)
    bastion.settle(6)
    remote.reset()
    began = bastion.clock.now()
    run("wait", *names, code=0)
    slots = (bastion.clock.now() - began) / 2
    assert remote.requests <= documented("bastion wait JOB...") + slots + 2 * len(names), remote.calls


@pytest.mark.parametrize("command", ["hold", "requeue"])
def test_a_request_costs_what_the_table_says(run, bastion, remote, command: str) -> None:
    running(bastion, instance_type="tpu-v4-8")
    remote.reset()
    run(command, "job", code=0)
    assert remote.requests == documented("bastion hold JOB")


def test_history_costs_what_the_table_says(run, bastion, remote) -> None:
    running(bastion)
    assert "ACTIVE" in run("history", "job").out
    assert remote.requests == documented("bastion history JOB")


def test_exec_costs_what_the_table_says_and_names_the_way_in(run, bastion, remote) -> None:
    running(bastion)
    done = run("exec", "job", "--", "true")
    assert (done.code, "gcloud compute ssh" in done.err) == (64, True)
    assert remote.requests == documented("bastion exec JOB")


@pytest.mark.parametrize(("workers", "segments"), [(1, 1), (2, 400), (2, 700)])
def test_the_output_of_an_ended_job_costs_a_read_for_each_segment_and_a_listing_for_each_page(
    run, bastion, remote, workers: int, segments: int
) -> None:
    uid = finished(bastion, instance_type="tpu-v4-16" if workers == 2 else "")
    for worker in range(workers):
        for seq in range(1, segments + 1):
            bastion.write_log("job", f"{uid}-1", worker, seq, f"stdout F {seq}")
    assert len(run("logs", "job").out.splitlines()) == workers * segments
    pages = -(-workers * segments // 1000)
    assert remote.requests == documented("bastion logs JOB") + pages + workers * segments


def test_one_workers_output_costs_its_own_segments_only(run, bastion, remote) -> None:
    uid = finished(bastion, instance_type="tpu-v4-16")
    for worker in range(2):
        for seq in range(1, 21):
            bastion.write_log("job", f"{uid}-1", worker, seq, f"stdout F {seq}")
    assert len(run("logs", "job", "--worker=1").out.splitlines()) == 20
    assert remote.requests == documented("bastion logs JOB") + 1 + 20


def test_launch_without_waiting_costs_what_the_table_says(run, bastion, remote) -> None:
    bastion.settle(2)
    assert run("launch", "--name=job", "--", "true").code == 0
    assert remote.requests == documented("bastion launch --name=NAME")


def test_each_awaited_job_costs_what_the_table_says(run, bastion, remote) -> None:
    running(bastion, "first")
    finished(bastion, "second")
    remote.reset()
    assert run("launch", "--name=job", "--after=first", "--after=second", "--", "true").code == 0
    more = remote.requests - documented("bastion launch --name=NAME")
    assert more <= 2 * documented("bastion launch --after=OTHER")
    assert more > documented("bastion launch --after=OTHER")


@pytest.mark.parametrize("command", ["launch", "logs", "cancel"])
def test_waiting_costs_its_beginning_its_end_and_the_slots(run, bastion, remote, command: str) -> None:
    bastion.hosts.scripts["job"] = runs_for(120)
    began = bastion.clock.now()
    if command == "launch":
        done = run("launch", "--name=job", "--wait", "--", "true")
        assert "job succeeded" in done.err
    else:
        bastion.submit("job")
        bastion.settle(4)
        remote.reset()
        began = bastion.clock.now()
        done = run("logs", "-f", "job") if command == "logs" else run("cancel", "--wait", "job")
    assert done.code == 0
    slots = (bastion.clock.now() - began) / 2
    name = {
        "launch": "bastion launch --name=NAME --wait",
        "logs": "bastion logs -f JOB",
        "cancel": "bastion cancel --wait JOB",
    }
    print(command, remote.requests, slots, remote.calls)
    assert remote.requests <= documented(name[command]) + slots


def test_commands_about_benchmarks_read_each_job_once(run, remote) -> None:
    names = []
    for number in "AB":
        matrix = matrix_of(["a"], 3, run=number)
        results = [result_of("a", repeat + 1, 1.0 + repeat / 1000) for repeat in range(3)]
        names.append(store_run(remote, matrix, results))
    for command, operands, more in (
        ("noise", names[:1], 3),
        ("noise", ["sim"], 3 + 3),  # a page for each of two runs, and one that shows that there are no more
        ("compare", names, 6),
        ("report", names[:1], 3 + 3),
        ("report", names[1:], 3 + 3 + 1),  # and the report of the run before
    ):
        before = remote.requests
        run("benchmark", command, *operands, code=0)
        row = f"bastion benchmark {command} {'A B' if command == 'compare' else 'RUN'}"
        assert remote.requests - before == documented(row) + more, (command, operands)


def test_a_benchmark_costs_a_fixed_number_and_some_for_each_job(run, bastion, remote, tmp_path) -> None:
    bastion.settle(2)
    path = tmp_path / "bench.toml"
    path.write_text(text(("repeats = 3", "repeats = 1")))
    run("benchmark", "check", str(path), code=0)
    assert remote.requests == documented("bastion benchmark check FILE")
    remote.reset()
    run("benchmark", "run", str(path), code=0)
    assert remote.requests == documented("bastion benchmark run FILE") + 3
    bastion.settle(3)
    remote.reset()
    run("benchmark", "status", "matmul", code=0)
    assert remote.requests == documented("bastion benchmark status RUN") + 3


def test_audit_reads_the_days_that_are_asked_for(run, bastion, remote) -> None:
    for number in range(3):
        bastion.submit(f"job-{number}", instance_type="tpu-v4-128")
        bastion.settle(2)
        bastion.clock.advance(86_400)
    assert "job-0" in run("audit").out
    assert remote.requests == documented("bastion audit") + 3
    remote.reset()
    assert "job-0" not in run("audit", "--since=1d").out
    assert remote.requests == documented("bastion audit") + 1
