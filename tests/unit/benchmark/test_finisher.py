"""The finisher's two commands, step by step, on a bucket without a daemon."""

from __future__ import annotations

import errno
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

import pytest

from bastion.benchmark import layout
from bastion.benchmark.begin import Begin
from bastion.benchmark.collect import JobValues, collect
from bastion.benchmark.finish import Finish, live_jobs
from bastion.benchmark.layout import Matrix, Outcome, Value
from bastion.benchmark.measurements import read_run
from bastion.benchmark.submit import Submission
from bastion.client import Client
from bastion.core import documents, limits
from bastion.core.bucket import keys
from bastion.core.errors import EXIT_INFRASTRUCTURE, Refused
from bastion.testing.cluster import Cluster
from bastion.testing.slow_bucket import SlowBucket
from tests.support.bench_files import PLACE, SimulatedRoot, benchmark

FILE = benchmark(("repeats = 3", "repeats = 1"))


@dataclass(slots=True)
class Lines:
    """Command lines that end at the second look, with these codes; others run until they are ended."""

    codes: Mapping[str, int] = field(default_factory=dict)
    error: OSError | None = None
    started: list[tuple[str, str]] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)

    def start(self, line: str, variables: Mapping[str, str]) -> Running:
        self.started.append((line, variables["BASTION_BENCHMARK_TIME"]))
        if self.error is not None:
            raise self.error
        return Running(self, line)


@dataclass(slots=True)
class Running:
    lines: Lines
    line: str
    looks: int = 0

    def poll(self) -> int | None:
        self.looks += 1
        return self.lines.codes.get(self.line) if self.looks > 1 else None

    def end(self) -> None:
        self.lines.ended.append(self.line)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def client_of(cluster: Cluster) -> Client:
    return Client(cluster.store, SimulatedRoot(), cluster.clock)


def submitted(cluster: Cluster) -> Matrix:
    submission = Submission(client_of(cluster), FILE, PLACE, None)
    submission.submit()
    return submission.matrix


def drive(cluster: Cluster, steps: Begin | Finish, *, seconds: float = 1.0) -> tuple[int, list[str]]:
    said: list[str] = []
    for _ in range(10_000):
        code = steps.step()
        said += steps.said
        steps.said.clear()
        if code is not None:
            return code, said
        cluster.clock.advance(seconds)
    raise AssertionError(said)


def end_all(cluster: Cluster, matrix: Matrix) -> None:
    """As a daemon that has ended all members."""
    for cell in matrix.cells:
        for each in cell.repeats:
            document = cluster.json(keys.active(each.job))
            uid = client_of(cluster).require(each.job).uid
            document["result"] = {
                "uid": uid,
                "outcome": "succeeded",
                "exit_code": 0,
                "message": "done",
                "attempts": [
                    {
                        "number": 1,
                        "started_at": "2027-01-15T08:00:00.000000Z",
                        "running_since": "2027-01-15T08:00:05.000000Z",
                        "ended_at": "2027-01-15T08:01:00.000000Z",
                        "zone": "us-1",
                    }
                ],
            }
            cluster.store.put(keys.complete(each.job), documents.dumps(document), generation=0)
            meta = cluster.store.head(keys.active(each.job))
            assert meta is not None
            cluster.store.delete(keys.active(each.job), generation=meta.generation)


def finish_of(cluster: Cluster, matrix: Matrix, lines: Lines, *, try_number: int = 1) -> Finish:
    return Finish(
        client_of(cluster),
        matrix,
        ["down"],
        lines,
        try_number=try_number,
        read_values=lambda _job, _uid, _hosts: JobValues(values={"seconds": [Value(value=2.0)], "other": []}),
        report=lambda: None,
    )


