"""Limits of a job on the command line: `launch --max_run`, and what `why` says of them."""

from __future__ import annotations

import json

import pytest

from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.instants import from_rfc3339
from bastion.testing.scripted_hosts import runs_for


def document(bastion, name: str = "job") -> dict:
    return documents.loads(bastion.store.get(keys.active(name)).data)


@pytest.mark.parametrize("flags", [("--instance_type=tpu-v4-8",), ()])
def test_the_time_that_a_job_may_run_is_in_its_spec(run, bastion, flags: tuple[str, ...]) -> None:
    done = run("launch", "--name=job", *flags, "--max_run=2h", "--dry_run", "--output=json", "--", "true")
    assert (done.code, json.loads(done.out)["spec"]["limits"]) == (0, {"max_run_seconds": 7200})


def test_without_limits_the_spec_has_none(run, bastion) -> None:
    run("launch", "--name=job", "--", "true", code=0)
    assert "limits" not in document(bastion)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("soon", "--max_run=soon is not a valid duration; write it like 45m or 2h, up to 366d"),
        ("-1h", "--max_run=-1h is not a valid duration"),
        ("0s", "--max_run=0s is not a valid duration"),
        ("nan", "--max_run=nan is not a valid duration"),
        ("367d", "--max_run=367d is not a valid duration"),
        ("", "--max_run is empty; give it a value or leave it out"),
    ],
)
def test_a_time_that_is_no_duration_is_refused(run, bastion, value: str, said: str) -> None:
    assert said in run("launch", "--name=job", f"--max_run={value}", "--", "true", code=64).err
    assert bastion.store.head(keys.active("job")) is None


def test_why_says_how_much_is_left(run, bastion) -> None:
    bastion.settle(2)
    run("launch", "--name=job", "--instance_type=tpu-v4-64", "--max_run=2h", "--", "true", code=0)
    run("launch", "--name=later", "--instance_type=tpu-v4-64", "--max_run=90s", "--", "true", code=0)
    bastion.settle(5)
    bastion.clock.advance(1800)
    assert "  may hold its slices for 2h (--max_run); 1h29m left\n" in run("why", "job").out
    assert "  may hold its slices for 1m30s (--max_run); 1m left\n" in run("why", "later").out
    told = json.loads(run("why", "later", "--output=json").out)["eta"]
    attempt = bastion.record("job").attempt
    assert from_rfc3339(told["p50"]) == pytest.approx(attempt.running_since + 7200, abs=5)
    assert told["from_declared_durations"] == 0


def test_the_published_expected_duration_never_exceeds_the_limit(run, bastion) -> None:
    flags = ("--instance_type=tpu-v4-8", "--expected_duration=3h", "--max_run=2h")
    run("launch", "--name=job", *flags, "--", "true", code=0)
    bastion.settle(3)
    [entry] = bastion.json(keys.STATUS)["jobs"]
    assert (entry["expected_duration_seconds"], document(bastion)["runner"]["expected_duration_seconds"]) == (
        7200,
        10800,
    )


def test_an_unknown_limit_in_a_spec_is_told(run, bastion, tmp_path) -> None:
    run("launch", "--name=job", "--max_run=2h", "--", "true", code=0)
    spec = document(bastion)
    spec["limits"]["max_runs_seconds"] = 5
    spec["name"] = "other"
    path = tmp_path / "other.json"
    path.write_text(json.dumps(spec))
    done = run("submit", f"--spec={path}", code=0)
    expected = "limits.max_runs_seconds means nothing to this version, and is ignored; did you mean max_run_seconds?"
    assert expected in done.err


def test_why_says_that_the_cleanup_command_failed(run, bastion) -> None:
    bastion.hosts.scripts["job"] = runs_for(1, code=0)
    bastion.submit("job")
    bastion.run_until(lambda: bastion.result("job"))
    key = keys.complete("job")
    stored = bastion.store.get(key)
    document = documents.loads(stored.data)
    document["result"]["cleanup"] = {"tries": 3, "outcome": "failed", "exit_code": 64, "message": "exit code 64"}
    bastion.store.put(key, documents.dumps(document), generation=stored.meta.generation)
    said = "  its cleanup command failed 3 times: exit code 64 (bastion logs --attempt=0 job)"
    assert said in run("why", "job", code=0).out.splitlines()
