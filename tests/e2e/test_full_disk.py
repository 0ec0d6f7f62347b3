"""A job that fills the disk of a local bastion: it ends, its files go, and everybody else goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bastion.core.bucket import keys
from bastion.core.errors import NotFound
from bastion.ports import ObjectStore
from bastion.wiring.daemon import JOB_DISK_VARIABLE
from bastion.wiring.local import down, up
from bastion.wiring.local_disk import disk_usage
from bastion.wiring.local_home import LocalHome
from bastion.wiring.roots import open_root
from tests.support.full_disk import fill, small_disk
from tests.support.job_specs import new_spec
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

# Takes what there is, does not mind that nothing is left, and waits for more.
FILLS_THE_DISK = 'i=0; while :; do i=$((i+1)); head -c 5000000 /dev/zero > "$i" || sleep 0.2; done'
PATIENCE_SECONDS = 90.0


class Local:
    """A local bastion that runs."""

    def __init__(self, folder: Path) -> None:
        self.home = LocalHome(folder / "home")
        self.store: ObjectStore = open_root(up(self.home, user="ann", say=lambda _: None).url)

    def submit(self, name: str, command: str, *, instance_type: str = "") -> None:
        spec = new_spec(
            name,
            bastion="local-bastion",
            command=command,
            user_id="ann",
            project_id="default",
            now=time.time(),
            instance_type=instance_type,
        )
        self.store.put(keys.active(name), spec.to_bytes(), generation=0)

    def document(self, key: str) -> dict[str, Any]:
        try:
            found = json.loads(self.store.get(key).data)
        except NotFound:
            return {}
        assert isinstance(found, dict)
        return found

    def result(self, name: str) -> dict[str, Any]:
        """How a job ended; waits for it."""
        until(lambda: self.document(keys.complete(name)))
        found = self.document(keys.complete(name))["result"]
        assert isinstance(found, dict)
        return found

    @property
    def status(self) -> dict[str, Any]:
        return self.document(keys.STATUS)

    def entry(self, name: str) -> dict[str, Any]:
        return next((job for job in self.status.get("jobs", []) if job["name"] == name), {})

    def job_bytes(self) -> int:
        """What the folders of jobs take."""
        return disk_usage(self.home.path / "hosts") + disk_usage(self.home.emulator_dir / "vms")


@pytest.fixture
def local(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Local]:
    """With a number as the parameter, on a disk of so many MiB; else on this machine's, with a limit of 20 for jobs."""
    monkeypatch.delenv("BASTION_AGENT_DIR")  # agents are on the small disk, too
    size = getattr(request, "param", None)
    if size is None:
        monkeypatch.setenv(JOB_DISK_VARIABLE, "20")
        local = Local(tmp_path)
        yield local
        down(local.home, say=lambda _: None)
        return
    with small_disk(tmp_path / "disk", mib=size) as folder:
        local = Local(folder)
        yield local
        down(local.home, say=lambda _: None)


def test_a_job_over_its_limit_ends_as_its_users_failure_and_leaves_nothing(local: Local) -> None:
    local.submit("greedy", "head -c 40000000 /dev/zero > data; exec sleep 600")
    local.submit("honest", "exec sleep 1")
    result = local.result("greedy")
    assert (result["outcome"], result["failed_worker"], result["exit_code"]) == ("failed", 0, 143)
    assert "DiskLimit: the job's files use" in result["message"]
    assert "the limit is 20.0 MiB" in result["message"]
    assert any("job greedy was told to end" in alarm for alarm in local.status["alarms"])
    assert local.result("honest")["outcome"] == "succeeded"
    until(lambda: local.job_bytes() < 1_000_000)


@pytest.mark.parametrize("local", [200], indirect=True)
def test_a_job_that_fills_the_disk_ends_and_others_start_and_end_beside_it(local: Local) -> None:
    local.submit("filler", FILLS_THE_DISK)
    local.submit("honest", "exec sleep 1")
    result = local.result("filler")
    assert (result["outcome"], result["failed_worker"]) == ("failed", 0)
    assert "DiskLimit: no space left on device" in result["message"]
    assert any("job filler was told to end" in alarm for alarm in local.status["alarms"])
    assert local.result("honest")["outcome"] == "succeeded"
    until(lambda: local.job_bytes() < 1_000_000)


@pytest.mark.parametrize("local", [200], indirect=True)
def test_on_a_disk_that_somebody_else_fills_jobs_end_and_are_cancelled(local: Local) -> None:
    local.submit("quick", "sleep 4; exit 7")
    local.submit("slow", "exec sleep 600")
    for name in ("quick", "slow"):
        until(lambda name=name: local.entry(name).get("phase") == "running")
    # The reserve is filled when the daemon first looks; a disk that was never seen with room has none.
    until(lambda: (local.home.buckets_dir / "permanent" / ".objects" / "reserve").exists())
    filler = fill(local.home.path.parent)
    assert local.result("quick")["exit_code"] == 7
    local.store.put(keys.user_state("slow"), b'{"status": "CANCELLING"}', generation=0)
    assert local.result("slow")["outcome"] == "cancelled"
    until(lambda: any("no job uses much" in alarm for alarm in local.status["alarms"]))
    filler.unlink()


@pytest.mark.parametrize("local", [64], indirect=True)
def test_a_slice_that_has_no_room_to_come_up_says_so(local: Local) -> None:
    local.submit("wide", "true", instance_type="tpu-v4-8")
    until(lambda: "no space left on device" in local.entry("wide").get("host_problem", ""))
    assert " of 64 MiB is free" in local.entry("wide")["host_problem"]
    local.store.put(keys.user_state("wide"), b'{"status": "CANCELLING"}', generation=0)
    assert local.result("wide")["outcome"] == "cancelled"
