"""A job whose state nobody can read or write neither loses its attempt nor keeps the others waiting for good."""

from __future__ import annotations

from typing import Any

import pytest

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import StoreUnavailable
from bastion.ports import ObjectMeta
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for

STATE = keys.state("job-a")


class Way:
    """A daemon's way to the bucket on which single writes fail, or lose their answers."""

    def __init__(self, cluster: Cluster, *, refuses: str = "", loses_fence: bool = False) -> None:
        self._store = cluster.store
        self._refuses = refuses
        self._loses_fence = loses_fence

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def put(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        if key == self._refuses:
            raise StoreUnavailable("403 the object is under a hold")
        meta = self._store.put(key, data, generation=generation)
        if self._loses_fence and key == keys.LEASE and b'"fenced_epoch":2' in data:
            self._loses_fence = False
            raise StoreUnavailable("the answer was lost")
        return meta


def units(cluster: Cluster) -> int:
    """Units of all gangs."""
    requests = cluster.slices.existing_requests()
    return sum(int(r.accelerator_type.rpartition("-")[2]) * r.ref.num_slices for r in requests)


def running_job() -> tuple[Cluster, bytes]:
    """A cluster of 64 units whose job-a holds 32, and the content of its state."""
    cluster = Cluster()
    cluster.submit("job-a", instance_type="tpu-v4-32")
    cluster.hosts.scripts["job-a"] = runs_for(60_000)
    cluster.settle(12)
    return cluster, cluster.store.get(STATE).data


def replace_state(cluster: Cluster, data: bytes) -> None:
    meta = cluster.store.head(STATE)
    assert meta is not None
    cluster.store.put(STATE, data, generation=meta.generation)


@pytest.mark.parametrize("restarted", [True, False], ids=["mended-before-a-restart", "mended-under-the-same-daemon"])
@pytest.mark.parametrize("loses_fence", [False, True], ids=["fence-answered", "fence-unanswered"])
def test_an_attempt_whose_state_was_corrupt_at_a_takeover_goes_on_once_it_is_mended(
    restarted: bool, loses_fence: bool
) -> None:
    cluster, good = running_job()
    replace_state(cluster, b'{"torn')
    cluster._daemon_store = Way(cluster, loses_fence=loses_fence)  # type: ignore[assignment]
    cluster.restart_daemon()
    cluster.settle(8)
    replace_state(cluster, good)
    cluster.submit("job-b", user="bob", project="b", instance_type="tpu-v4-64")
    if restarted:
        cluster.restart_daemon()
    for _ in range(12):
        cluster.step()
        assert units(cluster) == 32
    assert (cluster.status("job-a"), cluster.status("job-b")) == ("ACTIVE", "PENDING")
    assert not any("superseded" in line for line in cluster.history("job-a"))


def test_a_state_that_cannot_be_written_after_a_takeover_holds_up_the_others_for_minutes_only() -> None:
    cluster, _ = running_job()
    cluster._daemon_store = Way(cluster, refuses=STATE)  # type: ignore[assignment]
    cluster.submit("job-b", user="bob", project="b", instance_type="tpu-v4-8")
    cluster.submit("job-c", user="bob", project="b", instance_type="tpu-v4-64")
    cluster.restart_daemon()
    cluster.settle(40)
    assert cluster.status("job-b") == "PENDING"
    (alarm,) = [
        text for text in cluster.json(keys.STATUS)["alarms"] if text.startswith("not starting or evicting jobs")
    ]
    assert "job-a" in alarm
    cluster.settle(int(limits.UNREAD_STATE_SECONDS))
    assert cluster.status("job-b") == "ACTIVE"
    assert not any(text.startswith("not starting or evicting jobs") for text in cluster.json(keys.STATUS)["alarms"])
    # What the job holds stays charged, and it is not voided, also after another takeover.
    assert cluster.status("job-c") == "PENDING"
    cluster._daemon_store = None
    cluster.restart_daemon()
    cluster.settle(6)
    assert (cluster.status("job-a"), cluster.status("job-c")) == ("ACTIVE", "PENDING")
    record = cluster.record("job-a")
    assert record is not None and record.attempt is not None and record.attempt.number == 1