def test_begin_waits_for_all_jobs_and_then_runs_up(cluster: Cluster) -> None:
    submission = Submission(client_of(cluster), FILE, PLACE, None)
    lines = Lines({"one": 0, "two": 0})
    begin = Begin(client_of(cluster), submission.matrix, ["one", "two"], lines)
    for _ in range(5):
        assert begin.step() is None
        cluster.clock.advance(60)
    assert lines.started == []
    submission.submit()
    code, said = drive(cluster, begin)
    assert code == 0
    assert lines.started == [("one", "1"), ("two", "1")]
    assert "all 3 jobs are submitted" in said


def test_begin_gives_up_if_the_client_is_gone(cluster: Cluster) -> None:
    matrix = Submission(client_of(cluster), FILE, PLACE, None).matrix
    lines = Lines()
    code, said = drive(cluster, Begin(client_of(cluster), matrix, ["one"], lines), seconds=30)
    assert code == 1
    assert lines.started == []
    assert said == [
        "the client did not submit all jobs in time, so the run ends; run the file again: bastion benchmark run"
    ]
    assert 600 <= cluster.clock.monotonic() - 1000 <= 660


def test_a_line_of_up_that_fails_is_the_last_and_its_code_is_that_of_begin(cluster: Cluster) -> None:
    matrix = submitted(cluster)
    lines = Lines({"one": 7, "two": 0})
    code, said = drive(cluster, Begin(client_of(cluster), matrix, ["one", "two"], lines))
    assert code == 7
    assert lines.started == [("one", "1")]
    assert said[-1] == "up: 'one' exited with code 7"


def test_up_and_down_are_told_which_time_it_is(cluster: Cluster) -> None:
    matrix = submitted(cluster)
    end_all(cluster, matrix)
    lines = Lines({"up": 0, "down": 0})
    for _ in range(2):
        drive(cluster, Begin(client_of(cluster), matrix, ["up"], lines))
    for _ in range(3):
        drive(cluster, finish_of(cluster, matrix, lines))
    assert lines.started == [("up", "1"), ("up", "2"), ("down", "1"), ("down", "2"), ("down", "3")]
    assert len(cluster.listed(f"{layout.folder(matrix.name, matrix.run)}times/")) == 5


def test_a_line_that_ended_with_the_code_of_timeout_was_not_ended_after_an_hour(cluster: Cluster) -> None:
    matrix = submitted(cluster)
    end_all(cluster, matrix)
    code, said = drive(cluster, finish_of(cluster, matrix, Lines({"down": 124})))
    assert code == 124
    assert "down: 'down' exited with code 124" in said


def test_a_line_that_cannot_be_started_is_told_and_results_are_collected(cluster: Cluster) -> None:
    matrix = submitted(cluster)
    end_all(cluster, matrix)
    error = OSError(errno.E2BIG, "Argument list too long")
    code, said = drive(cluster, finish_of(cluster, matrix, Lines(error=error)))
    assert code == 126
    assert "down: 'down' could not be started: Argument list too long" in said
    assert all(cell.with_metric("seconds") for cell in read_run(cluster.store, matrix.name, matrix.run).cells)


def test_a_line_that_hangs_is_ended_after_an_hour(cluster: Cluster) -> None:
    matrix = submitted(cluster)
    end_all(cluster, matrix)
    lines = Lines()
    code, said = drive(cluster, finish_of(cluster, matrix, lines), seconds=60)
    assert code == 124
    assert lines.ended == ["down"]
    assert "down: 'down' exited with code 124; all lines of down have 60 minutes" in said
    assert all(cell.with_metric("seconds") for cell in read_run(cluster.store, matrix.name, matrix.run).cells)


def test_finish_cancels_what_is_left_and_runs_down_only_when_it_has_ended(cluster: Cluster) -> None:
    matrix = submitted(cluster)
    lines = Lines({"down": 0})
    finish = finish_of(cluster, matrix, lines)
    for _ in range(5):
        assert finish.step() is None
    assert len(cluster.listed(keys.JOBS_USER_STATES)) == len(live_jobs(client_of(cluster), matrix)) == 3
    assert lines.started == []
    end_all(cluster, matrix)
    code, said = drive(cluster, finish)
    assert code == 0
    assert lines.started == [("down", "1")]
    assert said[-1] == "3 succeeded"


