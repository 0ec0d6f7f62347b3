"""What a new quota file would do to the jobs, told by the scheduler itself; and replacing the file safely."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bastion.client import Client
from bastion.client.quota.upload import QuotaClient
from bastion.core.bucket import keys
from bastion.core.errors import InvalidDocument, Refused
from bastion.core.status import packing
from bastion.core.status.jobs import published_jobs
from bastion.testing.cluster import Cluster
from bastion.wiring.roots import parse_root
from quota import Policy, load
from scheduler import Job, JobStatus, Snapshot, Verdict, schedule
from scheduler.simulation.policy_change import effect_of

NOW = 10_000.0


def quota_text(v4: int = 64, *, a: float = 1.0, b: float = 0.0, members: str = 'a = ["alice"]\nb = ["bob"]') -> bytes:
    return (
        f'[toml-schema]\nversion = "1"\n[total_resources]\nv4 = {v4}\n[project_membership]\n{members}\n'
        f"[project_resources.a]\nv4 = {a}\n[project_resources.b]\nv4 = {b}\n"
    ).encode()


def policy(v4: int = 64, *, a: float = 1.0, b: float = 0.0) -> Policy:
    return load(quota_text(v4, a=a, b=b))


def job(name: str, project: str, units: int, *, running: bool, kind: str = "v4", started_at: float = 100.0) -> Job:
    amounts = {kind: units}
    return Job(
        name=name,
        project_id=project,
        user_id={"a": "alice", "b": "bob"}[project],
        queued_at=1.0,
        demand=amounts,
        status=JobStatus.RUNNING if running else JobStatus.PENDING,
        charged=amounts if running else {},
        tier=0 if running else None,
        started_at=started_at if running else None,
    )


# -- the effect of a policy --------------------------------------------------------------------------------------------


def test_a_smaller_share_stops_no_job_while_nobody_asks() -> None:
    jobs = (job("a-1", "a", 64, running=True),)
    effect = effect_of(Snapshot(policy=policy(), jobs=jobs), policy(a=1, b=3), NOW)
    assert effect.stopped == ()
    (borrowing,) = effect.borrowing
    assert (borrowing.project, borrowing.held, borrowing.entitlement_before, borrowing.entitlement) == ("a", 64, 64, 16)


def test_a_share_that_an_owner_waits_for_stops_the_borrower_and_says_for_whom() -> None:
    jobs = (
        job("a-1", "a", 32, running=True, started_at=100.0),
        job("a-2", "a", 32, running=True, started_at=200.0),
        job("b-1", "b", 16, running=False),
    )
    effect = effect_of(Snapshot(policy=policy(), jobs=jobs), policy(a=1, b=1), NOW)
    (stopped,) = effect.stopped
    assert (stopped.job.name, stopped.claimant) == ("a-2", "b-1")
    assert "is using 64 v4 and its share is 32" in stopped.message
    assert effect.borrowing == ()  # what stays is within its share


def test_what_the_old_policy_stops_anyway_is_not_the_new_ones_doing() -> None:
    jobs = (job("a-1", "a", 64, running=True), job("b-1", "b", 16, running=False))
    effect = effect_of(Snapshot(policy=policy(a=1, b=1), jobs=jobs), policy(a=1, b=2), NOW)
    assert effect.stopped == ()
    unknown = effect_of(Snapshot(policy=None, jobs=jobs), policy(a=1, b=2), NOW)
    assert [stopped.job.name for stopped in unknown.stopped] == ["a-1"]


def test_a_job_that_backs_off_counts_as_if_it_asked_now() -> None:
    waiting = replace(job("b-1", "b", 16, running=False), not_before=NOW + 60)
    jobs = (job("a-1", "a", 64, running=True), waiting)
    effect = effect_of(Snapshot(policy=policy(), jobs=jobs), policy(a=1, b=1), NOW)
    assert [stopped.job.name for stopped in effect.stopped] == ["a-1"]


def test_a_pool_below_what_is_in_use_stops_nothing_and_is_told() -> None:
    jobs = (job("a-1", "a", 64, running=True),)
    effect = effect_of(Snapshot(policy=policy(), jobs=jobs), policy(32), NOW)
    assert effect.stopped == ()
    assert [(pool.resource_type, pool.used, pool.total) for pool in effect.overfull] == [("v4", 64, 32)]
    assert [bar.message for bar in effect.barred_running] == ["needs more than the whole pool: 64 v4 of 32"]


def test_jobs_that_lose_their_project_or_their_type_go_on_and_cannot_start_again() -> None:
    jobs = (
        job("a-1", "a", 8, running=True),
        job("b-1", "b", 8, running=False),
        job("a-2", "a", 999, running=False),  # never could
    )
    without_b = Policy(tiers=({"v4": 64},), weights={"a": {"v4": 1.0}}, members={"a": ("alice",)})
    effect = effect_of(Snapshot(policy=policy(), jobs=jobs), without_b, NOW)
    assert [(bar.job.name, bar.message) for bar in effect.barred_waiting] == [
        ("b-1", "the quota file has no project b; bob is a member of no project")
    ]
    assert effect.barred_running == ()
    other_type = Policy(tiers=({"v5p": 64},), weights={"a": {"v5p": 1.0}}, members={"a": ("alice",)})
    effect = effect_of(Snapshot(policy=policy(), jobs=jobs), other_type, NOW)
    assert [bar.job.name for bar in effect.barred_running] == ["a-1"]
    assert effect.stopped == ()


def test_waiting_jobs_that_a_larger_pool_starts_are_named() -> None:
    jobs = (job("a-1", "a", 64, running=True), job("a-2", "a", 32, running=False))
    effect = effect_of(Snapshot(policy=policy(), jobs=jobs), policy(128), NOW)
    assert effect.starting == ("a-2",)


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    made = [
        job(
            f"{number}", draw(st.sampled_from("ab")), draw(st.sampled_from([4, 8, 16, 32])), running=draw(st.booleans())
        )
        for number in range(draw(st.integers(0, 8)))
    ]
    shares = st.sampled_from([0.0, 1.0, 3.0])
    return Snapshot(policy=policy(draw(st.sampled_from([32, 64])), a=draw(shares), b=draw(shares)), jobs=tuple(made))


@settings(max_examples=150)
@given(snapshots(), st.sampled_from([16, 32, 64]), st.sampled_from([0.0, 1.0, 3.0]), st.sampled_from([0.0, 1.0, 3.0]))
def test_whom_the_forecast_names_the_scheduler_stops_and_nobody_else_on_the_new_files_account(
    snapshot: Snapshot, v4: int, a: float, b: float
) -> None:
    new = policy(v4, a=a, b=b)
    effect = effect_of(snapshot, new, NOW)
    evicted = {
        name: {decision.name for decision in schedule(replace(snapshot, policy=p), NOW).decisions if is_evict(decision)}
        for name, p in (("old", snapshot.policy), ("new", new))
    }
    assert {stopped.job.name for stopped in effect.stopped} == evicted["new"] - evicted["old"]
    same = effect_of(snapshot, snapshot.policy or new, NOW)
    assert not (same.stopped or same.barred_running or same.barred_waiting or same.starting or same.borrowing)


def is_evict(decision: object) -> bool:
    return getattr(decision, "verdict", None) is Verdict.EVICT


# -- the published status ----------------------------------------------------------------------------------------------


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(quota=quota_text())
    yield cluster
    cluster.daemon.close()


def quota_client(cluster: Cluster) -> QuotaClient:
    root = parse_root("memory/test-bastion")
    return QuotaClient(Client(cluster.store, root, cluster.clock), cluster.store, root)


def busy(cluster: Cluster) -> None:
    """a-1 and a-2 hold the whole pool, b-1 waits and is entitled to nothing."""
    for name in ("a-1", "a-2"):
        cluster.submit(name, instance_type="tpu-v4-32")
        cluster.settle(4)
    cluster.submit("b-1", user="bob", project="b", instance_type="tpu-v4-32")
    cluster.settle(4)


def test_the_forecast_from_the_status_is_what_the_daemon_then_does(cluster: Cluster) -> None:
    busy(cluster)
    new = quota_text(a=1, b=1)
    forecast = quota_client(cluster).forecast(load(quota_text()), load(new))
    assert forecast.doubts == ()
    named = {stopped.job.name for stopped in forecast.effect.stopped}
    assert len(named) == 1
    assert forecast.entries["a-1"].running_since
    cluster.write_quota(new)
    cluster.settle(1)
    records = {name: cluster.record(name) for name in ("a-1", "a-2")}
    assert {name for name, record in records.items() if record and record.attempt and record.attempt.ending} == named
    cluster.run_until(lambda: cluster.status("b-1") == "ACTIVE")


def test_a_stop_that_is_under_way_is_not_ordered_a_second_time_in_the_forecast(cluster: Cluster) -> None:
    busy(cluster)
    new = quota_text(a=1, b=1)
    cluster.write_quota(new)
    cluster.daemon.tick()
    assert {entry["phase"] for entry in cluster.json(keys.STATUS)["jobs"]} >= {"stopping", "queued"}
    forecast = quota_client(cluster).forecast(load(new), load(quota_text(a=2, b=3)))
    assert forecast.effect.stopped == ()


def test_a_status_with_a_job_twice_is_refused(cluster: Cluster) -> None:
    busy(cluster)
    status = packing.read(cluster.store.get(keys.STATUS).data)
    assert len(published_jobs(status)) == 3
    with pytest.raises(InvalidDocument):
        published_jobs(status.model_copy(update={"jobs": status.jobs[:1] * 2}))


@pytest.mark.parametrize(
    ("spoil", "doubt"),
    [
        (lambda cluster: cluster.daemon.close(), "the daemon has ended"),
        (lambda cluster: cluster.clock.advance(3600), "has not renewed its lease for more than ten minutes"),
        (lambda cluster: cluster.store.delete(keys.LEASE, generation=_generation(cluster, keys.LEASE)), "no daemon"),
        (
            lambda cluster: cluster.store.delete(keys.STATUS, generation=_generation(cluster, keys.STATUS)),
            "it is unknown",
        ),
        (lambda cluster: overwrite(cluster, keys.STATUS, b'{"format": 7}'), "it has format 7"),
        (lambda cluster: overwrite(cluster, keys.STATUS, b'{"format": 1, "jobs": [7]}'), "not as a daemon writes it"),
    ],
)
def test_what_cannot_be_known_is_a_doubt(cluster: Cluster, spoil, doubt: str) -> None:
    busy(cluster)
    spoil(cluster)
    forecast = quota_client(cluster).forecast(load(quota_text()), load(quota_text(a=1, b=1)))
    assert any(doubt in told for told in forecast.doubts)


def _generation(cluster: Cluster, key: str) -> int:
    meta = cluster.store.head(key)
    assert meta is not None
    return meta.generation


def overwrite(cluster: Cluster, key: str, data: bytes) -> None:
    cluster.store.put(key, data, generation=_generation(cluster, key))


def test_where_no_job_has_a_state_nothing_is_in_doubt_without_any_daemon() -> None:
    cluster = Cluster(quota=None)
    forecast = quota_client(cluster).forecast(None, load(quota_text()))
    assert forecast.doubts == ()
    assert forecast.effect.stopped == ()
    cluster.daemon.close()


# -- replacing ---------------------------------------------------------------------------------------------------------


def test_the_former_file_is_kept_under_its_own_instant_and_generation(cluster: Cluster) -> None:
    place = quota_client(cluster)
    present = place.present()
    replaced = place.replace(quota_text(32), present)
    assert cluster.store.get(keys.PROJECT_QUOTAS).data == quota_text(32)
    assert cluster.store.get(replaced.former).data == quota_text()
    assert replaced.former == keys.former_quota(present.written_at, present.generation)
    assert replaced.former.endswith(f"Z-{present.generation}.config")
    kept = place.former(present.generation)
    assert kept is not None and kept.data == quota_text()


def test_two_who_upload_at_once_lose_no_file(cluster: Cluster) -> None:
    mine, theirs = quota_client(cluster), quota_client(cluster)
    seen = mine.present()
    theirs.replace(quota_text(32), theirs.present())
    with pytest.raises(Refused, match=r"someone else changed .* run the command again to see the difference"):
        mine.replace(quota_text(16), seen)
    assert cluster.store.get(keys.PROJECT_QUOTAS).data == quota_text(32)
    assert len(cluster.listed(keys.FORMER_QUOTAS)) == 1  # both kept the same one
    mine.replace(quota_text(16), mine.present())
    assert [cluster.store.get(key).data for key in cluster.listed(keys.FORMER_QUOTAS)] == [quota_text(), quota_text(32)]


def test_nothing_is_replaced_where_the_former_file_cannot_be_kept(cluster: Cluster) -> None:
    place = quota_client(cluster)
    present = place.present()
    cluster.store.put(keys.former_quota(present.written_at, present.generation), b"foreign", generation=0)
    with pytest.raises(Refused, match="holds another one; move it away"):
        place.replace(quota_text(32), present)
    assert cluster.store.get(keys.PROJECT_QUOTAS).data == quota_text()


def test_a_broken_file_is_compared_with_the_last_good_one_if_that_was_kept(cluster: Cluster) -> None:
    place = quota_client(cluster)
    cluster.settle(1)
    place.replace(b"broken", place.present())
    cluster.settle(1)
    present = place.present()
    assert present.policy is None and present.problem
    in_force = place.policy_in_force(present)
    assert in_force is not None and in_force.total("v4") == 64
    (kept,) = cluster.listed(keys.FORMER_QUOTAS)
    cluster.store.delete(kept, generation=_generation(cluster, kept))
    assert place.policy_in_force(present) is None


def test_an_object_larger_than_any_quota_file_is_not_downloaded(cluster: Cluster) -> None:
    overwrite(cluster, keys.PROJECT_QUOTAS, b"#" * (1024 * 1024 + 1))
    with pytest.raises(Refused, match="is not a quota file; move it away"):
        quota_client(cluster).present()
