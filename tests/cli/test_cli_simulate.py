"""`bastion simulate decide`, `replay` and `bench`, from files to what they print."""

from __future__ import annotations

import gzip
import importlib.util
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

QUOTA = b"""
[toml-schema]
version = "1"
[total_resources]
v4 = 64
[project_membership]
[project_resources]
a = { v4 = 1 }
b = { v4 = 1 }
"""

# A borrower of the whole pool, an owner who comes in the middle, and somebody without a quota.
TRACE = """job_id,project,user,submit_s,duration_s,chips
a1,a,,0,3600,64
b1,b,,900,1800,32
x1,x,,900,1800,32
"""

YARDSTICKS = [
    "eff",
    "share_deficit_total",
    "share_deficit_worst",
    "owner_return_max_s",
    "in_quota_evictions",
    "preemptions",
    "waste_fraction",
    "livelocked_jobs",
    "max_preemptions",
    "wait_mean_s",
    "wait_p95_s",
    "wait_max_s",
    "never_entitled_wait_max_s",
    "bounded_slowdown_mean",
    "rho_violation_fraction",
    "decision_ms_p50",
    "decision_ms_max",
]


@pytest.fixture
def quota(tmp_path: Path) -> str:
    path = tmp_path / "quotas.config"
    path.write_bytes(QUOTA)
    return f"--quota={path}"


@pytest.fixture
def trace(tmp_path: Path) -> str:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    return f"--trace={path}"


def job(name: str, project: str = "a", units: int = 32, **fields: Any) -> dict[str, Any]:
    return {
        "name": name,
        "project_id": project,
        "user_id": "alice",
        "creation_time": 1_000,
        "priority": 3,
        "resources": {"v4": units},
        "status": "PENDING",
        **fields,
    }


ELASTIC = {"min_replicas": 1, "max_replicas": 4, "resources_per_replica": {"v4": 8}}


@pytest.fixture
def decide(run, quota, tmp_path):
    """Decides about jobs, or about whatever else is in the file."""

    def deciding(jobs: object, *flags: str):
        path = tmp_path / "jobs.json"
        path.write_text(jobs if isinstance(jobs, str) else json.dumps(jobs))
        return run("simulate", "decide", quota, f"--jobs={path}", *flags)

    return deciding


# -- decide ------------------------------------------------------------------------------------------------------------


def test_a_decision_tells_who_runs_who_goes_and_who_waits_for_what(decide) -> None:
    jobs = [
        job("big", "b", 65),
        job("own", "b", 32, creation_time="1970-01-01T00:20:00Z"),
        job("borrower", "a", 32, status="ACTIVE", tier=0),
        job("older", "a", 32, status="ACTIVE", creation_time=900),
    ]
    done = decide(jobs, "--output=json")
    assert done.code == 0
    document = json.loads(done.out)
    told = {decision["name"]: decision for decision in document["decisions"]}
    assert [decision["name"] for decision in document["decisions"][:2]] == ["older", "borrower"]
    runs = [name for name, decision in told.items() if decision["run"]]
    assert len(runs) == 1 and runs[0] in ("borrower", "older")
    (evicted,) = [name for name, decision in told.items() if decision["verdict"] == "evict"]
    assert told[evicted]["evicted_for"] == "own"
    assert told["own"]["reason"] == "WaitingForPreempted"
    assert told["own"]["position"] == 1
    assert (told["big"]["reason"], told["big"]["run"], told["big"]["tier"]) == ("ExceedsPool", False, None)
    assert "needs 65 v4" in told["big"]["message"]
    assert document["projects"]["a"]["entitlement"] == {"v4": 32}
    assert document["projects"]["a"]["usage"] == {"v4": 64}
    assert document["pool"]["v4"]["total"] == 64


def test_a_job_that_fits_starts_and_membership_is_not_checked(decide) -> None:
    document = json.loads(decide([job("x", user_id="stranger")], "--output=json").out)
    (decision,) = document["decisions"]
    assert (decision["run"], decision["tier"], decision["verdict"], decision["reason"]) == (True, 0, "start", None)
    assert document["projects"]["a"]["usage"] == {"v4": 32}


