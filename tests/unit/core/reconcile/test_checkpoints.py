"""From hosts' reports to what the scheduler knows of a job's saved work."""

from __future__ import annotations

import json

import pytest

from bastion.core import documents
from bastion.core.bucket import protocol
from bastion.core.bucket.protocol import HostPhase, Report
from bastion.core.instants import to_rfc3339
from bastion.core.model.job_record import Attempt, Cause, JobRecord, PastAttempt, read
from bastion.core.model.lifecycle import Status
from bastion.core.model.world import JobView, RunView
from bastion.core.reconcile.checkpoints import saved_until
from bastion.core.reconcile.scheduling_view import SchedulingView
from bastion.core.status.build import job_entry
from bastion.core.status.document import JobEntry, StatusDocument
from bastion.core.status.jobs import published_jobs
from scheduler import Job
from tests.support.job_specs import new_spec

# The bastion's clock, and those of the hosts, each of which is wrong in its own way.
BEGAN = 1_800_000_000.0
HOSTS_CLOCK = (0.0, 86400.0, 1_900_000_000.0)

RUNNING = Attempt(number=1, token="t", started_at=BEGAN - 60, running_since=BEGAN, charged={"v4": 8})


def report(host: int, saved: float | None, *, started: str | None = None) -> Report:
    """A host's report whose command saved so many seconds after its start."""
    clock = HOSTS_CLOCK[host]
    return Report(
        run="abcdefghij-1",
        host=host,
        token="t",
        phase=HostPhase.RUNNING,
        started_at=to_rfc3339(clock) if started is None else started,
        checkpointed_at="" if saved is None else to_rfc3339(clock + saved),
    )


def view(*reports: Report, written: float = BEGAN + 10_000) -> RunView:
    return RunView(reports={r.host: r for r in reports}, reported_at={r.host: written for r in reports})


def record(*past: PastAttempt, attempt: Attempt | None = None) -> JobRecord:
    spec = new_spec(
        bastion="t-bastion", command="x", user_id="alice", project_id="a", now=BEGAN, instance_type="tpu-v4-8"
    )
    return JobRecord(
        status=Status.ACTIVE if attempt else Status.PENDING,
        name="job",
        uid="abcdefghij",
        generation=1,
        job=spec,
        queued_at=BEGAN - 100,
        attempts=past,
        attempt=attempt,
        next_attempt=9,
    )


def past(number: int, cause: Cause, saved_at: float | None = None) -> PastAttempt:
    return PastAttempt(
        number=number, started_at=BEGAN, ended_at=BEGAN + 100, cause=cause, message="m", checkpointed_at=saved_at
    )


def scheduled(of: JobRecord, run: RunView | None = None) -> Job:
    (job,) = SchedulingView().snapshot({"job": JobView(name="job", record=of, attempt=run or RunView())}, None).jobs
    return job


def test_a_report_carries_the_checkpoint_and_one_of_an_older_agent_has_none() -> None:
    told = report(0, 50.0)
    assert protocol.read(Report, told.to_bytes()) == told
    older = json.loads(told.to_bytes())
    del older["checkpointed_at"]
    assert protocol.read(Report, documents.dumps(older)).checkpointed_at == ""


def test_the_earliest_of_the_hosts_checkpoints_counts_whatever_their_clocks_say() -> None:
    assert saved_until(RUNNING, view(report(0, 500.0), report(1, 400.0), report(2, 450.0))) == BEGAN + 400


def test_hosts_that_never_save_do_not_count() -> None:
    assert saved_until(RUNNING, view(report(0, 500.0), report(1, None), report(2, None))) == BEGAN + 500
    assert saved_until(RUNNING, view(report(0, None), report(1, None))) is None
    assert saved_until(RUNNING, RunView()) is None


def test_no_checkpoint_is_later_than_its_report_or_earlier_than_the_command() -> None:
    assert saved_until(RUNNING, view(report(0, 1e9), written=BEGAN + 70)) == BEGAN + 70
    assert saved_until(RUNNING, view(report(1, -5000.0))) == BEGAN


@pytest.mark.parametrize("started", ["", "yesterday", "2026-01-01T00:00:00", "0001-01-01T00:00:00+23:59"])
def test_a_report_that_no_host_writes_harms_nobody(started: str) -> None:
    odd = report(0, 100.0, started=started)
    known = saved_until(RUNNING, view(odd, report(1, 200.0)))
    assert known == BEGAN + 200
    assert saved_until(RUNNING, view(odd, written=BEGAN + 300)) in (None, BEGAN + 300)


def test_the_scheduler_knows_the_checkpoint_of_a_running_job_only() -> None:
    run = view(report(0, 500.0))
    assert scheduled(record(attempt=RUNNING), run).checkpointed_at == BEGAN + 500
    assert scheduled(record(past(1, Cause.EVICTED, BEGAN + 50)), run).checkpointed_at is None


def test_the_published_status_tells_the_checkpoint_and_moves_it_once_for_all_hosts() -> None:
    of = record(attempt=RUNNING)

    def entry(*saved: float, before: JobEntry | None = None) -> JobEntry:
        reports = [report(host, seconds) for host, seconds in enumerate(saved)]
        return job_entry(of, JobView(name="job", record=of, attempt=view(*reports)), None, before=before)

    assert "checkpointed_at" not in entry().model_dump()
    first = entry(600.0, 602.0)
    assert published_jobs(StatusDocument(jobs=(first,)))[0].checkpointed_at == BEGAN + 600
    # The first host has saved again, the second has not told yet.
    assert entry(1200.0, 602.0, before=first) == first
    second = entry(1200.0, 1202.0, before=first)
    assert second.checkpointed_at == BEGAN + 1200
    assert entry(600.0, 602.0, before=second.model_copy(update={"uid": "another"})) == first


@pytest.mark.parametrize(
    ("attempts", "futile"),
    [
        pytest.param([past(1, Cause.EVICTED), past(2, Cause.EVICTED)], 2, id="nothing known"),
        pytest.param([past(1, Cause.EVICTED), past(2, Cause.EVICTED, BEGAN + 9)], 0, id="the last one saved"),
        pytest.param([past(1, Cause.EVICTED, BEGAN + 9), past(2, Cause.EVICTED)], 1, id="the last one did not"),
        pytest.param([past(1, Cause.EVICTED), past(2, Cause.INFRASTRUCTURE), past(3, Cause.EVICTED)], 1, id="lost"),
    ],
)
def test_only_evictions_in_a_row_that_saved_nothing_are_futile(attempts: list[PastAttempt], futile: int) -> None:
    of = record(*attempts)
    assert scheduled(of).futile_evictions == futile
    assert scheduled(of).evictions == sum(attempt.cause is Cause.EVICTED for attempt in attempts)
    again = read(of.to_bytes(), name="job")
    assert isinstance(again, JobRecord)
    assert again == of
    assert scheduled(again).futile_evictions == futile


def test_a_record_of_an_older_daemon_says_nothing_of_checkpoints() -> None:
    document = json.loads(record(past(1, Cause.EVICTED, BEGAN + 9)).to_bytes())
    attempts = document["metadata"]["record"]["attempts"]
    assert attempts[0].pop("checkpointed_at") == to_rfc3339(BEGAN + 9)
    older = read(documents.dumps(document), name="job")
    assert isinstance(older, JobRecord)
    assert older.attempts[0].checkpointed_at is None
    assert scheduled(older).futile_evictions == 1
