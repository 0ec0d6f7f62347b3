"""Jobs with names that AXLearn's clients give and ours do not: they run, and their logs and results are their own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bastion.adapters.folder.store import DirectoryStore
from bastion.core.bucket import keys
from bastion.testing.cluster import Cluster
from bastion.testing.scripted_hosts import runs_for

NAMES = ["x", "x.d", "x-20260102", "alice:x", "x,y=1", "x@host+1", "x-", "_x", "X", "x" * 128]


def test_jobs_with_such_names_run_beside_each_other_and_keep_their_results(cluster: Cluster) -> None:
    cluster.submit("template", project="a")
    template = json.loads(cluster.store.get(keys.active("template")).data)
    uids = {}
    for name in NAMES:
        cluster.hosts.scripts[name] = runs_for(1)
        uids[name] = cluster.put_spec(name, json.dumps({**template, "name": name}).encode())
    for name, uid in uids.items():
        cluster.run_until(lambda name=name: cluster.result(name))
        result = cluster.result(name)
        assert result is not None
        assert (result["uid"], result["outcome"]) == (uid, "succeeded")
        assert all(f" {uid}#" in line for line in cluster.history(name))
    assert cluster.json(keys.STATUS)["alarms"] == []


@pytest.mark.parametrize("folder_first", [False, True])
def test_the_log_of_a_job_that_ends_like_a_worker_folder_lies_beside_that_folder(
    tmp_path: Path, folder_first: bool
) -> None:
    store = DirectoryStore(tmp_path / "bucket", fsync=False)
    written = {keys.log("x.d"): b"raw\n", keys.log_segment("x", "aaaaaaaaaa-1", 0, 0): b"line\n"}
    for key in sorted(written, reverse=folder_first):
        store.put(key, written[key], generation=0)
    again = DirectoryStore(tmp_path / "bucket", fsync=False)
    assert {meta.key: again.get(meta.key).data for meta in again.list("logs/")} == written
    assert [meta.key for meta in again.list(keys.worker_logs("x"))] == [keys.log_segment("x", "aaaaaaaaaa-1", 0, 0)]
