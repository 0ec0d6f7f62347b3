"""A quota file in a private bucket: two folders, the daemon as `bastion daemon run --quota_root=URL` builds it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion.adapters.system_clock import SystemClock
from bastion.client import Client
from bastion.client.quota.upload import QuotaClient
from bastion.core.bucket import keys
from bastion.daemon.daemon import Daemon
from bastion.wiring.daemon import build_daemon
from bastion.wiring.local_home import LocalHome
from bastion.wiring.roots import open_root, parse_root
from quota import load
from tests.support.job_specs import new_spec


def quota_text(v4: int, *, user: str) -> bytes:
    return (
        f'[toml-schema]\nversion = "1"\n[total_resources]\nv4 = {v4}\n'
        f'[project_membership]\na = ["{user}"]\n[project_resources.a]\nv4 = 1.0\n'
    ).encode()


class Place:
    """The users' bucket, where somebody helped himself, and the administrators'."""

    def __init__(self, folder: Path) -> None:
        self.private = folder / "admins" / "x-bastion"
        self.users = folder / "users" / "x-bastion"
        for root, data in (
            (self.private, quota_text(64, user="alice")),
            (self.users, quota_text(4096, user="mallory")),
        ):
            file = root / keys.PROJECT_QUOTAS
            file.parent.mkdir(parents=True)
            file.write_bytes(data)
        self.client = Client(open_root(str(self.users)), parse_root(str(self.users)), SystemClock())
        self.daemon: Daemon = build_daemon(
            parse_root(str(self.users)),
            home=LocalHome(folder / "home"),
            owner="test",
            slices="none",
            quota_root=str(self.private),
            notify=lambda _: None,
        )

    def tick(self) -> dict[str, object]:
        """What the status says of the quota file, after a tick."""
        assert self.daemon.tick().acted
        status = self.client.status()
        assert status is not None
        return status.quota.model_dump()

    def tree(self) -> list[tuple[str, int]]:
        """Every file and folder of the private bucket, and when it last changed."""
        return sorted((str(path), path.stat().st_mtime_ns) for path in self.private.parents[0].rglob("*"))


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    place.daemon.close()


def test_the_first_tick_makes_the_secret_of_the_runs_in_the_private_bucket_for_the_daemons_user_only(
    place: Place,
) -> None:
    place.tick()
    file = place.private / keys.RUN_SECRET
    assert len(bytes.fromhex(file.read_text("ascii"))) == 32
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert not (place.users / keys.SECRETS).exists()


def test_without_a_private_place_nothing_is_done_and_an_alarm_says_why(place: Place) -> None:
    (place.private / keys.SECRETS).write_bytes(b"a file")
    report = place.daemon.tick()
    assert not report.acted
    assert f"{place.private}/secrets cannot be closed to others" in report.problems[0]
    (place.private / keys.SECRETS).unlink()
    assert place.daemon.tick().acted


def test_the_private_file_counts_the_users_own_is_ignored_and_nothing_more_is_written_to_the_private_bucket(
    place: Place,
) -> None:
    place.tick()
    before = place.tree()
    spec = new_spec(
        "greedy", bastion="x-bastion", user_id="mallory", project_id="a", now=1.0, instance_type="tpu-v4-32"
    )
    place.client.submit(spec)
    for _ in range(3):
        said = place.tick()
    assert said["root"] == str(place.private)
    assert said["problem"] == ""
    status = place.client.status()
    assert status is not None
    assert status.pool["v4"].total == 64
    reason = place.client.entries()["greedy"].reason
    assert reason is not None and reason.code == "NotMember"
    assert place.tree() == before


def test_a_private_bucket_out_of_reach_leaves_the_last_good_file_in_force_with_an_alarm(place: Place) -> None:
    good = place.tick()
    bucket = place.private.parent
    away = bucket.rename(bucket.with_name("away"))
    bucket.write_bytes(b"a file where the bucket's folder was: no read works")
    said = place.tick()
    status = place.client.status()
    assert status is not None
    assert (said["in_force"], said["generation"]) == (True, good["generation"])
    assert any("the quota file could not be read" in alarm for alarm in status.alarms)
    assert status.pool["v4"].total == 64
    bucket.unlink()
    away.rename(bucket)
    assert place.tick() == good
    status = place.client.status()
    assert status is not None and status.alarms == ()


def test_an_upload_goes_where_the_daemon_reads_and_is_in_force_in_the_next_tick(place: Place) -> None:
    place.tick()
    root = parse_root(str(place.private))
    quota_client = QuotaClient(place.client, open_root(root.url), root)
    new = quota_text(128, user="alice")
    assert quota_client.forecast(load(quota_text(64, user="alice")), load(new)).doubts == ()
    replaced = quota_client.replace(new, quota_client.present())
    assert place.tick()["generation"] == replaced.generation
    status = place.client.status()
    assert status is not None and status.pool["v4"].total == 128
    assert quota_client.await_in_force(replaced.generation) == ""


def test_an_upload_to_the_users_bucket_is_doubted_since_the_daemon_does_not_read_it(place: Place) -> None:
    place.tick()
    root = parse_root(str(place.users))
    quota_client = QuotaClient(place.client, place.client.store, root)
    (doubt,) = quota_client.forecast(None, load(quota_text(128, user="alice"))).doubts
    assert f"under {place.private}, not under {place.users}" in doubt