def test_on_a_cloud_bucket_jobs_are_cancelled_together(cluster: Cluster) -> None:
    matrix = submitted(cluster)
    others = threading.Barrier(3)

    def moment(method: str, key: str) -> None:
        if method == "put" and key.startswith(keys.JOBS_USER_STATES) and not others.broken:
            others.wait(timeout=20)

    way = SlowBucket(cluster.store, cluster.clock).way()
    way.moment = moment
    client = Client(way, SimulatedRoot(local=False), cluster.clock)
    finish = Finish(
        client,
        matrix,
        [],
        Lines(),
        try_number=1,
        read_values=lambda _job, _uid, _hosts: JobValues(),
        report=lambda: None,
    )
    assert finish.step() is None
    assert not others.broken
    assert len(cluster.listed(keys.JOBS_USER_STATES)) == 3


@pytest.mark.parametrize(("try_number", "code", "downs"), [(1, EXIT_INFRASTRUCTURE, 0), (3, 0, 1)])
def test_only_the_last_try_runs_down_although_jobs_do_not_end(
    cluster: Cluster, try_number: int, code: int, downs: int
) -> None:
    matrix = submitted(cluster)
    lines = Lines({"down": 0})
    got, said = drive(cluster, finish_of(cluster, matrix, lines, try_number=try_number), seconds=60)
    assert (got, len(lines.started)) == (code, downs)
    assert any("3 jobs did not end" in line for line in said)
    assert cluster.clock.monotonic() - 1000 >= limits.BENCHMARK_STOP_SECONDS


def test_a_cell_has_what_its_job_measured_and_where_it_ran(cluster: Cluster) -> None:
    matrix = submitted(cluster)
    end_all(cluster, matrix)
    drive(cluster, finish_of(cluster, matrix, Lines({"down": 0})))
    cell = matrix.cells[-1]
    key = layout.cell(matrix.name, matrix.run, cell.cell, 1)
    found = layout.read(layout.CellResult, cluster.store.get(key).data, key)
    assert (found.outcome, found.reason, found.attempts, found.held_seconds) == (Outcome.SUCCEEDED, "", 1, 60.0)
    assert found.values == {"seconds": [Value(value=2.0)]}
    assert found.environment.place == "us-1"
    assert found.environment.instance_type == "tpu-v4-16"
    assert found.environment.hosts == 2
    assert found.logs == f"logs/{cell.repeats[0].job}.d/"


def test_a_job_without_a_result_or_without_a_value_has_a_reason(cluster: Cluster) -> None:
    matrix = submitted(cluster)
    first, second = matrix.cells[0].repeats[0].job, matrix.cells[1].repeats[0].job
    end_all(cluster, matrix)
    third = matrix.cells[2].repeats[0].job
    for job in (first, third):
        meta = cluster.store.head(keys.complete(job))
        assert meta is not None
        cluster.store.delete(keys.complete(job), generation=meta.generation)
    cluster.store.put(keys.complete(third), b"not ours", generation=0)
    outcomes = collect(
        client_of(cluster),
        matrix,
        lambda job, _uid, _hosts: JobValues() if job == second else JobValues(values={"seconds": [Value(value=1.0)]}),
    )
    assert outcomes == {Outcome.MISSING: 2, Outcome.SUCCEEDED: 1}
    cells = read_run(cluster.store, matrix.name, matrix.run).cells
    assert "it was never submitted, or its result is deleted" in cells[0].jobs[0].problem
    assert "cannot read the result of" in cells[2].jobs[0].problem
    assert "no value of seconds; the command must write them to $BASTION_RESULTS_FILE" in cells[1].jobs[0].problem