def test_without_json_a_table_tells_the_same(decide) -> None:
    done = decide([job("x"), job("y", "b", 65)])
    assert done.code == 0
    assert "x    start    0" in done.out
    assert "ExceedsPool: needs 65 v4" in done.out
    assert "PROJECT  TYPE  USAGE  ENTITLEMENT  DEMAND" in done.out
    evicting = decide([job("x", status="ACTIVE", units=64), job("y", "b")])
    assert "frees capacity for y" in evicting.out


def test_the_order_of_the_file_changes_nothing(decide) -> None:
    jobs = [job(f"j{number}", "ab"[number % 2], 8 * (1 + number % 3), creation_time=number) for number in range(12)]
    assert decide(jobs, "--output=json").out == decide(jobs[::-1], "--output=json").out


def test_it_decides_at_the_newest_instant_or_when_it_is_told_to(decide) -> None:
    assert decide([]).code == 0
    jobs = [job("x", status="ACTIVE", started_at=5_000)]
    for now in ("6000", "1970-01-02T00:00:00Z", "1970-01-02T00:00:00+01:00"):
        assert decide(jobs, f"--now={now}").code == 0
    done = decide(jobs, "--now=noon")
    assert done.code == 64
    assert "--now=noon is not a valid time; use seconds since 1970" in done.err


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ("[", "the jobs are not valid JSON"),
        ("[" * 100_000, "the jobs are not valid JSON"),
        ({}, "the jobs are an object; they must be a list"),
        ([job("x"), 3], "jobs[1] is a number; it must be an object with name, project_id"),
        ([job("x"), None], "jobs[1] is null"),
        ([job("x"), {"name": "y", "project": "a"}], "jobs[1].project_id is missing; did you mean project?"),
        ([job("x"), job("x")], 'jobs[1].name is "x", like jobs[0]'),
        ([job("")], 'jobs[0].name is ""; it must be a non-empty string'),
        ([job("x", project_id=7)], "jobs[0].project_id is 7; it must be a non-empty string"),
        ([job("x", creation_time="soon")], 'jobs[0].creation_time is "soon"; it must be seconds since 1970'),
        ([job("x", creation_time=True)], "jobs[0].creation_time is true"),
        ([job("x", creation_time=-1)], "jobs[0].creation_time is -1"),
        ([job("x", creation_time=1e300)], "jobs[0].creation_time is 1e+300"),
        ('[{"name": "x", "project_id": "a", "user_id": "u", "creation_time": NaN, "resources": {}}]', "is nan"),
        ([job("x", creation_time="2026-13-02T03:04:05")], "it must be seconds since 1970"),
        ([job("x", status="RUNNING")], 'jobs[0].status is "RUNNING"; it must be PENDING or ACTIVE'),
        ([job("x", status=[])], "jobs[0].status is []"),
        ([job("x", priority=6)], "jobs[0].priority is 6; it must be a whole number from 1 to 5"),
        ([job("x", priority=True)], "jobs[0].priority is true"),
        ([job("x", resources=[])], "jobs[0].resources is []; it must be units by resource type"),
        ([job("x", units=-1)], 'jobs[0].resources["v4"] is -1; it must be a whole number of units'),
        ([job("x", units="8" * 99)], 'jobs[0].resources["v4"] is "888'),
        ([job("x", tier=0)], "jobs[0].tier is 0; it applies only to an ACTIVE job"),
        ([job("x", tier=-1, status="ACTIVE")], "jobs[0].tier is -1; it must be a whole number from 0"),
        ([job("x", started_at="?", status="ACTIVE")], 'jobs[0].started_at is "?"'),
        ([job("x", scaling_specs={})], "jobs[0].scaling_specs is {}; it must be a list"),
        ([job("x", scaling_specs=[3])], "jobs[0].scaling_specs[0] is a number; it must have min_replicas"),
        ([job("x", scaling_specs=[ELASTIC | {"max_replicas": 0}])], "min_replicas 1 and max_replicas 0; they must be"),
        (
            [job("x", scaling_specs=[ELASTIC | {"resources_per_replica": 8}])],
            "resources_per_replica is 8; it must be units",
        ),
        ([job("x", replicas=[1])], "jobs[0].replicas is [1]; it applies only with scaling_specs"),
        ([job("x", scaling_specs=[ELASTIC], replicas=[1])], "it applies only to an ACTIVE job"),
        ([job("x", scaling_specs=[ELASTIC], replicas=[], status="ACTIVE")], "it must have one number for each"),
        ([job("x", scaling_specs=[ELASTIC], replicas=[5], status="ACTIVE")], "from min_replicas to max_replicas"),
    ],
)
def test_bad_jobs_are_refused_by_index_and_field(decide, jobs: object, message: str) -> None:
    done = decide(jobs, "--output=json")
    assert done.code == 64
    assert message in done.err
    assert done.err.count("\n") == 1
    assert done.out == ""


