"""Who is told to end when a disk runs full, and what people learn of it; the folders and notices are real files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bastion.agent.host_state import HostState
from bastion.core.disk_limit import NOTICE_NAME, DiskNotice
from bastion.core.errors import InvalidDocument
from bastion.folder_format.reserve import Reserve
from bastion.wiring.local_disk import DiskSpace, DiskWatch
from bastion.wiring.local_home import LocalHome
from bastion.wiring.roots import parse_root

MIB = 1024 * 1024


class Machine:
    """A home with hosts of jobs, on a disk whose free space a test decides."""

    def __init__(self, folder: Path) -> None:
        self.home = LocalHome(folder)
        self.root = parse_root(str(folder / "buckets" / "permanent" / "t-bastion"))
        Path(self.root.bucket).mkdir(parents=True)
        self.free = 150 * MIB

    def watch(self, *, limit_mib: int = 0) -> DiskWatch:
        return DiskWatch(self.home, self.root, job_limit_bytes=limit_mib * MIB, space_of=self.space)

    def space(self, _folder: Path) -> DiskSpace:
        return DiskSpace(total=200 * MIB, free=self.free)

    def job(self, name: str, *, mib: int, run: str) -> HostState:
        """A job without a slice whose command has written so much."""
        node = self.home.hosts_dir(self.root) / f"b-{run}"
        return self._host(node, run, 0, mib, "arguments.json", {"job": name})

    def slice_host(self, name: str, *, mib: int, run: str, host: int) -> HostState:
        """One emulated host."""
        node = self.home.emulator_dir / "vms" / f"b-{run}.abcd" / str(host)
        facts = {"metadata": {"bastion-agent": json.dumps({"job": name})}}
        return self._host(node, run, host, mib, "host.json", facts)

    def _host(self, node: Path, run: str, host: int, mib: int, file: str, facts: object) -> HostState:
        state = HostState(node / "state", run=run, host=host)
        state.work_dir.mkdir(parents=True)
        (state.work_dir / "data").write_bytes(bytes(mib * MIB))
        (node / file).write_text(json.dumps(facts))
        return state


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_with_room_nobody_is_told_anything(machine: Machine) -> None:
    small, large = machine.job("a", mib=1, run="aaaaaaaaaa-1"), machine.job("b", mib=30, run="bbbbbbbbbb-1")
    watch = machine.watch()
    watch.look()
    assert (small.disk_notice, large.disk_notice, list(watch.alarms())) == (None, None, [])


def test_on_a_full_disk_the_job_with_the_most_files_is_told_and_named(machine: Machine) -> None:
    small, large = machine.job("a", mib=1, run="aaaaaaaaaa-1"), machine.job("big", mib=30, run="bbbbbbbbbb-1")
    machine.free = 0
    watch = machine.watch()
    watch.look()
    assert small.disk_notice is None
    notice = large.disk_notice
    assert notice is not None
    assert (notice.limit, notice.free, notice.total) == (0, 0, 200 * MIB)
    assert 30 * MIB <= notice.held < 31 * MIB
    (alarm,) = watch.alarms()
    assert "job big was told to end" in alarm
    assert "no space left on device: 0 B of 200 MiB is free" in alarm
    assert "30.0 MiB" in alarm


def test_the_hosts_of_one_job_count_together_and_are_all_told(machine: Machine) -> None:
    alone = machine.job("a", mib=12, run="aaaaaaaaaa-1")
    hosts = [machine.slice_host("wide", mib=8, run="bbbbbbbbbb-1", host=host) for host in range(2)]
    machine.free = MIB
    machine.watch().look()
    assert alone.disk_notice is None
    assert all(host.disk_notice is not None for host in hosts)


def test_one_job_at_a_time_is_told_and_no_other_before_it_could_end(machine: Machine) -> None:
    first, second = machine.job("a", mib=31, run="aaaaaaaaaa-1"), machine.job("b", mib=30, run="bbbbbbbbbb-1")
    machine.free = 0
    watch = machine.watch()
    for _ in range(3):
        watch.look()
    assert first.disk_notice is not None
    assert second.disk_notice is None


def test_a_disk_that_others_have_filled_ends_no_job_and_raises_an_alarm(machine: Machine) -> None:
    job = machine.job("a", mib=1, run="aaaaaaaaaa-1")
    machine.free = 0
    watch = machine.watch()
    watch.look()
    assert job.disk_notice is None
    (alarm,) = watch.alarms()
    assert "no space left on device: 0 B of 200 MiB are free" in alarm
    assert "no job uses much" in alarm


def test_a_job_over_its_own_limit_is_told_though_there_is_room(machine: Machine) -> None:
    small, large = machine.job("a", mib=1, run="aaaaaaaaaa-1"), machine.job("b", mib=30, run="bbbbbbbbbb-1")
    watch = machine.watch(limit_mib=20)
    watch.look()
    assert small.disk_notice is None
    assert str(large.disk_notice) == "the job's files use 30.0 MiB of disk; the limit is 20.0 MiB"
    assert "job b was told to end" in watch.alarms()[0]


def test_a_bucket_gets_its_reserve_when_there_is_room_and_only_then(machine: Machine) -> None:
    reserve = Reserve(machine.root.bucket)
    machine.free = 2 * MIB
    machine.watch().look()
    assert reserve.held_bytes == 0
    machine.free = 100 * MIB
    machine.watch().look()
    assert reserve.held_bytes == 4 * MIB  # a fiftieth of 200 MiB
    assert reserve.release(0)
    machine.watch().look()
    assert reserve.held_bytes == 4 * MIB


def test_a_home_that_nobody_has_used_is_no_fault(tmp_path: Path) -> None:
    home = LocalHome(tmp_path / "none")
    watch = DiskWatch(home, parse_root("gs://bucket/t-bastion"))
    watch.look()
    assert not home.path.exists()


@pytest.mark.parametrize("text", ["", "1:2:3", "1:2:3:4:5", "1:2:3:x", "1:2:3:-4", "1:2:3:" + "9" * 16])
def test_what_is_no_notice_ends_no_job(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidDocument):
        DiskNotice.parse(text)
    state = HostState(tmp_path, run="aaaaaaaaaa-1", host=0)
    state.folder.mkdir()
    (state.folder / NOTICE_NAME).write_text(text)
    assert state.disk_notice is None


def test_a_notice_fits_into_a_link_that_takes_no_block() -> None:
    largest = 1 << 50
    notice = DiskNotice(held=largest, limit=largest, free=largest, total=largest)
    assert len(notice.to_text()) < 60
    assert DiskNotice.parse(notice.to_text()) == notice
