"""`bastion sweep`: what it shows, what it deletes, and that a dry run writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bastion.core.bucket import keys
from bastion.core.model.gangs import GangFailure, GangRef, GangRequest, GangState

RUN = "bbbbbbbbbb-2"
GANG = keys.gang(RUN)


@pytest.fixture(autouse=True)
def slices(bastion, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bastion.wiring.daemon.open_slices", lambda *_, **__: bastion.slices)
    bastion.slices.create(
        GangRequest(
            ref=GangRef(name=GANG), bastion="b", run=RUN, token="t", accelerator_type="v4-8", agent_arguments="{}"
        )
    )
    bastion.slices.put_into(GANG, GangState.FAILED, failure=GangFailure(cause="capacity", message="no more"))
    bastion.submit("job", instance_type="tpu-v4-8")
    for _ in range(3):
        bastion.step()


def test_a_dry_run_shows_what_is_left_and_why_and_writes_nothing(run, bastion) -> None:
    bastion.on_sleep.clear()
    bastion.sleep = bastion.clock.advance  # the daemon does nothing meanwhile
    before = [(meta.key, meta.generation) for meta in bastion.store.list("")]
    done = run("sweep", "--dry_run")
    assert (done.code, done.err) == (0, "dry run: nothing was deleted\n")
    assert done.out.splitlines()[1].split() == [
        GANG, "-", "failed", "would", "be", "deleted", "its", "job", "has", "ended", "or", "was", "deleted",
    ]  # fmt: skip
    assert [(meta.key, meta.generation) for meta in bastion.store.list("")] == before
    assert bastion.slices.deleted == []


def test_a_sweep_deletes_what_no_job_needs_and_says_so_in_json(run, bastion) -> None:
    bastion.sleep = bastion.clock.advance
    document = json.loads(run("sweep", "--output=json").out)
    assert [(each["name"], each["deleted"]) for each in document["leftovers"]] == [(GANG, True)]
    assert (document["needed"], document["problems"], document["dry_run"]) == (1, [], False)
    assert bastion.slices.deleted == [GANG]
    assert bastion.json(keys.order(RUN))["action"] == "stop"
    done = run("sweep")
    assert (done.code, done.out) == (0, "")
    assert done.err == "nothing to sweep: jobs need all 1 slices\n"


def test_what_could_not_be_seen_or_deleted_is_told_by_the_exit_code(run, bastion) -> None:
    bastion.sleep = bastion.clock.advance
    bastion.slices.down = True
    done = run("sweep")
    assert (done.code, done.out) == (75, "")
    assert "cannot list slices" in done.err
    assert "nothing" not in done.err, "nobody knows"


def test_broken_settings_are_refused_with_what_checks_them(run, bastion) -> None:
    bastion.store.put(keys.DAEMON_SETTINGS, b"project = ", generation=0)
    done = run("sweep", code=64)
    assert "check-config" in done.err


def test_a_bastion_in_the_cloud_without_settings_is_refused(run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("BASTION_HOME", str(tmp_path))
    (tmp_path / "bucket").mkdir()
    done = run("sweep", f"--root={tmp_path}/bucket/my-bastion", "--slices=cloud")
    assert (done.code, "config/daemon.toml" in done.err) == (64, True)
