"""Recorded ticks: a tick is decided again from its file, and holds no secret."""

from __future__ import annotations

import errno
import gzip
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from bastion.adapters.tick_files import TickFiles
from bastion.core import documents, recorded_tick
from bastion.core.errors import InvalidDocument
from bastion.core.tick import TickInput, TickOutput, decide
from bastion.daemon.observe.policy_source import PolicyStatus
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.scripted_hosts import runs_for

SECRET = "hunter2"


class Recorder:
    """Keeps every tick of a cluster's daemon."""

    def __init__(self) -> None:
        self.ticks: list[tuple[TickInput, TickOutput, bytes]] = []

    def __call__(self, given: TickInput, output: TickOutput, policy: PolicyStatus) -> str:
        self.ticks.append((given, output, recorded_tick.to_bytes(given, output, quota_file=policy.data)))
        return ""


@pytest.fixture(scope="module")
def ticks() -> list[tuple[TickInput, TickOutput, bytes]]:
    """Ticks in which jobs of every kind come, start, are evicted and cancelled, fail and end."""
    recorder, cluster = Recorder(), Cluster()
    cluster.daemon._record = recorder
    cluster.write_quota(QUOTA.replace(b"v4 = 64", b"v4 = 64\n").replace(b"[project_members", b"[project_members"))
    cluster.hosts.scripts["borrower"] = runs_for(3000)
    cluster.hosts.scripts["owner"] = runs_for(20)
    cluster.hosts.scripts["failing"] = runs_for(3, code=5)
    cluster.submit("borrower", instance_type="tpu-v4-64")
    cluster.settle(10)
    cluster.submit("failing", cleanup_command="true")
    spec = json.loads(cluster.store.get("jobs/active/failing").data)
    spec["env_vars"] = {"PASSWORD": SECRET}
    meta = cluster.store.head("jobs/active/failing")
    assert meta is not None
    cluster.store.put("jobs/active/failing", documents.dumps(spec), generation=meta.generation)
    cluster.submit("owner", user="bob", project="b", instance_type="tpu-v4-32", max_tries=2)
    cluster.submit("too-large", instance_type="tpu-v4-128")
    cluster.put_spec("broken", b"{}")
    cluster.settle(40)
    cluster.restart_daemon()
    cluster.daemon._record = recorder
    cluster.cancel("borrower")
    cluster.settle(30)
    assert cluster.result("owner") and cluster.result("failing") and cluster.result("borrower")
    return recorder.ticks


def test_every_tick_is_decided_the_same_from_its_file(ticks: list[tuple[TickInput, TickOutput, bytes]]) -> None:
    assert len(ticks) > 50
    kinds = set()
    for _, output, data in ticks:
        recorded = recorded_tick.read(data)
        lines = recorded_tick.describe(decide(recorded.given))
        assert lines == recorded_tick.describe(output) == list(recorded.decided)
        kinds |= {line.partition(": ")[2].split(":")[0].split()[0] for line in lines}
        kinds |= {type(effect).__name__ for effects in output.effects.values() for effect in effects}
    assert {"start", "evict", "wait", "keep", "stopping", "PutRecord", "CreateGang", "DeleteGang", "PutOrder"} <= kinds


def test_the_input_read_back_is_the_recorded_one_without_its_secrets(
    ticks: list[tuple[TickInput, TickOutput, bytes]],
) -> None:
    for given, _, data in ticks:
        back = recorded_tick.read(data).given
        assert (back.number, back.now, back.snapshot) == (given.number, given.now, given.snapshot)
        assert back.world.policy == given.world.policy
        assert {name: view.record and view.record.status for name, view in back.world.jobs.items()} == {
            name: view.record and view.record.status for name, view in given.world.jobs.items()
        }
        assert set(back.world.jobs) == set(given.world.jobs)
        for name, view in given.world.jobs.items():
            if name != "failing" and not (view.record and view.record.attempt):  # it has secrets, or a token
                assert back.world.jobs[name] == view
        alike = {"jobs": given.world.jobs, "entropy": given.world.entropy, "listed": given.world.listed}
        alike["settings"] = replace(back.world.settings, run_keys=given.world.settings.run_keys)
        assert replace(back.world, **alike) == given.world


def test_no_environment_value_and_no_run_token_is_written(ticks: list[tuple[TickInput, TickOutput, bytes]]) -> None:
    tokens = {
        view.record.attempt.token
        for given, _, _ in ticks
        for view in given.world.jobs.values()
        if view.record and view.record.attempt
    }
    entropy = {given.world.entropy.hex() for given, _, _ in ticks}
    assert len(tokens) >= 3
    whole = b"\n".join(data for _, _, data in ticks).decode()
    assert "PASSWORD" in whole
    run_keys = {given.world.settings.run_keys for given, _, _ in ticks}
    secrets = [keys._root_secret for keys in run_keys if keys is not None]
    assert secrets
    hidden = [form(each) for each in secrets for form in (bytes.decode, bytes.hex)]
    for secret in (SECRET, *tokens, *entropy, *hidden):
        assert secret not in whole


def test_the_newest_files_are_kept_for_their_owner_only(tmp_path: Path) -> None:
    files = TickFiles(tmp_path / "ticks")
    for number in range(7):
        assert files.keep(f"tick-{number:09d}", lambda number=number: b"%d" % number, most=3) == ""  # type: ignore[misc]
    kept = sorted((tmp_path / "ticks").iterdir())
    assert [gzip.decompress(path.read_bytes()) for path in kept] == [b"4", b"5", b"6"]
    assert {path.stat().st_mode & 0o777 for path in kept} == {0o600}
    assert files.keep("tick-9", lambda: b"", most=0) == ""
    assert list((tmp_path / "ticks").iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_problem_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "ticks").write_text("a file")
    assert "ticks cannot be recorded in" in TickFiles(tmp_path / "ticks").keep("tick-1", lambda: b"", most=1)


def test_a_full_disk_and_a_killed_daemon_leave_no_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "ticks"
    files = TickFiles(folder)
    assert files.keep("tick-1", lambda: b"1", most=3) == ""
    (folder / ".tick-0.json.gz").write_bytes(b"of a daemon that was killed in a write")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", _disk_is_full)
        for number in range(2, 5):
            assert "No space left" in files.keep(f"tick-{number}", lambda: b"2", most=3)
    assert files.keep("tick-5", lambda: b"5", most=3) == ""
    assert sorted(path.name for path in folder.iterdir()) == ["tick-1.json.gz", "tick-5.json.gz"]


def _disk_is_full(_path: Path, _target: Path) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"format":2}', b'{"format":1,"version":"1","quota_file":"","input":{},"decided":[]}']
)
def test_what_is_no_recorded_tick_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidDocument, match="recorded tick"):
        recorded_tick.read(data)
