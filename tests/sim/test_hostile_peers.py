"""Hosts of other runs that forge, replay and delete what they can, around every write: jobs end as commands say."""

from __future__ import annotations

import pytest

from bastion.core.bucket import keys, protocol
from bastion.core.bucket.protocol import Claim, HostPhase, Report
from bastion.core.run_keys import RunKey
from bastion.testing.cluster import Cluster
from bastion.testing.hostile_peer import HostilePeer
from bastion.testing.scripted_hosts import runs_for

OWN = RunKey(b"p" * 32)
SEEDS = 6


def attacked(seed: int, *, without: tuple[str, ...] = ()) -> tuple[Cluster, HostilePeer]:
    cluster = Cluster()
    peer = HostilePeer(cluster.store, seed=seed, own=OWN)
    for name in without:
        del peer.attacks[name]
    peer.guard(cluster.store)
    return cluster, peer


def begin(cluster: Cluster) -> dict[str, str]:
    cluster.hosts.scripts |= {"good": runs_for(40), "bad": runs_for(30, code=3), "vm": runs_for(20)}
    uids = {name: cluster.submit(name, instance_type="tpu-v4-16") for name in ("good", "bad")}
    return {**uids, "vm": cluster.submit("vm")}


@pytest.mark.parametrize("seed", range(SEEDS))
def test_whatever_a_peer_writes_each_job_ends_as_its_command_says_in_its_first_attempt(seed: int) -> None:
    cluster, peer = attacked(seed)
    uids = begin(cluster)
    cluster.run_until(lambda: all(cluster.result(name) for name in uids), steps=400)
    told = {name: (result["outcome"], result["exit_code"]) for name in uids if (result := cluster.result(name))}
    assert told == {"good": ("succeeded", 0), "bad": ("failed", 3), "vm": ("succeeded", 0)}
    assert sorted((began.run, began.host) for began in cluster.hosts.began) == sorted(
        [(f"{uids[name]}-1", host) for name in ("good", "bad") for host in range(2)] + [(f"{uids['vm']}-1", 0)]
    )
    assert set(peer.done) == set(peer.attacks), "every attack was tried"


@pytest.mark.parametrize("seed", range(4))
def test_also_while_the_daemon_dies_nothing_runs_twice_or_ends_otherwise(seed: int) -> None:
    cluster, _peer = attacked(seed)
    uids = begin(cluster)
    for _ in range(3):
        cluster.settle(12)
        cluster.restart_daemon()
    cluster.run_until(lambda: all(cluster.result(name) for name in uids), steps=600)
    told = {name: (result["outcome"], result["exit_code"]) for name in uids if (result := cluster.result(name))}
    assert told == {"good": ("succeeded", 0), "bad": ("failed", 3), "vm": ("succeeded", 0)}
    began = [(each.run, each.host) for each in cluster.hosts.began]
    assert len(began) == len(set(began))


def running(instance_type: str = "tpu-v4-16") -> tuple[Cluster, str]:
    cluster = Cluster()
    uid = cluster.submit("job", instance_type=instance_type)
    cluster.run_until(lambda: cluster.hosts.live("job"))
    return cluster, f"{uid}-1"


def overwrite(cluster: Cluster, key: str, data: bytes) -> None:
    meta = cluster.store.head(key)
    cluster.store.put(key, data, generation=meta.generation if meta else 0)


def test_an_ignored_report_is_an_alarm_that_names_its_key_once_for_its_run() -> None:
    cluster, run = running()
    for host in (0, 1):
        overwrite(cluster, keys.report(run, host), Report(run=run, host=host, phase=HostPhase.EXITED).to_bytes())
    report = cluster.step()
    assert [problem for problem in report.problems if "is ignored" in problem] == [
        f"{keys.report(run, 0)} of job is ignored: the report is not signed with the key of its run"
    ]
    cluster.settle(40)
    assert cluster.step().problems == [], "the host wrote it again"


def test_a_heartbeat_of_a_host_that_has_not_come_up_or_does_not_exist_ends_nothing() -> None:
    cluster = Cluster()
    cluster.slices.ready_seconds = 400.0
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.slices.list())
    for host in (0, 1, 99):
        overwrite(cluster, keys.beat(f"{uid}-1", host), b"forged")
    cluster.run_until(lambda: cluster.hosts.live("job"), steps=500)
    cluster.settle(200)
    assert cluster.hosts.live("job") == [f"{uid}-1"]


