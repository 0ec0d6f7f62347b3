"""What the history's writer remembers of files does not grow with the days."""

from __future__ import annotations

from bastion.daemon.crew import Crew
from bastion.daemon.history import HistoryWriter
from bastion.testing.cluster import Cluster
from bastion.testing.counting_store import CountingStore

DAY = 86_400.0


def test_files_of_past_days_are_forgotten_and_those_of_a_day_are_not_read_again() -> None:
    cluster = Cluster()
    cluster.submit("job")
    cluster.run_until(lambda: cluster.record("job"))
    record = cluster.record("job")
    assert record is not None
    counting = CountingStore(cluster.store)
    crew = Crew(2)
    writer = HistoryWriter(counting, crew)
    first = record.history[0]
    for number in range(2, 60):
        at = first.at + (number // 2) * DAY
        later = record.model_copy(update={"history": (first.model_copy(update={"number": number, "at": at}),)})
        assert writer.append([later], known_projects=["a"], may_act=lambda: True) == {}
    crew.dismiss()
    assert len(writer) <= 4
    days = cluster.listed("history/projects/a/")
    assert len(days) >= 29
    for key in days[1:]:  # the first holds what the daemon wrote
        assert len(cluster.store.get(key).data.splitlines()) == 2, key
        assert counting.read.count(key) <= 1
