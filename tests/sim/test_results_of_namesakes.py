"""Results under `jobs/complete/`: each job finds its own, whatever other jobs are called."""

from __future__ import annotations

from bastion.client.jobs.client import Client
from bastion.core import documents
from bastion.core.bucket import keys
from bastion.testing.cluster import BASTION, ROOT, Cluster
from bastion.testing.scripted_hosts import runs_for
from tests.support.foreign_changes import overwrite


class AtTheRoot:
    url, bastion, local = ROOT, BASTION, False


def ended(cluster: Cluster, name: str) -> str:
    """Runs a job of that name to its end; returns its uid."""
    cluster.hosts.scripts[name] = runs_for(1)
    uid = cluster.submit(name)
    cluster.run_until(lambda: (cluster.result(name) or {}).get("uid") == uid)
    return uid


def uid_of_result(cluster: Cluster, name: str, uid: str = "") -> str:
    result = Client(cluster.store, AtTheRoot(), cluster.clock).result(name, uid)
    return result.uid if result else ""


def test_a_job_that_is_named_like_a_former_result_hides_none(cluster: Cluster) -> None:
    first = ended(cluster, "job")
    thief = ended(cluster, f"job.{first}")
    second = ended(cluster, "job")
    assert [uid_of_result(cluster, "job", uid) for uid in (first, second)] == [first, second]
    assert uid_of_result(cluster, "job") == second
    assert uid_of_result(cluster, f"job.{first}") == thief


def test_a_former_result_in_its_old_place_is_found_and_never_overwritten(cluster: Cluster) -> None:
    first, second = ended(cluster, "job"), ended(cluster, "job")
    former = cluster.store.get(keys.former_result("job", first))
    cluster.store.delete(former.meta.key, generation=former.meta.generation)
    old_place = keys.former_result_before("job", first)
    overwrite(cluster, old_place, former.data)
    assert uid_of_result(cluster, "job", first) == first
    assert uid_of_result(cluster, f"job.{first}") == ""
    thief = ended(cluster, f"job.{first}")
    assert uid_of_result(cluster, f"job.{first}") == thief
    assert [uid_of_result(cluster, "job", uid) for uid in (first, second)] == [first, second]


def test_a_foreign_result_without_a_uid_is_kept(cluster: Cluster) -> None:
    overwrite(cluster, keys.complete("job"), documents.dumps({"name": "job", "version": 1}))
    theirs = cluster.store.get(keys.complete("job"))
    cluster.hosts.scripts["job"] = runs_for(1)
    cluster.submit("job")
    cluster.run_until(lambda: "result" in cluster.json(keys.complete("job")))
    kept = cluster.store.get(keys.former_result("job", str(theirs.meta.generation)))
    assert kept.data == theirs.data
