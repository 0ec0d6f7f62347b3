"""Mode `inbox`: who wrote a spec or a request is what the bucket says, and nobody changes another's job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import pytest

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.model.identity import Inbox
from bastion.testing.cluster import QUOTA, ROOT, Cluster
from bastion.testing.counting_store import CountingStore
from bastion.testing.scripted_hosts import runs_for


@pytest.fixture
def inboxes(cluster: Cluster) -> Iterator[Cluster]:
    """A bastion whose jobs come from inboxes; at the end nothing is left that would begin again."""
    cluster.use_inboxes()
    cluster.settle(2)
    yield cluster
    cluster.settle(3)
    for name in {key.rpartition("/")[2] for key in cluster.listed("jobs/states/")}:
        assert cluster.record(name), name


def explanation(cluster: Cluster, name: str, user: str = "") -> str:
    document = cluster.json(keys.invalid(name, user))
    return "" if document is None else str(document["problem"])


def bytes_of(cluster: Cluster, key: str) -> bytes:
    return cluster.store.get(key).data


def test_a_job_lives_and_ends_and_its_copy_is_what_its_user_wrote(inboxes: Cluster) -> None:
    inboxes.hosts.scripts["job"] = runs_for(3)
    uid = inboxes.submit("job", inbox="alice", instance_type="tpu-v4-16")
    inboxes.run_until(lambda: inboxes.hosts.live("job"))
    record = inboxes.record("job")
    assert record is not None
    assert (record.uid, record.job.user_id) == (uid, "alice")
    written = bytes_of(inboxes, keys.active("job", "alice"))
    assert bytes_of(inboxes, keys.active("job")) == written
    assert record.pin is not None
    assert (record.pin.user, record.pin.sha256) == ("alice", hashlib.sha256(written).hexdigest())
    inboxes.run_until(lambda: inboxes.result("job"))
    assert inboxes.listed("inbox/") == inboxes.listed("jobs/active/") == []
    assert (inboxes.result("job") or {})["uid"] == uid


def test_what_is_written_to_jobs_active_is_never_executed(inboxes: Cluster) -> None:
    inboxes.submit("old", user="alice")
    inboxes.settle(6)
    assert inboxes.status("old") == "none"
    assert "takes jobs and requests from inbox/<user>/ only" in explanation(inboxes, "old")
    assert not inboxes.hosts.began


def test_a_forged_user_id_is_refused(inboxes: Cluster) -> None:
    inboxes.submit("job", user="alice", inbox="mallory")
    inboxes.settle(5)
    assert inboxes.status("job") == "none"
    assert "metadata.user_id is 'alice', but the spec is in the inbox of mallory" in explanation(
        inboxes, "job", "mallory"
    )


def test_a_name_belongs_to_whom_was_accepted_first_and_a_refusal_is_final(inboxes: Cluster) -> None:
    inboxes.hosts.scripts["job"] = runs_for(8)
    first = inboxes.submit("job", inbox="alice", instance_type="tpu-v4-16")
    inboxes.run_until(lambda: inboxes.hosts.live("job"))
    inboxes.submit("job", inbox="bob", user="bob", project="b", instance_type="tpu-v4-16", version=1)
    inboxes.settle(3)
    assert "belongs to a job of alice" in explanation(inboxes, "job", "bob")
    assert inboxes.hosts.live("job") == [f"{first}-1"]
    inboxes.run_until(lambda: inboxes.result("job"))
    inboxes.settle(5)
    assert inboxes.status("job") == "none", "what was refused does not begin by surprise"
    assert len(inboxes.hosts.began) == 2
    inboxes.submit("job", inbox="bob", user="bob", project="b", instance_type="tpu-v4-16")
    inboxes.settle(3)
    assert (inboxes.record("job") or inboxes).job.user_id == "bob"
    assert explanation(inboxes, "job", "bob") == ""


def test_an_explanation_goes_with_its_object(inboxes: Cluster) -> None:
    inboxes.submit("job", user="alice", inbox="mallory")
    inboxes.settle(4)
    meta = inboxes.store.head(keys.active("job", "mallory"))
    assert meta is not None
    assert explanation(inboxes, "job", "mallory")
    inboxes.store.delete(meta.key, generation=meta.generation)
    inboxes.settle(3)
    assert inboxes.listed("jobs/invalid/") == []


def test_an_update_by_another_user_changes_nothing_and_by_its_own_is_done(inboxes: Cluster) -> None:
    uid = inboxes.submit("job", inbox="alice", instance_type="tpu-v4-128")
    inboxes.settle(3)
    inboxes.submit("job", inbox="mallory", user="alice", instance_type="tpu-v4-128", version=1, command="evil")
    inboxes.submit("job", user="alice", instance_type="tpu-v4-128", version=1, command="evil")  # the old way
    inboxes.settle(5)
    record = inboxes.record("job")
    assert record is not None
    assert record.job.command == "run"
    assert bytes_of(inboxes, keys.active("job")) == bytes_of(inboxes, keys.active("job", "alice")), "put back"
    inboxes.submit("job", inbox="alice", instance_type="tpu-v4-128", version=1, command="new")
    inboxes.settle(3)
    record = inboxes.record("job")
    assert record is not None
    assert (record.uid, record.job.command) == (uid, "new")
    assert bytes_of(inboxes, keys.active("job")) == bytes_of(inboxes, keys.active("job", "alice"))


def test_a_cancel_counts_from_its_submitter_only(inboxes: Cluster) -> None:
    inboxes.submit("job", inbox="alice", instance_type="tpu-v4-16")
    inboxes.run_until(lambda: inboxes.hosts.live("job"))
    inboxes.cancel("job", inbox="mallory")
    inboxes.store.put(keys.user_state("job"), b"CANCELLING", generation=0)  # the old way
    inboxes.settle(4)
    assert inboxes.hosts.live("job")
    assert inboxes.listed("inbox/mallory/") == inboxes.listed("jobs/user_states/") == []
    assert sum("cancel by mallory refused" in line for line in inboxes.history("job")) == 1
    assert "who may cancel it" in explanation(inboxes, "job", "mallory")
    inboxes.cancel("job", inbox="mallory")
    inboxes.settle(2)
    assert sum("cancel by mallory refused" in line for line in inboxes.history("job")) == 1, "nobody fills it"
    inboxes.cancel("job", inbox="mallory")
    inboxes.store.put(
        keys.user_state("job", "alice"),
        b'{"status": "CANCELLING", "metadata": {"by": "bob"}}',
        generation=0,
    )
    inboxes.run_until(lambda: inboxes.result("job"))
    result = inboxes.result("job") or {}
    assert (result["outcome"], result["by"]) == ("cancelled", "alice"), "by comes from the folder"
    inboxes.settle(15)
    assert inboxes.listed("inbox/") == inboxes.listed("jobs/invalid/") == []


def test_nobody_fills_the_history_of_anothers_job_by_a_spec_between_two_requests(inboxes: Cluster) -> None:
    inboxes.submit("job", inbox="alice", instance_type="tpu-v4-16")
    inboxes.run_until(lambda: inboxes.hosts.live("job"))
    for _ in range(3):
        inboxes.cancel("job", inbox="mallory")
        inboxes.settle(2)
        inboxes.submit("job", inbox="mallory", user="mallory", instance_type="tpu-v4-16")
        inboxes.settle(2)
        meta = inboxes.store.head(keys.active("job", "mallory"))
        assert meta is not None
        inboxes.store.delete(meta.key, generation=meta.generation)
        inboxes.settle(2)
    assert sum("cancel by mallory refused" in line for line in inboxes.history("job")) == 1
    assert inboxes.json(keys.STATUS).get("invalid", []) == []
    inboxes.cancel("job", inbox="alice")
    inboxes.run_until(lambda: inboxes.result("job"))
    inboxes.settle(3)
    assert inboxes.listed("jobs/invalid/") == []


def test_a_cancel_by_another_user_before_the_job_is_accepted_changes_nothing(inboxes: Cluster) -> None:
    inboxes.cancel("job", inbox="mallory")
    inboxes.clock.advance(1)
    inboxes.submit("job", inbox="alice", instance_type="tpu-v4-16")
    inboxes.clock.advance(1)
    inboxes.settle(4)
    assert inboxes.hosts.live("job")


def test_a_spec_and_a_request_of_one_name_beside_the_inboxes_are_both_dealt_with(inboxes: Cluster) -> None:
    inboxes.submit("job", inbox="alice", instance_type="tpu-v4-16")
    inboxes.run_until(lambda: inboxes.hosts.live("job"))
    for _ in range(3):
        inboxes.submit("job", user="alice", version=1)
        inboxes.settle(1)
        inboxes.store.put(keys.user_state("job"), b"CANCELLING", generation=0)
        inboxes.settle(4)
        assert inboxes.listed("jobs/user_states/") == []
        assert bytes_of(inboxes, keys.active("job")) == bytes_of(inboxes, keys.active("job", "alice"))
        assert inboxes.json(keys.STATUS)["alarms"] == []
    assert inboxes.hosts.live("job")


def test_a_request_for_an_unknown_job_is_removed(inboxes: Cluster) -> None:
    inboxes.cancel("nothing", inbox="alice")
    inboxes.cancel("nothing", inbox="bob")
    inboxes.settle(14)
    assert inboxes.listed("inbox/") == []


def test_an_admin_of_the_quota_file_may_cancel(inboxes: Cluster) -> None:
    inboxes.write_quota(QUOTA + b'[admins.projects]\na = ["carol"]\nb = ["dave"]\n')
    inboxes.submit("job", inbox="alice", instance_type="tpu-v4-16")
    inboxes.run_until(lambda: inboxes.hosts.live("job"))
    inboxes.cancel("job", inbox="dave")
    inboxes.settle(3)
    assert inboxes.hosts.live("job")
    inboxes.cancel("job", inbox="carol")
    inboxes.run_until(lambda: inboxes.result("job"))
    assert (inboxes.result("job") or {})["by"] == "carol"


def test_a_spec_that_its_user_deletes_is_a_cancel(inboxes: Cluster) -> None:
    inboxes.submit("job", inbox="alice", instance_type="tpu-v4-16")
    inboxes.run_until(lambda: inboxes.hosts.live("job"))
    meta = inboxes.store.head(keys.active("job", "alice"))
    assert meta is not None
    inboxes.store.delete(meta.key, generation=meta.generation)
    inboxes.run_until(lambda: inboxes.result("job"))
    assert (inboxes.result("job") or {})["outcome"] == "cancelled"
    assert inboxes.listed("jobs/active/") == []


def test_a_copy_that_somebody_deletes_or_changes_is_put_back_and_the_job_goes_on(inboxes: Cluster) -> None:
    uid = inboxes.submit("job", inbox="alice", instance_type="tpu-v4-16")
    inboxes.run_until(lambda: inboxes.hosts.live("job"))
    for damage in (b"{}", None):
        meta = inboxes.store.head(keys.active("job"))
        assert meta is not None
        if damage is None:
            inboxes.store.delete(meta.key, generation=meta.generation)
        else:
            inboxes.store.put(meta.key, damage, generation=meta.generation)
        inboxes.settle(6)
        assert bytes_of(inboxes, keys.active("job")) == bytes_of(inboxes, keys.active("job", "alice"))
    assert inboxes.hosts.live("job") == [f"{uid}-1"]


def test_a_job_of_a_projects_inbox_must_be_the_projects(cluster: Cluster) -> None:
    cluster.use_inboxes({"research": Inbox(member="group:research@example.com", project="b")})
    cluster.settle(2)
    cluster.submit("other", inbox="research", user="alice", project="a")
    cluster.submit("job", inbox="research", user="bob", project="b", instance_type="tpu-v4-16")
    cluster.settle(4)
    assert "for jobs of the project b" in explanation(cluster, "other", "research")
    assert cluster.hosts.live("job")
    (entry,) = cluster.json(keys.STATUS)["jobs"]
    assert (entry["user_id"], entry["unverified"]) == ("bob", True), "the inbox proves the project only"
    cluster.cancel("job", inbox="research")
    cluster.run_until(lambda: cluster.result("job"))
    assert (cluster.result("job") or {})["by"] == "research"


def test_jobs_of_an_open_bastion_go_on_when_it_gets_inboxes_and_when_it_loses_them(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(40)
    before = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.use_inboxes()
    cluster.submit("late")  # in the moment of the change
    cluster.settle(40)  # the settings are listed now and then
    cluster.submit("stray")
    cluster.settle(5)
    assert cluster.status("stray") == "none"
    assert cluster.result("job") or cluster.hosts.live("job") == [f"{before}-1"]
    cluster.run_until(lambda: cluster.result("job"))
    assert (cluster.result("job") or {})["outcome"] == "succeeded"


def test_a_job_of_an_inbox_goes_on_in_mode_open_and_does_not_begin_again(inboxes: Cluster) -> None:
    inboxes.hosts.scripts["job"] = runs_for(45)
    uid = inboxes.submit("job", inbox="alice", instance_type="tpu-v4-16")
    inboxes.run_until(lambda: inboxes.hosts.live("job"))
    meta = inboxes.store.head(keys.IDENTITY)
    assert meta is not None
    inboxes.store.put(meta.key, b'{"format": 1, "mode": "open"}', generation=meta.generation)
    inboxes.restart_daemon()
    inboxes.submit("other")
    inboxes.settle(3)
    assert inboxes.status("other") != "none"
    assert inboxes.hosts.live("job") == [f"{uid}-1"]
    inboxes.run_until(lambda: inboxes.result("job"))
    inboxes.use_inboxes()
    inboxes.restart_daemon()
    inboxes.settle(5)
    assert inboxes.status("job") == "none"
    assert len(inboxes.hosts.began) <= 4


@pytest.mark.parametrize("damage", [None, b"{}}", b'{"format": 2}', b'{"format": 1, "mode": "both"}'])
def test_a_bastion_of_inboxes_never_falls_back_to_open(inboxes: Cluster, damage: bytes | None) -> None:
    meta = inboxes.store.head(keys.IDENTITY)
    assert meta is not None
    if damage is None:
        inboxes.store.delete(meta.key, generation=meta.generation)
    else:
        inboxes.store.put(meta.key, damage, generation=meta.generation)
    for _ in range(2):
        inboxes.restart_daemon()
        inboxes.submit("stray")
        inboxes.settle(4)
        assert inboxes.status("stray") == "none"
        assert any("config/identity.json" in alarm for alarm in inboxes.json(keys.STATUS)["alarms"])
    copy = inboxes.store.head(keys.IDENTITY_IN_FORCE)
    assert copy is not None
    inboxes.store.put(copy.key, b"garbage", generation=copy.generation)
    inboxes.restart_daemon()
    inboxes.settle(3)
    assert inboxes.status("stray") == "none"


def test_a_spec_that_changed_between_look_and_copy_is_read_again(inboxes: Cluster) -> None:
    class Changing(CountingStore):
        """Changes the spec right after the first read."""

        def get(self, key: str, *, start: int = 0, max_bytes: int = 2**26):  # type: ignore[no-untyped-def]
            stored = super().get(key, start=start, max_bytes=max_bytes)
            if key == keys.active("job", "alice") and self.read.count(key) == 1:
                inboxes.put_spec("job", stored.data.replace(b'"run"', b'"changed"'), "alice")
            return stored

    inboxes.clock.advance(10)
    inboxes.daemon = inboxes.new_daemon(Changing(inboxes.store))
    inboxes.submit("job", inbox="alice", instance_type="tpu-v4-128")
    inboxes.settle(20)
    record = inboxes.record("job")
    assert record is not None
    assert record.job.command == "changed"
    assert record.pin is not None
    copy = bytes_of(inboxes, keys.active("job"))
    assert json.loads(copy)["command"] == "changed"
    assert hashlib.sha256(copy).hexdigest() == record.pin.sha256


def test_the_uid_of_a_job_cannot_be_had_from_another_inbox(inboxes: Cluster) -> None:
    assert keys.job_uid(ROOT, "job", 7, owner="alice") != keys.job_uid(ROOT, "job", 7, owner="bob")
    assert keys.job_uid(ROOT, "job", 7) != keys.job_uid(ROOT, "job", 7, owner="alice")


@pytest.mark.parametrize("name", ["A B", "x~y", "../up", "a/b", "x" * 200, "job.cleanup"])
def test_names_that_no_job_may_have_are_refused_in_inboxes_too(inboxes: Cluster, name: str) -> None:
    inboxes.put_spec(name, b"{}", "alice")
    inboxes.settle(4)
    assert explanation(inboxes, name, "alice")
    assert inboxes.listed("jobs/states/") == []


def test_an_idle_tick_costs_what_it_costs_in_mode_open() -> None:
    costs = []
    for inbox in ("", "alice"):
        cluster = Cluster(lease_ttl_seconds=60.0)
        if inbox:
            cluster.use_inboxes()
        counting = CountingStore(cluster.store)
        cluster.daemon = cluster.new_daemon(counting)
        for number in range(4):
            cluster.submit(f"job-{number}", inbox=inbox, instance_type="tpu-v4-32")
        for _ in range(12):
            cluster.step(10.0)
        counting.reset()
        for _ in range(60):
            cluster.step(10.0)
        costs.append((dict(counting.calls), counting.requests))
    assert costs[0] == costs[1]


def test_a_spec_that_waits_for_room_in_the_queue_keeps_its_name(cluster: Cluster) -> None:
    cluster.write_quota(QUOTA + b"[project_rules]\nmax_queued_jobs_per_user = 1\n")
    cluster.use_inboxes()
    cluster.settle(2)
    for name in ("first", "second"):
        cluster.submit(name, inbox="alice", instance_type="tpu-v4-128")
        cluster.clock.advance(1)
    cluster.settle(3)
    assert [cluster.status(name) for name in ("first", "second")] == ["PENDING", "none"]
    cluster.submit("second", inbox="bob", user="bob", project="b", instance_type="tpu-v4-16")
    cluster.settle(3)
    assert "belongs to a job of alice" in explanation(cluster, "second", "bob")
    cluster.cancel("first", inbox="alice")
    cluster.settle(6)
    record = cluster.record("second")
    assert record is not None
    assert record.owner == "alice"


def test_the_status_says_the_mode_and_what_is_refused(inboxes: Cluster) -> None:
    inboxes.submit("job", user="alice", inbox="mallory")
    inboxes.settle(5)
    status = inboxes.json(keys.STATUS)
    assert status["mode"] == "inbox"
    (refused,) = status["invalid"]
    assert (refused["name"], refused["user"]) == ("job", "mallory")
    assert "make them equal" in refused["problem"]


def test_a_large_bastion_sees_its_inboxes_in_every_tick_and_what_lies_beside_them_now_and_then(
    inboxes: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "LIST_PAGE_OBJECTS", 5)
    for number in range(40):
        inboxes.submit(f"job-{number:02}", inbox="alice", instance_type="tpu-v4-128")
    inboxes.settle(6)
    counting = CountingStore(inboxes.store)
    inboxes.clock.advance(10)
    inboxes.daemon = inboxes.new_daemon(counting)
    inboxes.settle(12)
    counting.reset()
    inboxes.step()
    assert not [prefix for prefix in counting.listed if prefix.startswith("jobs/active")], "the copies are not listed"
    inboxes.submit("new", inbox="bob", user="bob", project="b", instance_type="tpu-v4-16")
    inboxes.step()
    assert inboxes.status("new") == "PENDING"
    inboxes.cancel("job-30", inbox="alice")
    inboxes.step()
    assert inboxes.status("job-30") in ("CANCELLING", "CLEANING", "COMPLETED", "none")
    inboxes.submit("foreign")
    inboxes.store.put(keys.user_state("job-07"), b"CANCELLING", generation=0)
    inboxes.settle(70)
    assert inboxes.status("foreign") == "none"
    assert "takes jobs and requests from inbox/<user>/ only" in explanation(inboxes, "foreign")
    assert inboxes.listed("jobs/user_states/") == []
    assert inboxes.status("job-07") == "PENDING"