@pytest.mark.parametrize(
    "created",
    [1_700_000_000, "1700000000", "2023-11-14T22:13:20Z", "2023-11-14T22:13:20", "2023-11-14 22:13:20.000000"],
)
def test_instants_are_seconds_or_iso_texts_in_utc(decide, created: object) -> None:
    blocked = decide([job("x", "b", 65, creation_time=created)], "--output=json")
    assert blocked.code == 0
    assert decide([job("x", creation_time=1_600_000_000)], f"--now={created}").code == 0
    first = json.loads(
        decide([job("x", creation_time=created), job("y", creation_time=1_700_000_001)], "--output=json").out
    )
    assert [decision["name"] for decision in first["decisions"]] == ["x", "y"]


def test_an_elastic_job_gets_what_is_idle_and_gives_it_back_before_anybody_is_stopped(decide) -> None:
    waiting = [job("x", scaling_specs=[ELASTIC], units=0), job("y", "b", 16)]
    document = json.loads(decide(waiting, "--output=json").out)
    told = {decision["name"]: decision for decision in document["decisions"]}
    assert (told["x"]["run"], told["x"]["replicas"], told["x"]["extra_replicas"]) == (True, [4], [3])
    assert not {"replicas", "extra_replicas"} & told["y"].keys()
    assert document["projects"]["a"]["usage"] == {"v4": 32}
    active = [
        job("x", scaling_specs=[ELASTIC], replicas=[4], status="ACTIVE"),
        job("r", status="ACTIVE"),
        job("y", "b", 8),
    ]
    told = {decision["name"]: decision for decision in json.loads(decide(active, "--output=json").out)["decisions"]}
    assert (told["x"]["verdict"], told["x"]["run"], told["x"]["evicted_for"]) == ("resize", True, "y")
    assert (told["x"]["replicas"], told["x"]["extra_replicas"]) == ([3], [2])
    assert told["r"]["verdict"] == "keep"
    assert "returns extra replicas for y of project b; extra replicas: 2" in decide(active).out


def test_the_replicas_of_a_decision_are_those_of_the_next_file(decide) -> None:
    scaling = [ELASTIC | {"min_replicas": 2}, ELASTIC | {"max_replicas": 2}]
    (first,) = json.loads(decide([job("x", scaling_specs=scaling)], "--output=json").out)["decisions"]
    assert (first["replicas"], first["extra_replicas"]) == ([4, 2], [2, 1])
    running = job("x", scaling_specs=scaling, replicas=first["replicas"], status="ACTIVE")
    (second,) = json.loads(decide([running], "--output=json").out)["decisions"]
    assert (second["verdict"], second["replicas"]) == ("keep", first["replicas"])


def test_what_is_optional_may_be_missing_and_what_is_unknown_is_told(decide) -> None:
    bare = {name: value for name, value in job("x").items() if name not in ("priority", "status")}
    done = decide([{**bare, "tier": None, "started_at": 5, "color": "red\x1b"}], "--output=json")
    assert done.code == 0
    assert done.err == "bastion: note: ignoring unknown fields of jobs: color\n"
    assert json.loads(done.out)["decisions"][0]["run"] is True


