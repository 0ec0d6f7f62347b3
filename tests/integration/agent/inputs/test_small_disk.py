"""Inputs that do not fit, on a disk of their own: told before anything is written, or done without the cache."""

from __future__ import annotations

import shutil
from pathlib import Path

from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import HostPhase, InputOrder
from tests.support.full_disk import fill, small_disk
from tests.support.worker_stage import Stage

MIB = 1024 * 1024


def _input(folder: Path, mib: int) -> list[InputOrder]:
    (folder / "tokens").mkdir()
    (folder / "tokens" / "a").write_bytes(b"a" * (mib * MIB))
    return [InputOrder(url=str(folder / "tokens"), dir="data")]


def test_an_input_larger_than_the_disk_is_told_before_a_byte_is_written(stage: Stage, tmp_path: Path) -> None:
    orders = _input(tmp_path, 12)
    with small_disk(tmp_path / "disk", mib=8) as disk:
        before = shutil.disk_usage(disk).free
        stage.run("true", inputs=orders, host=stage.host(on_vm=True, state_dir=disk / "state"))
        report = stage.final()
        assert (report.phase, report.error) == (HostPhase.FAILED, host_errors.DISK_LIMIT)
        assert (
            "the job's inputs need 12.0 MiB of disk, and 7.6 MiB is free there; nothing was fetched" in report.message
        )
        assert before - shutil.disk_usage(disk).free < MIB // 2
        stage.end()


def test_a_cache_that_does_not_fit_beside_the_input_is_done_without(stage: Stage, tmp_path: Path) -> None:
    orders = _input(tmp_path, 5)
    with small_disk(tmp_path / "disk", mib=8) as disk:
        cache = {"input_cache": str(disk / "cache"), "input_cache_bytes": 1 << 30}
        stage.run("wc -c < data/a", inputs=orders, host=stage.host(on_vm=True, state_dir=disk / "state", **cache))
        assert stage.final().exit_code == 0
        log = stage.log()
        assert "fetching without the input cache: it would grow by 5.0 MiB" in log[0]
        assert log[-1] == f"stdout F {5 * MIB}"
        stage.end()


def test_a_full_disk_of_the_cache_does_not_end_the_job(stage: Stage, tmp_path: Path) -> None:
    orders = _input(tmp_path, 2)
    with small_disk(tmp_path / "disk", mib=8) as disk:
        cache = {"input_cache": str(disk / "cache"), "input_cache_bytes": 1 << 30}
        fill(disk)
        stage.run("wc -c < data/a", inputs=orders, host=stage.host(on_vm=True, **cache))
        assert stage.final().exit_code == 0
        assert stage.log()[-1] == f"stdout F {2 * MIB}"