def test_forged_heartbeats_hide_a_dead_host_until_the_cloud_says_that_it_is_gone() -> None:
    cluster, run = running()
    cluster.hosts.deaf = {("job", 1)}
    for _ in range(300):
        overwrite(cluster, keys.beat(run, 1), b"forged")
        cluster.step()
    assert cluster.status("job") == "ACTIVE"
    assert cluster.record("job").attempt.ending is None, "nobody noticed for as long as somebody forged"
    cluster.slices.lose(f"b-{run}")
    cluster.settle(3)
    record = cluster.record("job")
    assert record.attempts or record.attempt.ending is not None


def test_a_claim_made_in_advance_under_every_name_that_can_be_guessed_keeps_no_job_from_running() -> None:
    cluster = Cluster()
    cluster.slices.ready_seconds = 5.0
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.slices.list())
    run = f"{uid}-1"
    attempt = cluster.record("job").attempt
    guesses = ["", f".{attempt.token}", f".{attempt.public_key}", f".{OWN.claim_tag}", ".", f".{'0' * 32}"]
    for guess in guesses:
        claim = protocol.sign(Claim(run=run, closed="by a peer"), OWN)
        cluster.store.put(f"{keys.JOBS_CLAIMS}{run}{guess}", claim.to_bytes(), generation=0)
    cluster.hosts.scripts["job"] = runs_for(5)
    cluster.run_until(lambda: cluster.result("job"))
    assert cluster.result("job")["outcome"] == "succeeded"
    assert [began.run for began in cluster.hosts.began] == [run, run]
    cluster.outlive_late_requests()
    assert cluster.listed(keys.JOBS_CLAIMS) == [], "what nobody owns goes with the run"


def test_a_claim_that_is_gone_starts_nothing_a_second_time() -> None:
    cluster, run = running()
    key = cluster.claim_of(run)
    cluster.settle(3)
    cluster.store.delete(key, generation=cluster.store.head(key).generation)
    cluster.restart_daemon()
    cluster.settle(5)
    cluster.slices.vanish(f"b-{run}")
    cluster.run_until(lambda: len(cluster.record("job").attempts) == 1, steps=200)
    assert cluster.record("job").attempts[0].cause.value == "infrastructure"
    assert [each.run for each in cluster.slices.created].count(run) == 1


@pytest.mark.parametrize("what", ["an older version", "another secret"])
def test_a_run_whose_key_the_daemon_does_not_know_ends_as_infrastructure_and_runs_again(what: str) -> None:
    cluster, run = running()
    if what == "another secret":
        cluster.run_keys = type(cluster.run_keys)(b"another secret".ljust(32))
    else:
        key = keys.state("job")
        state = cluster.store.get(key)
        public = cluster.record("job").attempt.public_key.encode()
        old = state.data.replace(b'"public_key":"' + public + b'",', b"")
        assert old != state.data
        cluster.store.put(key, old, generation=state.meta.generation)
    cluster.restart_daemon()
    cluster.hosts.scripts["job"] = runs_for(400)
    cluster.run_until(lambda: cluster.hosts.live("job") == [f"{run[:-1]}2"], steps=300)
    (past,) = cluster.record("job").attempts
    assert (past.cause.value, past.message[:31]) == ("infrastructure", "its hosts cannot prove what the")
    assert [began.run for began in cluster.hosts.began] == [run] * 2 + [f"{run[:-1]}2"] * 2
    assert cluster.json(keys.order(run))["action"] == "stop"
    cluster.hosts.scripts["job"] = runs_for(1)
    cluster.run_until(lambda: cluster.result("job"))


def test_the_result_names_the_public_key_of_each_attempt() -> None:
    cluster, run = running()
    public = cluster.key_of(run).public
    assert cluster.record("job").attempt.public_key == public
    cluster.hosts.scripts["job"] = runs_for(1)
    cluster.run_until(lambda: cluster.result("job"))
    assert [each["public_key"] for each in cluster.result("job")["attempts"]] == [public]
