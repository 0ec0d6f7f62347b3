"""Past jobs for a replay keep what they awaited, by the names that the replay gives them."""

from __future__ import annotations

import json

from bastion.client.jobs.durations import past_jobs
from bastion.client.jobs.results import Result, read_result
from bastion.core.instants import to_rfc3339
from scheduler import Job
from scheduler.simulation.durations import Durations
from tests.support.job_specs import new_spec


def ended(name: str, uid: str, *after: str, queued: float) -> Result:
    spec = new_spec(
        name,
        bastion="x-bastion",
        command="x",
        user_id="alice",
        project_id="a",
        now=queued,
        after=[{"job": "any", "uid": each, "on": "ended"} for each in after] or None,
    )
    attempt = {
        "number": 1,
        "started_at": to_rfc3339(queued + 5),
        "ended_at": to_rfc3339(queued + 65),
        "cause": "failed",
    }
    result = {"uid": uid, "outcome": "failed", "queued_at": to_rfc3339(queued), "attempts": [attempt]}
    return read_result(json.dumps({**json.loads(spec.to_bytes()), "result": result}).encode(), name=name)


def test_namesakes_are_told_apart_and_unknown_jobs_are_not_awaited() -> None:
    results = [
        ended("job", "aaaaaaaaaa", queued=0.0),
        ended("job", "bbbbbbbbbb", "aaaaaaaaaa", queued=100.0),
        ended("last", "cccccccccc", "bbbbbbbbbb", "dddddddddd", queued=200.0),
    ]
    live = Job(name="live", project_id="a", user_id="alice", queued_at=300.0, after=("other",))
    found = past_jobs(results, [live], Durations((), {"live": 60.0}), 400.0)
    after = {past.job.name: past.job.after for past in found}
    assert after == {"job": (), "job.bbbbbbbbbb": ("job",), "last": ("job.bbbbbbbbbb",), "live": ("other",)}