def test_a_job_that_awaits_others_does_not_start_until_the_list_is_empty(decide) -> None:
    first, second = job("x"), job("y", after=["x"])
    told = {one["name"]: one for one in json.loads(decide([first, second], "--output=json").out)["decisions"]}
    assert (told["x"]["run"], told["y"]["run"]) == (True, False)
    assert "y" in decide([first, second]).out and "starts after x" in decide([first, second]).out
    (alone,) = json.loads(decide([job("y", after=[])], "--output=json").out)["decisions"]
    assert alone["run"] is True
    for wrong in ("x", [1], [""]):
        assert "it must be a list of names of jobs that it awaits" in decide([job("y", after=wrong)]).err
    assert "it applies only to a PENDING job" in decide([job("y", after=["x"], status="ACTIVE")]).err


def test_both_files_are_needed_and_one_of_them_may_be_stdin(run, quota, monkeypatch, tmp_path) -> None:
    assert run("simulate", "decide", quota).code == 64
    assert "requires both files" in run("simulate", "decide", "--jobs=x").err
    assert run("simulate", "decide", "--quota=-", "--jobs=-").code == 64
    assert "cannot read the jobs" in run("simulate", "decide", quota, "--jobs=nowhere.json").err
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(json.dumps([job("x")]).encode())))
    assert json.loads(run("simulate", "decide", quota, "--jobs=-", "--output=json").out)["decisions"]
    broken = tmp_path / "broken.config"
    broken.write_bytes(b"x")
    done = run("simulate", "decide", f"--quota={broken}", "--jobs=jobs.json", "--output=json", code=64)
    assert json.loads(done.out)["valid"] is False


def test_too_many_bytes_of_jobs_are_refused(decide, monkeypatch) -> None:
    from bastion.cli.simulate import decide as simulate_decide

    monkeypatch.setattr(simulate_decide, "_JOBS_MAX_BYTES", 100)
    assert "longer than 100 bytes" in decide([job("x")]).err


# -- replay ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["bastion", "greedy", "fifo", "static"])
def test_every_policy_is_measured_by_the_same_yardsticks(run, quota, trace, policy: str) -> None:
    done = run("simulate", "replay", quota, trace, "--days=1", f"--policy={policy}", "--output=json", code=0)
    document = json.loads(done.out)
    assert list(document)[: len(YARDSTICKS)] == YARDSTICKS
    assert document["policy"] == policy
    assert document["pool"] == 64 and document["entitlements"] == {"a": 32, "b": 32}
    assert document["jobs_without_quota"] == 1
    assert "jobs of projects without a quota, in the whole trace, left out: 1" in done.err
    if policy in ("bastion", "greedy"):
        assert document["wait_max_s"] == 0.0 and document["preemptions"] == 1
    if policy == "fifo":
        assert document["wait_max_s"] == 2700.0 and document["preemptions"] == 0
    if policy == "static":
        assert (document["jobs"], document["jobs_larger_than_quota"]) == (1, 1)
        assert "larger than their project's private quota, left out: 1" in done.err


def test_the_load_sets_the_pool_and_gzip_is_read(run, quota, tmp_path) -> None:
    path = tmp_path / "trace.csv.gz"
    path.write_bytes(gzip.compress(TRACE.encode()))
    hours = ["--days=0.041666667", "--policy=fifo", "--output=json"]
    done = run("simulate", "replay", quota, f"--trace={path}", *hours, "--load=1.25")
    # a1 asks for 64 and b1 for half of 32 chips, all the hour.
    assert json.loads(done.out)["pool"] == 64
    half = json.loads(run("simulate", "replay", quota, f"--trace={path}", *hours, "--load=2.5").out)
    assert (half["pool"], half["jobs"], half["jobs_larger_than_pool"]) == (32, 1, 1)


