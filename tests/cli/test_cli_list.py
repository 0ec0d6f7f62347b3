"""`bastion list`: which jobs, in what order, and how they look on a terminal, in a pipe and in a spreadsheet."""

from __future__ import annotations

import csv
import io
import json

import pytest

from bastion.client.jobs.selection import STATUSES
from bastion.testing.scripted_hosts import runs_for


@pytest.fixture
def several(bastion):
    """A running job of alice's, two that wait, one that failed, and one that the daemon has not read."""
    bastion.hosts.scripts["broken"] = runs_for(1, code=5)
    bastion.submit("broken", user="bob", project="b")
    bastion.run_until(lambda: bastion.result("broken"))
    bastion.submit("holder", instance_type="tpu-v4-64")
    bastion.settle(4)
    bastion.submit("late", instance_type="tpu-v4-64", user="bob", project="b")
    bastion.submit("early", instance_type="tpu-v4-64", user="alice", priority=5)
    bastion.settle(4)
    bastion.submit("fresh", user="alice")
    return bastion


def names(done) -> list[str]:
    return [line.split()[0] for line in done.out.splitlines()[1:]]


def test_those_that_run_come_first_then_the_queue_then_new_and_completed_ones(run, several) -> None:
    done = run("list", "--all", code=0)
    assert names(done)[0] == "holder"
    assert names(done)[-2:] == ["fresh", "broken"]
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(run("list", "--output=csv").out))}
    waiting = [rows[name] for name in names(done)[1:3]]
    assert [row["position"] for row in waiting] == ["1", "2"]
    assert {row["status"] for row in waiting} == {"queued"}


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (["--mine"], {"holder", "early", "fresh"}),
        (["--user=bob"], {"late"}),
        (["--user=bob,alice"], {"holder", "early", "late", "fresh"}),
        (["--project=b"], {"late"}),
        (["--status=running"], {"holder"}),
        (["--status=submitted"], {"fresh"}),
        (["--status=queued,running"], {"holder", "early", "late"}),
        (["--status=failed"], {"broken"}),
        (["--type=tpu-v4-64", "--mine"], {"holder", "early"}),
        (["*l*"], {"holder", "late", "early"}),
        (["early", "h?lder"], {"holder", "early"}),
        (["--since=1d"], {"holder", "early", "late", "fresh", "broken"}),
        (["--since=1d", "--status=failed,queued", "--user=bob"], {"late", "broken"}),
        (["nothing*"], set()),
    ],
)
def test_flags_and_patterns_select_jobs(run, several, flags: list[str], found: set[str]) -> None:
    assert set(names(run("list", *flags, code=0))) == found
    document = json.loads(run("list", *flags, "--output=json", code=0).out)
    listed = {entry["name"] for entry in (*document["jobs"], *document.get("completed", ()))}
    assert listed | set(document["unread"]) == found


def test_a_selection_reads_as_much_of_a_job_as_the_whole_list(run, several) -> None:
    everything = json.loads(run("list", "--output=json").out)["jobs"]
    assert json.loads(run("list", "--mine", "--output=json").out)["jobs"] == [
        entry for entry in everything if entry["user_id"] == "alice"
    ]
    # Nothing but the specs says whose jobs these are, and there are several users.
    assert "USER (UNVERIFIED)" in run("list", "--mine").out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([""], "a pattern of names is empty"),
        (["--user="], "--user has an empty value"),
        (["--status=runing"], "did you mean running?"),
        (["--status=x"], ", ".join(STATUSES)),
        (["--watch"], "--watch needs a terminal"),
        (["--watch", "--output=csv"], "leave it out for --output=csv"),
        (["--since=tomorrow"], "use 90s, 10m, 1h30m or 3d for a time ago"),
        (["--output=text"], "table|wide|json|csv"),
    ],
)
def test_what_selects_nothing_sensible_is_refused(run, bastion, flags: list[str], message: str) -> None:
    assert message in run("list", *flags, code=64).err


def test_a_spreadsheet_gets_instants_numbers_and_no_formulas(run, bastion) -> None:
    bastion.submit("job", user="=cmd()")
    bastion.settle(4)
    [row] = csv.DictReader(io.StringIO(run("list", "--output=csv", code=0).out))
    assert row["user"] == "'=cmd()"
    assert row["queued_at"].endswith("Z")
    assert row["position"] == ""
    assert row["priority"] == "5"


@pytest.mark.parametrize("width", [80, 40, 20])
def test_a_table_fits_the_terminal(several, on_terminal, monkeypatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    several.submit("a-very-long-name-of-a-job-that-nobody-can-read-in-a-table-" + 5 * "x")
    several.settle(4)
    lines = [line for line in on_terminal("list", term="dumb").splitlines() if " queued " in line]
    assert lines
    assert max(map(len, lines)) <= width
    assert all(len(line.split()[0]) >= 4 for line in lines)


def test_a_person_is_told_the_totals_and_sees_states_in_color(several, on_terminal, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    shown = on_terminal("list")
    assert "1 running, 2 queued, 1 submitted" in shown
    assert "\x1b[32mrunning" in shown
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in on_terminal("list")


def test_an_estimate_is_a_column_of_its_own(run, bastion) -> None:
    bastion.submit("holder", instance_type="tpu-v4-128", max_run_seconds=3600)
    bastion.settle(4)
    bastion.submit("waiter", instance_type="tpu-v4-128", expected_duration_seconds=60)
    bastion.settle(4)
    header, *rows = run("list", "--eta", code=0).out.splitlines()
    assert "STARTS" in header
    assert any("waiter" in row and ("~" in row or "unknown" in row) for row in rows)
