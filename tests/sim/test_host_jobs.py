"""Commands on the bastion's own host, turned off and on while jobs wait and run."""

from __future__ import annotations

from bastion.core.bucket import keys
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for

OFF, ON, OWN = (f'bastion_host_jobs = "{mode}"\n'.encode() for mode in ("off", "as-daemon", "own-user"))


def problem(cluster: Cluster, name: str) -> str:
    text: str = cluster.json(keys.invalid(name))["problem"]
    return text


def in_force(cluster: Cluster) -> dict[str, str]:
    found: dict[str, str] = cluster.json(keys.STATUS)["daemon"]["bastion_host_jobs"]
    return found


def alarms(cluster: Cluster) -> str:
    return "\n".join(cluster.json(keys.STATUS)["alarms"])


def test_off_refuses_new_jobs_holds_accepted_ones_lets_running_ones_go_on_and_on_takes_all_of_them() -> None:
    cluster = Cluster()
    cluster.hosts.scripts["running"] = runs_for(30)
    uid = cluster.submit("running")
    cluster.run_until(lambda: cluster.hosts.live("running"))
    cluster.submit("queued", after=[{"job": "running", "uid": uid, "on": "ended"}])
    cluster.run_until(lambda: cluster.status("queued") == "PENDING")
    cluster.write_settings(OFF)
    cluster.submit("new")
    cluster.submit("cleaned", instance_type="tpu-v4-8", cleanup_command="x")
    cluster.hosts.scripts["sliced"] = runs_for(3)
    cluster.submit("sliced", instance_type="tpu-v4-8")
    cluster.run_until(lambda: cluster.result("running") and cluster.result("sliced"))
    assert cluster.result("running")["outcome"] == "succeeded"  # type: ignore[index]
    assert in_force(cluster) == {"mode": "off", "reason": "set by config/daemon.toml"}
    assert problem(cluster, "new").startswith("jobs without a slice are off on this bastion: set by config/daemon.toml")
    assert problem(cluster, "cleaned").startswith("cleanup commands are off on this bastion")
    assert cluster.status("new") == "none"
    cluster.settle(10)
    reason = cluster.reason("queued")
    assert reason is not None
    assert reason["code"] == "Held"
    assert "jobs without a slice are off" in reason["message"]
    for name in ("new", "queued", "cleaned"):
        cluster.hosts.scripts[name] = runs_for(2)
    cluster.write_settings(ON)
    cluster.run_until(lambda: all(cluster.result(name) for name in ("new", "queued", "cleaned")))
    assert cluster.listed(keys.JOBS_INVALID) == []


def test_a_cleanup_command_waits_while_they_are_off_and_the_operator_is_told() -> None:
    cluster = Cluster()
    cluster.hosts.scripts["job"] = runs_for(10)
    cluster.submit("job", instance_type="tpu-v4-8", cleanup_command="x")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.write_settings(OFF)
    cluster.run_until(lambda: cluster.status("job") == "CLEANING", steps=60)
    cluster.settle(20)
    assert cluster.status("job") == "CLEANING"
    assert cluster.bastion_host.created == []
    assert "the cleanup of job waits: cleanup commands are off" in alarms(cluster)
    cluster.write_settings(ON)
    cluster.run_until(lambda: cluster.result("job"))
    assert len(cluster.bastion_host.created) == 1
    assert alarms(cluster) == ""


def test_users_that_cannot_be_had_are_an_alarm_and_never_the_daemon() -> None:
    cluster = Cluster()
    cluster.write_settings(OWN)
    cluster.submit("new")
    cluster.settle(5)
    assert in_force(cluster)["mode"] == "off"
    assert 'bastion_host_jobs is "own-user", but nobody here has another user' in alarms(cluster)
    assert cluster.bastion_host.created == []


def test_a_file_about_the_host_alone_leaves_the_slices_as_they_are_without_it() -> None:
    cluster = Cluster()
    cluster.write_settings(OFF)
    cluster.hosts.scripts["sliced"] = runs_for(3)
    cluster.submit("sliced", instance_type="tpu-v4-8")
    cluster.run_until(lambda: cluster.result("sliced"))
    assert alarms(cluster) == ""


def test_an_update_that_needs_the_host_is_refused_and_the_job_goes_on() -> None:
    cluster = Cluster()
    cluster.write_settings(OFF)
    cluster.hosts.scripts["job"] = runs_for(20)
    cluster.submit("job", instance_type="tpu-v4-8", version=1)
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.submit("job", instance_type="tpu-v4-8", version=2, cleanup_command="x")
    cluster.run_until(lambda: cluster.listed(keys.JOBS_INVALID))
    assert cluster.hosts.live("job")
    cluster.run_until(lambda: cluster.result("job"))
    assert cluster.bastion_host.created == []
