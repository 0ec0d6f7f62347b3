"""A disk that is full: what must be written is written all the same, out of the bucket's reserve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bastion.adapters.folder.store import DirectoryStore
from bastion.core.bucket import keys
from bastion.core.errors import StoreFull
from bastion.folder_format.reserve import Reserve, reserve_bytes
from bastion.wiring.roots import open_root
from tests.support.full_disk import fill, seem_full, small_disk

KIB = 1024
ROOT = "permanent/t-bastion"
Fill = Callable[[], None]


@pytest.fixture(params=["mounted", "simulated"])
def disk(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Path, Fill]]:
    """A bucket with a reserve of 1 MiB, and what fills the disk around it."""
    if request.param == "mounted":
        with small_disk(tmp_path / "disk", mib=8) as folder:
            (folder / "permanent").mkdir()
            assert Reserve(folder / "permanent").fill(KIB * KIB)
            yield folder, lambda: fill(folder) and None
    else:
        (tmp_path / "permanent").mkdir()
        assert Reserve(tmp_path / "permanent").fill(KIB * KIB)
        yield tmp_path, lambda: seem_full(monkeypatch, tmp_path / "permanent")


def test_states_requests_and_results_are_written_on_a_full_disk_and_bulk_is_not(disk: tuple[Path, Fill]) -> None:
    folder, full = disk
    store = open_root(str(folder / ROOT))
    lease = store.put(keys.LEASE, b"1", generation=0)
    history = store.put("history/jobs/a", b"1\n", generation=0)
    full()
    with pytest.raises(StoreFull, match="No space left on device"):
        store.put("logs/a.d/run-1/worker-0/0000000000", bytes(64 * KIB), generation=0)
    held = Reserve(folder / "permanent").held_bytes
    assert held == KIB * KIB
    store.put(keys.LEASE, b"2" * 8 * KIB, generation=lease.generation)
    store.put("jobs/user_states/a", b'{"status": "CANCELLING"}' + b" " * 8 * KIB, generation=0)
    store.append("history/jobs/a", b"2" * 8 * KIB, generation=history.generation)
    assert store.get(keys.LEASE).data == b"2" * 8 * KIB
    assert store.get("history/jobs/a").data == b"1\n" + b"2" * 8 * KIB
    assert Reserve(folder / "permanent").held_bytes < held


def test_a_reserve_that_is_used_up_leaves_the_error_of_the_disk(disk: tuple[Path, Fill]) -> None:
    folder, full = disk
    store = open_root(str(folder / ROOT))
    full()
    with pytest.raises(StoreFull, match="free some space"):
        for number in range(1000):
            store.put(f"runs/{number}", bytes(16 * KIB), generation=0)
    assert Reserve(folder / "permanent").held_bytes == 0


def test_the_reserve_is_no_object(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path, fsync=False)
    assert Reserve(tmp_path).fill(KIB)
    store.put("a", b"1", generation=0)
    assert [meta.key for meta in store.list("")] == ["a"]


def test_other_users_of_the_bucket_do_not_take_from_the_reserve(disk: tuple[Path, Fill]) -> None:
    folder, full = disk
    store = DirectoryStore(folder / "permanent", fsync=False)
    full()
    with pytest.raises(StoreFull):
        store.put("t-bastion/lease", bytes(8 * KIB), generation=0)
    assert Reserve(folder / "permanent").held_bytes == KIB * KIB


def test_a_reserve_is_not_filled_with_the_last_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", mib=2) as folder:
        reserve = Reserve(folder)
        assert not reserve.fill(16 * KIB * KIB)
        assert reserve.held_bytes == 0
        (folder / "more").write_bytes(bytes(1024 * KIB))


def test_a_reserve_is_a_small_part_of_its_disk() -> None:
    assert reserve_bytes(200 << 20, most=64 << 20) == 4 << 20
    assert reserve_bytes(1 << 40, most=64 << 20) == 64 << 20
