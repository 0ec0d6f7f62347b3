"""The audit trail: what it says of each kind of request, and what it does when it cannot be written."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping

import pytest

from bastion.adapters.forwarding_store import ForwardingStore
from bastion.client.audit import AuditFilter, read_audit
from bastion.core import documents, limits
from bastion.core.bucket import keys
from bastion.core.errors import AccessDenied
from bastion.core.instants import utc_day
from bastion.core.model import audit_lines
from bastion.core.model.audit_lines import AuditLine
from bastion.core.model.identity import Inbox
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.faulty_store import Fault, FaultyStore
from bastion.testing.scripted_hosts import runs_for
from tests.support.store_calls import T


class NoAudit(ForwardingStore):
    """A bucket whose daemon may not write the trail, while `denied`."""

    denied = True

    def _call(self, method: str, key: str, call: Callable[[], T]) -> T:
        if self.denied and key.startswith(keys.AUDIT) and method in ("append", "put"):
            raise AccessDenied(f"no permission to create {key}")
        return super()._call(method, key, call)


def lines(cluster: Cluster, **wanted: str) -> list[AuditLine]:
    return read_audit(cluster.store, AuditFilter(**wanted))


def stored(cluster: Cluster) -> list[bytes]:
    return [line for key in cluster.listed(keys.AUDIT) for line in cluster.store.get(key).data.splitlines()]


def told(cluster: Cluster, **wanted: str) -> list[tuple[str, str, str]]:
    return [(line.who, line.request.value, line.outcome.value) for line in lines(cluster, **wanted)]


# -- what it says -----------------------------------------------------------------------------------------------


def test_it_says_who_by_the_inbox_and_never_by_the_document(cluster: Cluster) -> None:
    cluster.use_inboxes({"alice": Inbox(), "bob": Inbox()})
    cluster.write_quota(QUOTA + b'[admins]\nbastion = ["bob"]\n')
    cluster.settle(2)
    cluster.submit("job", inbox="alice", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    forged = {"status": "CANCELLING", "metadata": {"by": "alice"}}
    cluster.store.put(keys.user_state("job", "mallory"), documents.dumps(forged), generation=0)
    cluster.settle(3)
    cluster.store.put(keys.user_state("job", "bob"), documents.dumps(forged), generation=0)
    cluster.run_until(lambda: cluster.result("job"))
    assert told(cluster, job="job") == [
        ("alice", "submit", "accepted"),
        ("mallory", "cancel", "refused"),
        ("bob", "cancel", "accepted"),
        ("bob", "end", "cancelled"),
    ]
    assert [line.proof and line.proof.value for line in lines(cluster, job="job", request="cancel")] == [
        "inbox folder",
        "inbox folder",
    ]
    assert "is the job of alice" in lines(cluster, outcome="refused")[0].why


def test_in_mode_open_names_are_called_self_declared_and_refused_documents_are_not_believed(cluster: Cluster) -> None:
    cluster.submit("job", user="alice", instance_type="tpu-v4-16")
    cluster.put_spec("bad", json.dumps({"name": "bad", "metadata": {"user_id": "the-boss"}}).encode())
    cluster.store.put(keys.user_state("gone"), b"CANCELLING", generation=0)
    cluster.settle(12)
    cluster.submit("job", user="mallory", instance_type="tpu-v4-16", version=1, command="mine")
    cluster.settle(12)
    found = [(line.who, line.proof and line.proof.value, line.outcome.value) for line in lines(cluster)[2:]]
    assert sorted(found, key=str) == [
        ("", None, "ignored"),
        ("", None, "refused"),
        ("alice", "self-declared", "accepted"),
        ("mallory", "self-declared", "accepted"),
    ]


def test_it_names_the_digest_of_what_was_asked_and_no_value_of_it(cluster: Cluster) -> None:
    cluster.submit("job", instance_type="tpu-v4-16", env_vars={"TOKEN": "hunter2"})
    data = cluster.store.get(keys.active("job")).data
    bad = json.loads(data)
    bad["env_vars"] = {"TOKEN": ["hunter2"]}
    cluster.put_spec("bad", json.dumps({**bad, "name": "bad"}).encode())
    cluster.settle(4)
    (line,) = lines(cluster, job="job")
    assert line.sha256 == hashlib.sha256(data).hexdigest()
    (refused,) = lines(cluster, job="bad")
    assert refused.sha256 == hashlib.sha256(cluster.store.get(keys.active("bad")).data).hexdigest()
    assert not any(b"hunter2" in line for line in stored(cluster))


def test_root_what_is_not_allowed_files_of_administrators_and_daemons_have_lines(cluster: Cluster) -> None:
    cluster.settle(2)
    cluster.submit("rooted", instance_type="tpu-v4-16", root=True)
    cluster.settle(2)
    assert told(cluster, job="rooted") == [("alice", "submit", "waiting")]
    assert "allow_root = false" in lines(cluster, job="rooted")[0].why
    cluster.write_quota(QUOTA + b"[project_rules.a]\nallow_root = true\n")
    cluster.run_until(lambda: cluster.hosts.live("rooted"))
    assert told(cluster, job="rooted", request="root") == [("alice", "root", "accepted")]
    cluster.write_settings(b'bastion_host_jobs = "off"\n')
    cluster.use_inboxes({"alice": Inbox()})
    cluster.settle(40)
    cluster.restart_daemon()
    cluster.settle(3)
    files = [line for line in lines(cluster) if not line.job]
    assert [line.request.value for line in files] == ["daemon", "quota", "quota", "settings", "identity", "daemon"]
    assert "mode inbox" in files[4].why
    meta = cluster.store.head(keys.PROJECT_QUOTAS)
    assert meta is not None
    assert f"whoever wrote generation {meta.generation}" in files[2].why


def test_an_update_that_stops_an_attempt_has_its_line_even_if_it_is_replaced_before_it_is_taken(
    cluster: Cluster,
) -> None:
    cluster.submit("job", user="alice", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    for count, command in enumerate(("other", "third"), 1):  # the second before the first is taken
        cluster.submit("job", user="alice", instance_type="tpu-v4-16", version=1, command=command)
        cluster.settle(1)
        assert told(cluster, job="job", request="update") == [("alice", "update", "accepted")] * count
        assert cluster.record("job").job.version is None
    cluster.run_until(lambda: cluster.record("job").job.version == 1)
    assert cluster.record("job").job.command == "third"
    cluster.settle(3)
    assert told(cluster, job="job", request="update") == [("alice", "update", "accepted")] * 2
    assert len({line.sha256 for line in lines(cluster, job="job", request="update")}) == 2


def test_an_idle_daemon_writes_nothing_and_a_busy_tick_appends_once(cluster: Cluster) -> None:
    cluster.settle(3)
    before = cluster.store.head(keys.audit(utc_day(cluster.clock.now())))
    cluster.settle(20)
    assert cluster.store.head(keys.audit(utc_day(cluster.clock.now()))) == before


# -- bad times --------------------------------------------------------------------------------------------------


def test_jobs_go_on_while_it_cannot_be_written_and_the_lines_come_later(cluster: Cluster) -> None:
    store = NoAudit(cluster.store)
    cluster.daemon = cluster.new_daemon(store)
    cluster.use_inboxes()
    cluster.settle(2)
    cluster.submit("stray", instance_type="tpu-v4-16")
    uid = cluster.submit("job", inbox="alice", instance_type="tpu-v4-16")
    cluster.hosts.scripts["job"] = runs_for(3)
    cluster.run_until(lambda: cluster.hosts.began)
    alarm = next(alarm for alarm in cluster.json(keys.STATUS)["alarms"] if "audit trail audit/" in alarm)
    assert "no permission to create audit/" in alarm
    assert "give the daemon the right to write there" in alarm
    assert cluster.listed("jobs/invalid/") == [], "answers wait, for a minute at most"
    cluster.run_until(lambda: cluster.result("job"), steps=100)
    cluster.run_until(lambda: cluster.listed("jobs/invalid/"), steps=100)
    assert stored(cluster) == []
    store.denied = False
    cluster.settle(3)
    assert not any("audit" in alarm for alarm in cluster.json(keys.STATUS)["alarms"])
    assert told(cluster, job="job") == [("alice", "submit", "accepted"), ("", "end", "succeeded")]
    assert told(cluster, job="stray") == [("", "submit", "refused")]
    assert {line.uid for line in lines(cluster, job="job")} == {uid}
    assert len({json.loads(line)["id"] for line in stored(cluster)}) == len(stored(cluster))


def test_what_is_too_much_for_the_memory_is_a_gap_in_the_trail(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AUDIT_LINES_WAITING_MAX", 6)
    store = NoAudit(cluster.store)
    cluster.daemon = cluster.new_daemon(store)
    cluster.step()  # two lines: the daemon, and the quota file
    for number in range(10):
        cluster.submit(f"job-{number}", instance_type="tpu-v4-128")
    cluster.settle(5)
    store.denied = False
    cluster.settle(2)
    found = lines(cluster)
    assert [(line.request.value, line.count) for line in found if line.outcome.value == "lost"] == [("gap", 6)]
    assert sum(line.request.value == "submit" for line in found) == 6
    assert b'"count":6' in stored(cluster)[0]


def test_a_successor_appends_what_the_states_have_and_says_that_more_may_be_missing(cluster: Cluster) -> None:
    store = NoAudit(cluster.store)
    cluster.daemon = cluster.new_daemon(store)
    cluster.submit("waiting", instance_type="tpu-v4-128")
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))  # its state was written several times since it was accepted
    cluster.settle(3)
    cluster.restart_daemon()
    cluster.settle(4)
    assert told(cluster, job="waiting", request="submit") == [("alice", "submit", "accepted")]
    assert told(cluster, job="job", request="submit") == [("alice", "submit", "accepted")]
    (gap,) = lines(cluster, request="gap")
    assert "the daemon before this one could not write the audit trail" in gap.why
    cluster.restart_daemon()
    cluster.settle(4)
    assert len(lines(cluster, request="gap")) == 1


@pytest.mark.parametrize("fault", list(Fault), ids=lambda fault: fault.name)
def test_a_lost_request_or_reply_neither_loses_nor_doubles_a_line(cluster: Cluster, fault: Fault) -> None:
    faulty = FaultyStore(cluster.store)
    cluster.daemon = cluster.new_daemon(faulty)
    cluster.settle(2)
    day = keys.audit(utc_day(cluster.clock.now()))
    for number in range(4):
        faulty.fail_next("append", key=day, fault=fault)
        cluster.submit(f"job-{number}", instance_type="tpu-v4-128")
        cluster.put_spec(f"bad-{number}", b"{}")
        cluster.settle(4)
    assert sum(call.key == day for call in faulty.failed) == 4
    ids = [json.loads(line)["id"] for line in stored(cluster)]
    assert len(ids) == len(set(ids)) == 2 + 8


@pytest.mark.parametrize("cut", ["begun", "whole"])
def test_a_line_that_broke_off_is_written_whole_and_once(cluster: Cluster, cut: str) -> None:
    cluster.submit("job", instance_type="tpu-v4-128")
    cluster.settle(2)
    (key,) = cluster.listed(keys.AUDIT)
    found = cluster.store.get(key)
    last = found.data.splitlines(keepends=True)[-1]
    left = found.data[: -len(last)] + (last[:40] if cut == "begun" else last[:-1])
    cluster.store.put(key, left, generation=found.meta.generation)
    assert len(lines(cluster, job="job")) == (cut == "whole")
    cluster.restart_daemon()
    cluster.settle(3)
    assert sum(line == last[:-1] for line in stored(cluster)) == 1
    assert len(lines(cluster, job="job")) == 1


def test_a_restarted_daemon_doubles_nothing_of_jobs_that_wait_for_days(cluster: Cluster) -> None:
    for day in range(3):
        cluster.submit(f"job-{day}", instance_type="tpu-v4-128")
        cluster.settle(2)
        cluster.clock.advance(86_400)
    before = stored(cluster)
    cluster.restart_daemon()
    cluster.settle(4)
    assert [line for line in stored(cluster) if b'"daemon"' not in line] == [
        line for line in before if b'"daemon"' not in line
    ]
    assert len(cluster.listed(keys.AUDIT)) == 4


# -- bounds -----------------------------------------------------------------------------------------------------


def test_a_flood_of_bad_specs_has_bounded_lines_and_all_are_counted(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AUDIT_REFUSALS_OF_USER_MAX", 20)
    cluster.settle(2)
    for number in range(300):
        cluster.put_spec(f"bad-{number}", b"{}")
    cluster.settle(4)
    found = lines(cluster, outcome="refused")
    assert len(found) == 21
    assert sum(line.count for line in found) == 300
    assert found[-1].count == 280
    assert "counted together" in found[-1].why
    cluster.restart_daemon()
    cluster.settle(4)
    assert len(lines(cluster, outcome="refused")) == 21, "they were answered"


def test_one_users_flood_leaves_room_for_others(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "AUDIT_REFUSALS_OF_USER_MAX", 20)
    cluster.use_inboxes()
    cluster.settle(2)
    for number in range(100):
        cluster.put_spec(f"a-bad-{number}", b"{}", "mallory")
    cluster.put_spec("z-bad", b"{}", "alice")
    cluster.settle(4)
    assert told(cluster, user="alice") == [("alice", "submit", "refused")]


NAMES: Mapping[str, str] = {
    "quotes": 'a","who":"root',
    "escape": "\x1b[2J\x07",
    "bidi": "\u202egpj.exe",
    "separator": "a\u2028b",
    "long": "x" * 900,
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_hostile_name_stays_within_its_field(cluster: Cluster, name: str) -> None:
    cluster.put_spec(name, b"{}")
    cluster.put_spec("job", json.dumps({"name": "job", "command": name * 40, "metadata": {"user_id": name}}).encode())
    cluster.settle(4)
    for line in stored(cluster):
        assert len(line) < 4000
        assert line.decode().isprintable()
        found = audit_lines.read(line)
        assert found is not None
        assert found.who == ""
    assert len(lines(cluster, outcome="refused")) == 2


def test_a_day_goes_on_in_another_object_and_nothing_is_rewritten(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "AUDIT_PART_BYTES", 2000)
    for number in range(12):
        cluster.submit(f"job-{number:02}", instance_type="tpu-v4-128")
        cluster.settle(1)
    cluster.restart_daemon()
    cluster.submit("job-12", instance_type="tpu-v4-128")
    cluster.settle(3)
    day = utc_day(cluster.clock.now())
    assert cluster.listed(keys.AUDIT)[:2] == [keys.audit(day), keys.audit(day, 1)]
    assert [line.job for line in lines(cluster, request="submit")] == [f"job-{number:02}" for number in range(13)]
    assert len(stored(cluster)) == len(lines(cluster))
