"""The histories have every line once, also those of bad times: no quota in force, a write that broke off."""

from __future__ import annotations

import re

import pytest

from bastion.core.bucket import keys
from bastion.core.instants import utc_day
from bastion.testing.cluster import QUOTA, Cluster
from bastion.testing.scripted_hosts import runs_for


def project_lines(cluster: Cluster, project: str = "a") -> list[str]:
    return [
        line
        for key in cluster.listed(f"history/projects/{project}/")
        for line in cluster.store.get(key).data.decode().splitlines()
    ]


def numbers(lines: list[str], uid: str) -> list[int]:
    return [int(found[1]) for line in lines if (found := re.search(rf" {uid}#(\d+) [A-Z]", line))]


def whole(lines: list[str], uid: str) -> list[int]:
    return numbers([line for line in lines if not line.endswith("(this line was cut off)")], uid)


@pytest.mark.parametrize("restart", [False, True])
def test_lines_of_the_time_without_a_quota_file_are_in_the_projects_history(restart: bool) -> None:
    cluster = Cluster(quota=None)
    cluster.hosts.scripts["job"] = runs_for(3)
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.settle(3)
    cluster.submit("job", instance_type="tpu-v4-16", version=1)  # one more line
    cluster.settle(3)
    assert project_lines(cluster) == []
    if restart:
        cluster.restart_daemon()
    cluster.write_quota(QUOTA)
    cluster.run_until(lambda: cluster.result("job"))
    assert numbers(cluster.history("job"), uid) == numbers(project_lines(cluster), uid)
    assert numbers(cluster.history("job"), uid)[:2] == [1, 2]


def test_a_waiting_job_is_in_its_projects_history_as_soon_as_that_is_known() -> None:
    cluster = Cluster(quota=QUOTA.replace(b'a = ["alice"]\n', b"").replace(b"[project_resources.a]\nv4 = 0.5\n", b""))
    uid = cluster.submit("job", instance_type="tpu-v4-128")  # more than there is
    cluster.settle(4)
    assert project_lines(cluster) == []
    cluster.write_quota(QUOTA)
    cluster.settle(4)
    assert numbers(project_lines(cluster), uid) == [1]
    before = cluster.daemon.tick()
    assert before.outcome.done == 0, "and that is all there is to do"


def test_a_project_that_is_never_known_keeps_few_lines_in_the_state() -> None:
    cluster = Cluster(quota=None)
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    for version in range(1, 120):
        cluster.step()
        cluster.submit("job", instance_type="tpu-v4-16", version=version)
        cluster.settle(2)
    record = cluster.record("job")
    assert record is not None
    assert len(record.history) <= 66
    assert numbers(cluster.history("job"), uid) == [*range(1, record.history_next)]


@pytest.mark.parametrize("cut", ["instant", "mark", "text", "newline", "another"])
def test_a_line_that_broke_off_is_written_whole(cluster: Cluster, cut: str) -> None:
    uid = cluster.submit("job", instance_type="tpu-v4-16")
    cluster.run_until(lambda: cluster.hosts.live("job"))
    day = utc_day(cluster.clock.now())
    files = [keys.job_history("job"), keys.log("job"), keys.project_history("a", day)]
    for key in files:  # as a crash within the append of the last line, "is running on 2 workers", leaves them
        stored = cluster.store.get(key)
        lines = stored.data.splitlines(keepends=True)
        last = lines[-1]
        mark = last.index(f"{uid}#".encode())
        left = {
            "instant": last[:12],
            "mark": last[: mark + len(uid) + 3],
            "text": last[:-10],
            "newline": last[:-1],
            "another": last[:mark] + b"b" * 10 + b"#7 ACTIVE some",
        }[cut]
        cluster.store.put(key, b"".join(lines[:-1]) + left, generation=stored.meta.generation)
    cluster.restart_daemon()
    cluster.cancel("job")
    cluster.run_until(lambda: cluster.result("job"))
    for key in files:
        lines = cluster.store.get(key).data.decode().splitlines()
        found = whole(lines, uid)
        assert found == [*range(1, len(found) + 1)], (key, lines)
        assert sum("is running on 2 workers" in line for line in lines) == 1, (key, lines)
        assert (cut == "another") == any(line.endswith("(this line was cut off)") for line in lines)
