"""A job's life on a simulated bastion: no processes, no waiting, every transition."""

from __future__ import annotations

from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.errors import ProvisionerRefused
from bastion.core.instants import utc_day
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for


def test_a_job_without_a_slice_runs_on_the_bastion_and_ends_with_its_result(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(3, code=7)
    cluster.submit("job")
    cluster.run_until(lambda: cluster.result("job"))
    result = cluster.result("job")
    assert result is not None
    assert (result["outcome"], result["exit_code"], result["failed_worker"]) == ("failed", 7, 0)
    assert [attempt["cause"] for attempt in result["attempts"]] == ["failed"]


def test_a_finished_job_leaves_only_its_result_its_history_and_its_logs(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(2)
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.result("job"))
    cluster.outlive_late_requests()
    left = {key for key in cluster.listed() if key.startswith(("jobs/", "runs/", "beats/"))}
    assert left == {"jobs/complete/job"}
    assert cluster.slices.list() == []


def test_every_host_of_a_slice_runs_once_and_the_failing_one_is_named(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = lambda host, elapsed: 5 if host == 3 and elapsed >= 2 else None
    cluster.submit("job", instance_type="tpu-v4-32")
    cluster.run_until(lambda: cluster.result("job"))
    result = cluster.result("job")
    assert result is not None
    assert (result["exit_code"], result["failed_worker"]) == (5, 3)
    assert sorted(began.host for began in cluster.hosts.began) == [0, 1, 2, 3]
    assert any("worker 3 exited with code 5" in line for line in cluster.history("job"))


def test_replicas_are_one_gang_of_slices_with_hosts_counted_through(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(2)
    cluster.submit("job", instance_type="tpu-v4-16", num_replicas=2)
    cluster.run_until(lambda: cluster.result("job"))
    assert sorted(began.host for began in cluster.hosts.began) == [0, 1, 2, 3]
    assert [request.ref.num_slices for request in cluster.slices.created] == [2]


def test_the_same_name_runs_again_and_the_older_result_moves_aside(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(1)
    first = cluster.submit("job")
    cluster.run_until(lambda: cluster.result("job"))
    second = cluster.submit("job")
    cluster.run_until(lambda: (cluster.result("job") or {}).get("uid") == second)
    assert first != second
    assert cluster.json(keys.former_result("job", first))["result"]["uid"] == first


def test_a_waiting_job_is_cancelled_at_once(cluster: Cluster) -> None:
    cluster.submit("job", project="a", instance_type="tpu-v4-128")  # more than the pool: waits for ever
    cluster.settle(3)
    reason = cluster.reason("job")
    assert reason is not None
    assert reason["code"] == "ExceedsPool"
    cluster.cancel("job")
    cluster.run_until(lambda: cluster.result("job"), steps=5)
    result = cluster.result("job")
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("cancelled", 143)
    assert cluster.listed("jobs/user_states/") == []


def test_a_running_job_is_cancelled_by_an_order_to_its_hosts_before_its_nodes_go(cluster: Cluster) -> None:
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.cancel("job")
    cluster.run_until(lambda: cluster.result("job"), steps=20)
    assert cluster.slices.list() == []
    result = cluster.result("job")
    assert result is not None
    assert result["outcome"] == "cancelled"


def test_a_wish_for_an_earlier_job_of_the_same_name_cancels_nothing(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(5)
    cluster.cancel("job", uid="aaaaaaaaaa")
    cluster.submit("job")
    cluster.run_until(lambda: cluster.result("job"))
    result = cluster.result("job")
    assert result is not None
    assert result["outcome"] == "succeeded"
    assert cluster.listed("jobs/user_states/") == []


def test_a_wish_for_an_unknown_job_goes_after_ten_ticks(cluster: Cluster) -> None:
    cluster.cancel("nobody")
    cluster.settle(9)
    assert cluster.listed("jobs/user_states/") != []
    cluster.settle(3)
    assert cluster.listed("jobs/user_states/") == []


def test_removing_the_spec_cancels_the_job(cluster: Cluster) -> None:
    cluster.submit("job")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    meta = cluster.store.head(keys.active("job"))
    assert meta is not None
    cluster.store.delete(keys.active("job"), generation=meta.generation)
    cluster.run_until(lambda: cluster.result("job"), steps=20)
    result = cluster.result("job")
    assert result is not None
    assert result["outcome"] == "cancelled"
    assert "was deleted" in result["message"]


def test_another_job_under_the_same_name_waits_until_the_old_one_is_cleaned(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = lambda _host, _elapsed: None
    old = cluster.submit("job", command="old")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    new = cluster.submit("job", command="new")
    cluster.run_until(lambda: (cluster.record("job") or cluster).__dict__.get("uid") == new, steps=30)
    assert cluster.json(keys.complete("job"))["result"]["uid"] == old
    cluster.run_until(lambda: cluster.hosts.live("job") == [f"{new}-1"], steps=20)


def test_an_update_restarts_the_same_job_with_its_new_command(cluster: Cluster) -> None:
    uid = cluster.submit("job", command="old")
    cluster.run_until(lambda: cluster.hosts.live("job") == [f"{uid}-1"])
    cluster.submit("job", command="new", version=1)
    cluster.run_until(lambda: cluster.hosts.live("job") == [f"{uid}-2"], steps=30)
    assert cluster.json(keys.order(f"{uid}-2"))["command"] == "new"


def test_touching_a_spec_changes_nothing(cluster: Cluster) -> None:
    uid = cluster.submit("job")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.put_spec("job", cluster.store.get(keys.active("job")).data)
    cluster.settle(5)
    assert cluster.hosts.live("job") == [f"{uid}-1"]


def test_the_cleanup_command_runs_after_the_job_whatever_became_of_it(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(1, code=1)
    uid = cluster.submit("job", cleanup_command="echo bye")
    cluster.run_until(lambda: cluster.result("job"))
    assert [began.run for began in cluster.hosts.began] == [f"{uid}-1", f"{uid}-cleanup"]


def test_a_lost_node_costs_an_attempt_and_the_job_runs_again(cluster: Cluster) -> None:
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    name = cluster.slices.created[0].ref.name
    cluster.slices.lose(name)
    cluster.run_until(lambda: len(cluster.slices.created) == 2, steps=60)
    assert cluster.slices.created[1].ref.name != name
    assert any("was lost" in line for line in cluster.history("job"))


def test_a_job_whose_nodes_are_always_lost_gives_up_with_the_infrastructure_code(cluster: Cluster) -> None:
    cluster.submit("job", instance_type="tpu-v4-16")
    for _ in range(600):
        for status in cluster.slices.list():
            if status.state.value == "ready":
                cluster.slices.lose(status.ref.name)
        cluster.step(5)
        if cluster.result("job"):
            break
    result = cluster.result("job")
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("failed", 75)
    assert {attempt["cause"] for attempt in result["attempts"]} == {"infrastructure"}


def test_a_stockout_is_nobodys_failure_and_is_tried_again(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(2)
    cluster.slices.stockouts = 1
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: (cluster.reason("job") or {}).get("code") == "Stockout")
    cluster.run_until(lambda: cluster.result("job"), steps=60)
    result = cluster.result("job")
    assert result is not None
    assert result["outcome"] == "succeeded"


def test_a_request_that_the_api_will_never_accept_fails_at_once_with_its_words(cluster: Cluster) -> None:
    cluster.slices.refusal = ProvisionerRefused("Permission 'tpu.nodes.create' denied")
    cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.result("job"), steps=10)
    result = cluster.result("job")
    assert result is not None
    assert (result["outcome"], result["exit_code"]) == ("refused", 64)
    assert "tpu.nodes.create" in result["message"]


def test_a_host_that_falls_silent_is_named_and_replaced(cluster: Cluster) -> None:
    cluster.submit("job", instance_type="tpu-v4-32")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    cluster.settle(3)
    cluster.hosts.deaf.add(("job", 2))
    cluster.run_until(lambda: len(cluster.slices.created) == 2, steps=300)
    assert any("worker 2 sent no heartbeat for" in line for line in cluster.history("job"))


def test_an_invalid_spec_is_explained_to_its_owner_and_harms_nobody_else(cluster: Cluster) -> None:
    cluster.hosts.scripts["good"] = runs_for(1)
    cluster.store.put(keys.active("bad"), b'{"version": 1, "version": 2}', generation=0)
    cluster.submit("good")
    cluster.run_until(lambda: cluster.result("good"))
    assert "appears twice" in cluster.json(keys.invalid("bad"))["problem"]
    meta = cluster.store.head(keys.active("bad"))
    assert meta is not None
    cluster.store.delete(keys.active("bad"), generation=meta.generation)
    cluster.settle(2)
    assert cluster.listed("jobs/invalid/") == []


def test_a_mended_spec_runs_and_its_explanation_goes(cluster: Cluster) -> None:
    cluster.hosts.scripts["job"] = runs_for(1)
    cluster.store.put(keys.active("job"), b"half writt", generation=0)
    cluster.settle(3)
    assert cluster.listed("jobs/invalid/") == ["jobs/invalid/job"]
    cluster.submit("job")
    cluster.run_until(lambda: cluster.result("job"))
    assert cluster.listed("jobs/invalid/") == []


def test_a_state_that_cannot_be_read_freezes_its_job_and_no_other(cluster: Cluster) -> None:
    cluster.hosts.scripts["good"] = runs_for(1)
    uid = cluster.submit("bad")
    cluster.run_until(lambda: cluster.hosts.live("bad"))
    meta = cluster.store.head(keys.state("bad"))
    assert meta is not None
    cluster.store.put(keys.state("bad"), b'{"format": 99}', generation=meta.generation)
    cluster.submit("good")
    cluster.run_until(lambda: cluster.result("good"))
    assert cluster.hosts.live("bad") == [f"{uid}-1"]


def test_dry_run_decides_and_publishes_and_changes_nothing(cluster: Cluster) -> None:
    options = documents.dumps({"scheduler": {"dry_run": True}})
    cluster.store.put(keys.RUNTIME_OPTIONS, options, generation=0)
    cluster.submit("job")
    before = set(cluster.listed())
    cluster.settle(5)
    own = {keys.LEASE, keys.STATUS, keys.log("test-bastion"), keys.QUOTAS_IN_FORCE, keys.OPTIONS_IN_FORCE}
    own.add(keys.audit(utc_day(cluster.clock.now())))
    assert set(cluster.listed()) - before <= own


def test_losses_after_long_runs_do_not_add_up_to_giving_up(cluster: Cluster) -> None:
    cluster.submit("job", instance_type="tpu-v4-16")
    for lost in range(8):
        cluster.run_until(lambda: cluster.hosts.live("job"), steps=60)
        for _ in range(130):
            cluster.step(5)
        cluster.slices.lose(cluster.slices.created[-1].ref.name, f"loss {lost}")
        cluster.run_until(lambda: not cluster.hosts.live("job"), steps=20)
    assert cluster.result("job") is None
    assert cluster.status("job") in ("ACTIVE", "PENDING")