def test_jobs_larger_than_the_pool_are_left_out_and_told(run, quota, trace) -> None:
    flags = ["--days=0.041666667", "--policy=greedy", "--output=json"]
    done = run("simulate", "replay", quota, trace, *flags, "--load=2.5", code=0)
    assert json.loads(done.out)["jobs_larger_than_pool"] == 1
    assert "jobs larger than the pool of 32 chips, left out: 1" in done.err
    assert "every job of these days needs more" in run("simulate", "replay", quota, trace, *flags, "--load=100").err


def test_replicates_are_told_as_means_and_the_same_again_by_two_processes(run, quota, trace) -> None:
    flags = ["--days=1", "--replicates=3", "--policy=fifo", "--output=json"]
    done = run("simulate", "replay", quota, trace, *flags)
    document = json.loads(done.out)
    waits = [one["wait_mean_s"] for one in document["replicates"]]
    assert waits[0] == 1350.0 and len(set(waits)) == 3
    assert document["wait_mean_s"] == pytest.approx(sum(waits) / 3)
    assert document["sd"]["wait_mean_s"] > 0
    assert "replayed 3 of 3" in done.err
    again = json.loads(run("simulate", "replay", quota, trace, *flags, "--processes=2").out)
    for one in (document, again):
        for name in [name for name in one if name in ("sd", "replicates") or name.startswith("decision_ms")]:
            del one[name]
    assert again == document
    other = json.loads(run("simulate", "replay", quota, trace, *flags, "--seed=2").out)
    assert other["wait_mean_s"] != document["wait_mean_s"]


def test_without_json_a_summary_and_a_chart_are_shown(run, quota, trace) -> None:
    done = run("simulate", "replay", quota, trace, "--days=0.1", "--checkpoint_interval=0", code=0)
    assert "bastion on days 0 to 0.1, the pool of the quota file: 2 jobs, 64 chips, a tick every 30s" in done.out
    assert "no checkpoints" in done.out
    assert "Evictions: 1, at most 1 of one job; 0 jobs three times" in done.out
    assert "█" in done.out and "the pool" in done.out
    several = run("simulate", "replay", quota, trace, "--days=0.1", "--replicates=2", "--load=0.9")
    assert "MEAN OF 2" in several.out and "load 0.9" in several.out
    assert "wait_mean_s" in several.out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"job_id,project\n", "the trace has no column submit_s, duration_s, chips"),
        (b"job_id,project,submit_s,duration_s,chips\nj,a,0,0,1\n", "line 2 of the trace"),
        (b"job_id,project,submit_s,duration_s,chips\nj,x,0,1,1\n", "no job of a project with a share"),
        (b"\xff\xfe", "cannot use the trace"),
        (b"\x1f\x8b\x08\x00", "cannot use the trace"),
        (gzip.compress(b"a,b\n" * 1000, mtime=0)[:-20], "cannot use the trace"),
        (b'job_id,project,submit_s,duration_s,chips\n"' + b"x" * 200_000, "bad.csv: field larger"),
    ],
)
def test_a_trace_that_cannot_be_used_is_refused(run, quota, tmp_path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(content)
    done = run("simulate", "replay", quota, f"--trace={path}", "--days=1", "--output=json", code=64)
    assert message in done.err and "bad.csv" in done.err
    assert done.out == ""


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
def test_too_many_bytes_of_a_trace_are_refused(run, quota, tmp_path, monkeypatch, packed: bool) -> None:
    from bastion.cli.simulate import runs as simulate_runs

    monkeypatch.setattr(simulate_runs, "_TRACE_MAX_BYTES", 1000)
    path = tmp_path / "large.csv"
    path.write_bytes(gzip.compress(b"\n" * 2000, mtime=0) if packed else b"\n" * 2000)
    assert "large.csv is longer than 1000 bytes" in run("simulate", "replay", quota, f"--trace={path}").err


def test_a_replay_that_cannot_be_is_refused(run, quota, trace, tmp_path) -> None:
    assert "requires both files" in run("simulate", "replay", quota).err
    assert run("simulate", "replay", "--quota=-", "--trace=-").code == 64
    assert run("simulate", "replay", quota, "--trace=-", "--replicates=2").code == 64
    assert run("simulate", "replay", quota, "--trace=nowhere.csv").code == 64
    assert "--tick=nan is not a number" in run("simulate", "replay", quota, trace, "--tick=nan").err
    assert "--days=inf is not a number" in run("simulate", "replay", quota, trace, "--days=inf").err
    assert "not a number in the range" in run("simulate", "replay", quota, trace, "--load=1e-9").err
    assert (
        "or 0 for jobs without checkpoints" in run("simulate", "replay", quota, trace, "--checkpoint_interval=1e-9").err
    )
    two = tmp_path / "two.config"
    two.write_bytes(QUOTA.replace(b"v4 = 64", b"v4 = 64\nv5e = 8"))
    assert "2 resource types: v4, v5e" in run("simulate", "replay", f"--quota={two}", trace).err
    two.write_bytes(b"")
    done = run("simulate", "replay", f"--quota={two}", trace, "--output=json")
    assert done.code == 64 and json.loads(done.out)["valid"] is False


@pytest.mark.parametrize(
    "flag", ["restart_overhead", "checkpoint_interval", "jitter", "tick", "load", "days", "start_day"]
)
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("nan", "is not a number"),
        ("inf", "is not a number"),
        ("1e999", "is not a number"),
        ("-1", "is not a number in the range ["),
        ("1e300", "is not a number in the range ["),
    ],
    ids=["nan", "inf", "1e999", "negative", "1e300"],
)
def test_numbers_that_no_replay_has_are_refused_by_flag_and_range(run, quota, trace, flag, value, problem) -> None:
    done = run("simulate", "replay", quota, trace, f"--{flag}={value}", "--output=json")
    assert (done.code, done.out, done.err.count("\n")) == (64, "", 1)
    assert f"--{flag}={value}" in done.err and problem in done.err


