"""The daemon is killed before and after every single write; the audit trail has what happened, each thing once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from bastion.adapters.forwarding_store import ForwardingStore
from bastion.client.audit import AuditFilter, read_audit
from bastion.core.bucket import keys
from bastion.core.bucket.keys import InboxKey
from bastion.core.model import audit_lines, refusal
from bastion.core.model.job_record import JobRecord
from bastion.core.model.job_record import read as read_record
from bastion.core.model.lifecycle import Status
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for
from tests.support.killed_daemon import kill_at, survive
from tests.support.store_calls import T

Happened = tuple[str, str, str, int]  # request, job, outcome, generation


class Witness(ForwardingStore):
    """Sees what lands in the bucket, whoever wrote it, and concludes what was accepted and refused."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster.store)
        self.happened: Counter[Happened] = Counter()
        self._records: dict[str, JobRecord] = {}

    def _call(self, method: str, key: str, call: Callable[[], T]) -> T:
        asked = InboxKey.parse(key) if method == "delete" else None
        meta = self._store.head(key) if asked is not None and asked.request else None
        answer = call()
        if method == "put" and key.startswith(keys.JOBS_STATES):
            self._moved(key.removeprefix(keys.JOBS_STATES))
        if method == "put" and key.startswith(keys.JOBS_INVALID):
            told = refusal.read(self._store.get(key).data)
            if not told.request:
                self.happened["submit", told.name, "refused", told.generation] += 1
        if asked is not None and asked.request and meta is not None and asked.user == "mallory":
            self.happened["cancel", asked.job, "refused", meta.generation] += 1
        return answer

    def _moved(self, name: str) -> None:
        record = read_record(self._store.get(keys.state(name)).data, name=name)
        assert isinstance(record, JobRecord)
        before = self._records.get(record.uid)
        self._records[record.uid] = record
        if before is None:
            self.happened["submit", name, "accepted", record.generation] += 1
        elif before.job != record.job:
            self.happened["update", name, "accepted", record.generation] += 1
        if before is not None and before.outcome is None and record.outcome is not None and record.outcome.by:
            self.happened["cancel", name, "accepted", 0] += 1
        if record.status is Status.COMPLETED and (before is None or before.status is not Status.COMPLETED):
            assert record.outcome is not None
            self.happened["end", name, record.outcome.outcome, 0] += 1


def trail(cluster: Cluster) -> Counter[Happened]:
    """What the trail says, every line of it."""
    found: Counter[Happened] = Counter()
    for key in cluster.listed(keys.AUDIT):
        for data in cluster.store.get(key).data.splitlines():
            line = audit_lines.read(data)
            assert line is not None, data
            if line.job:
                exact = line.outcome.value == "refused" or line.request.value in ("submit", "update")
                found[line.request.value, line.job, line.outcome.value, line.generation if exact else 0] += 1
    return found


def ask(cluster: Cluster) -> Witness:
    """A bastion with inboxes, and requests of all kinds."""
    cluster.use_inboxes()
    cluster.settle(2)
    witness = Witness(cluster)
    cluster.store = witness
    cluster.hosts.scripts["short"] = runs_for(3)
    return witness


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("point", range(1, 48))
def test_every_request_is_in_the_trail_once_wherever_the_daemon_dies(cluster: Cluster, point: int, after: bool) -> None:
    witness = ask(cluster)
    store = kill_at(cluster, point, after=after)
    uid = cluster.submit("job", inbox="alice", instance_type="tpu-v4-16")
    cluster.submit("short", inbox="alice", instance_type="tpu-v4-16")
    cluster.put_spec("broken", b"{}", "alice")
    steps = iter(
        [
            lambda: cluster.hosts.live("job"),
            lambda: cluster.submit("job", inbox="alice", instance_type="tpu-v4-16", version=1, command="new"),
            lambda: cluster.submit("job", inbox="mallory", user="mallory", instance_type="tpu-v4-16"),
            lambda: cluster.cancel("job", inbox="mallory") or True,
            lambda: cluster.hosts.live("job") == [f"{uid}-2"] and len(cluster.listed("jobs/invalid/")) >= 2,
            lambda: not cluster.listed("inbox/mallory/user_states/"),
            lambda: cluster.cancel("job", inbox="alice") or True,
            lambda: cluster.result("job") and cluster.result("short"),
        ]
    )
    current = [next(steps)]

    def done() -> bool:
        while current and current[0]():
            current[:] = [following for following in [next(steps, None)] if following is not None]
        return not current

    survive(cluster, store, done)
    cluster.settle(3)
    expected = witness.happened
    assert expected["update", "job", "accepted", expected_update(expected)] == 1
    assert trail(cluster) == expected
    shown = Counter(line.id for line in read_audit(cluster.store, AuditFilter()))
    assert set(shown.values()) == {1}


def expected_update(happened: Counter[Happened]) -> int:
    return next(generation for request, _, _, generation in happened if request == "update")
