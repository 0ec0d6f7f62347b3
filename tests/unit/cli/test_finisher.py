"""A finisher has the daemon's rights, so it works for the run and the jobs of its own user only."""

from __future__ import annotations

import pytest

from bastion.benchmark.members import matrix_of
from bastion.cli.benchmark import finisher
from bastion.client import Client
from bastion.client.jobs import groups
from bastion.client.jobs.startable import host_obstacle
from bastion.core import benchmark_steps
from bastion.core.bucket import keys
from bastion.core.errors import Refused
from bastion.testing.cluster import Cluster
from tests.support.bench_files import PLACE, SimulatedRoot, benchmark
from tests.support.job_specs import new_spec

RUN = "20260102T030405Z-0123abcd"


def as_job(monkeypatch: pytest.MonkeyPatch, name: str, user: str = "alice") -> None:
    monkeypatch.setenv("BASTION_JOB", name)
    monkeypatch.setenv("BASTION_USER_ID", user)


def test_a_job_finishes_only_the_run_that_its_name_is_of(monkeypatch: pytest.MonkeyPatch) -> None:
    as_job(monkeypatch, benchmark_steps.finisher("matmul", RUN))
    finisher._check_finisher(f"matmul/{RUN}")
    for other in (f"matmul/{RUN[:-1]}e", f"other/{RUN}", "matmul", "", f"matmul/{RUN}/x"):
        with pytest.raises(Refused, match="is not the finisher of"):
            finisher._check_finisher(other)
    monkeypatch.delenv("BASTION_JOB")
    finisher._check_finisher(f"other/{RUN}")  # a user's own rights


def test_the_run_must_be_its_users(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = matrix_of(benchmark(), PLACE, run=RUN, at=0.0, bundle=None)
    as_job(monkeypatch, matrix.finisher)
    finisher._check_owner(matrix)
    as_job(monkeypatch, matrix.finisher, user="bob")
    with pytest.raises(Refused, match=f"the run matmul/{RUN} belongs to alice, not to bob"):
        finisher._check_owner(matrix)


def client_of(cluster: Cluster) -> Client:
    return Client(cluster.store, SimulatedRoot(), cluster.clock)  # type: ignore[arg-type]


def test_a_matrix_that_names_jobs_of_others_stops_none_of_them() -> None:
    cluster = Cluster()
    cluster.submit("matmul-mine", instance_type="tpu-v4-8")
    cluster.submit("matmul-theirs", user="bob", project="b", instance_type="tpu-v4-8")
    cluster.settle(3)
    cluster.submit("matmul-new", user="bob", project="b", instance_type="tpu-v4-8")
    names = ["matmul-mine", "matmul-theirs", "matmul-new"]
    done = groups.cancel_all(client_of(cluster), names, by="benchmark matmul", only_of="alice")
    assert [each.name for each in done] == ["matmul-mine"]
    assert cluster.listed(keys.JOBS_USER_STATES) == [keys.user_state("matmul-mine")]


def test_a_client_refuses_what_the_status_says_the_host_does_not_run() -> None:
    cluster = Cluster()
    cluster.settle(2)
    client = client_of(cluster)
    assert host_obstacle(client, new_spec()) == ""
    cluster.write_settings(b'bastion_host_jobs = "off"\n')
    cluster.settle(40)  # an idle daemon looks now and then
    client = client_of(cluster)
    assert host_obstacle(client, new_spec()).startswith("jobs without a slice are off on this bastion: set by config/")
    assert "cleanup commands" in host_obstacle(client, new_spec(instance_type="tpu-v4-8", cleanup_command="x"))
    assert host_obstacle(client, new_spec(instance_type="tpu-v4-8")) == ""