def test_a_trace_may_come_from_stdin(run, quota, monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(TRACE.encode())))
    assert json.loads(run("simulate", "replay", quota, "--trace=-", "--policy=fifo", "--output=json").out)["jobs"] == 2


def test_a_picture_is_drawn_or_it_is_told_before_the_replay_what_is_missing(run, quota, trace, tmp_path) -> None:
    assert "must be the name of a .png file" in run("simulate", "replay", quota, trace, "--plot=x.gif").err
    assert "no such folder:" in run("simulate", "replay", quota, trace, "--plot=nowhere/x.png").err
    picture = tmp_path / "shares.png"
    done = run("simulate", "replay", quota, trace, f"--plot={picture}", "--days=0.1", "--policy=fifo")
    if importlib.util.find_spec("matplotlib") is None:
        assert done.code == 64
        assert "pip install 'bastion[plot]'" in done.err
    else:
        assert done.code == 0
        assert picture.read_bytes().startswith(b"\x89PNG")


# -- bench -------------------------------------------------------------------------------------------------------------


def test_the_bench_makes_chains_whose_jobs_follow_one_another(run) -> None:
    sizes = ["--jobs=60", "--projects=2", "--running=40", "--decisions=20", "--chain=7"]
    assert json.loads(run("simulate", "bench", *sizes, "--output=json").out)["chain"] == 7


def test_the_bench_tells_times_and_memory(run) -> None:
    sizes = ["--jobs=300", "--projects=4", "--running=40", "--decisions=6"]
    document = json.loads(run("simulate", "bench", *sizes, "--output=json").out)
    assert 0 < document["decision_ms_p50"] <= document["decision_ms_p99"] <= document["decision_ms_max"]
    assert document["cold_ms"] > 0 and document["peak_rss_mb"] > 0
    assert 100 < document["bytes_per_pending_job"] < 20_000
    assert document["decisions"] == 6
    assert "decision_ms_p99" in run("simulate", "bench", *sizes, "--seconds=0").out


def test_a_bench_of_nobody_waiting_is_one_too(run) -> None:
    sizes = ["--jobs=0", "--projects=1", "--running=0", "--decisions=2"]
    assert json.loads(run("simulate", "bench", *sizes, "--output=json").out)["bytes_per_pending_job"] == 0