def test_a_failed_job_has_the_last_line_of_the_worker_that_failed_as_its_reason(cluster: Cluster) -> None:
    matrix = submitted(cluster)
    end_all(cluster, matrix)
    job = matrix.cells[0].repeats[0].job
    document = cluster.json(keys.complete(job))
    result = document["result"]
    result |= {"outcome": "failed", "exit_code": 69, "message": "worker 1 exited with code 69", "failed_worker": 1}
    result["attempts"][0] |= {"cause": "failed", "exit_code": 69}
    meta = cluster.store.head(keys.complete(job))
    assert meta is not None
    cluster.store.put(keys.complete(job), documents.dumps(document), generation=meta.generation)
    run = f"{result['uid']}-1"

    def reason() -> str:
        collect(client_of(cluster), matrix, lambda _job, _uid, _hosts: JobValues())
        return read_run(cluster.store, matrix.name, matrix.run).cells[0].jobs[0].problem

    assert reason() == "worker 1 exited with code 69"
    lines = b"%s stderr F torch is not installed\x1b[2J\n%s stderr F \n%s stdout F bye\n"
    at = b"2027-01-15T08:00:30.000000Z"
    cluster.run_keys.write_segment(cluster.store, job, run, 1, 1, lines % (at, at, at))
    cluster.run_keys.write_segment(cluster.store, job, run, 0, 1, at + b" stderr F stopped\n")
    assert reason() == "worker 1 exited with code 69; its last line: torch is not installed\\x1b[2J"


def test_a_reason_that_is_known_has_no_advice_about_the_results_file(cluster: Cluster) -> None:
    matrix = submitted(cluster)
    end_all(cluster, matrix)
    collect(client_of(cluster), matrix, lambda _job, _uid, _hosts: JobValues(problems=("host 0 is not readable",)))
    job = read_run(cluster.store, matrix.name, matrix.run).cells[0].jobs[0]
    assert job.problem == "host 0 is not readable; no value of seconds"


def test_a_single_job_is_told_as_one(cluster: Cluster) -> None:
    one = (("repeats = 3", "repeats = 1"), ("[1024, 4096]", "[1024]"), ('["tpu-v4-8", "tpu-v4-16"]', '["tpu-v4-8"]'))
    file = benchmark(*one, ("exclude =", "# "))
    submission = Submission(client_of(cluster), file, PLACE, None)
    submission.submit()
    said = drive(cluster, Begin(client_of(cluster), submission.matrix, [], Lines()))[1]
    assert said[0] == "the only job is submitted"


def test_collecting_again_writes_the_same_bytes(cluster: Cluster) -> None:
    matrix = submitted(cluster)
    end_all(cluster, matrix)
    collect(client_of(cluster), matrix, lambda _job, _uid, _hosts: JobValues())
    prefix = layout.cells(matrix.name, matrix.run)
    before = {meta.key: meta.generation for meta in cluster.store.list(prefix)}
    collect(client_of(cluster), matrix, lambda _job, _uid, _hosts: JobValues())
    assert {meta.key: meta.generation for meta in cluster.store.list(prefix)} == before


@pytest.mark.parametrize(
    ("error", "told"), [(Refused("no matplotlib"), "no matplotlib"), (OverflowError("inf"), "OverflowError: inf")]
)
def test_a_report_that_cannot_be_written_is_told_and_the_tear_down_is_not_repeated(
    cluster: Cluster, error: Exception, told: str
) -> None:
    matrix = submitted(cluster)
    end_all(cluster, matrix)

    def report() -> None:
        raise error

    finish = Finish(
        client_of(cluster),
        matrix,
        [],
        Lines(),
        try_number=1,
        read_values=lambda _job, _uid, _hosts: JobValues(),
        report=report,
    )
    code, said = drive(cluster, finish)
    assert code == 0
    assert said[-1].startswith(f"there is no report: {told}; write it elsewhere: bastion benchmark report matmul/")
