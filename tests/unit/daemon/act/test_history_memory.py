"""What the history's writer remembers does not grow with the days, nor with the jobs that are over."""

from __future__ import annotations

from bastion.daemon.act.history import HistoryWriter
from bastion.daemon.thread_pool import ThreadPool
from bastion.testing.cluster import Cluster
from bastion.testing.counting_store import CountingStore

DAY = 86_400.0


def test_files_of_past_days_are_forgotten_and_those_of_a_day_are_not_read_again(cluster: Cluster) -> None:
    cluster.submit("job")
    cluster.run_until(lambda: cluster.record("job"))
    record = cluster.record("job")
    assert record is not None
    counting = CountingStore(cluster.store)
    threads = ThreadPool(2)
    writer = HistoryWriter(counting, threads)
    first = record.history[0]
    for number in range(2, 60):
        at = first.at + (number // 2) * DAY
        later = record.model_copy(update={"history": (first.model_copy(update={"number": number, "at": at}),)})
        assert writer.append([later], known_projects=["a"], may_act=lambda: True) == {}
    threads.dismiss()
    assert len(writer) <= 8, "four files, each with one job"
    days = cluster.listed("history/projects/a/")
    assert len(days) >= 29
    for key in days[1:]:  # the first holds what the daemon wrote
        assert len(cluster.store.get(key).data.splitlines()) == 2, key
        assert counting.read.count(key) <= 1


def test_a_job_that_is_over_is_forgotten_and_the_line_of_another_one_is_not_doubled(cluster: Cluster) -> None:
    cluster.submit("job")
    cluster.run_until(lambda: cluster.record("job"))
    record = cluster.record("job")
    assert record is not None
    threads = ThreadPool(2)
    writer = HistoryWriter(CountingStore(cluster.store), threads)
    line = record.history[0].model_copy(update={"at": record.history[0].at + DAY})
    others = [
        record.model_copy(update={"uid": uid, "name": uid, "history": (line,)})
        for uid in ("a" * 10, "b" * 10, "c" * 10)
    ]
    for _ in range(2):
        assert writer.append(others, known_projects=["a"], may_act=lambda: True) == {}
    grown = len(writer)
    writer.forget("a" * 10, "a" * 10)
    assert len(writer) == grown - 2 * (1 + (record.job.runner is not None)) - 1, "its own files, and a place"
    assert writer.append(others[1:], known_projects=["a"], may_act=lambda: True) == {}
    threads.dismiss()
    (project,) = [key for key in cluster.listed("history/projects/a/") if b"aaaaaaaaaa#" in cluster.store.get(key).data]
    lines = cluster.store.get(project).data.decode().splitlines()
    assert sorted(each.split()[1] for each in lines) == ["a" * 10, "b" * 10, "c" * 10]
