"""The status as bytes: what is packed reads back as it was, small, and garbage is refused in words."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.core import documents
from bastion.core.bucket import keys
from bastion.core.errors import InvalidDocument
from bastion.core.model import job_spec
from bastion.core.model.job_spec import JobOptions
from bastion.core.status import packing
from bastion.core.status.document import StatusDocument, UsageEntry
from bastion.testing.cluster import BASTION, LONG_QUEUES, QUOTA, Cluster
from bastion.testing.scripted_hosts import runs_for


def stored(cluster: Cluster) -> dict[str, Any]:
    return dict(json.loads(cluster.store.get(keys.STATUS).data))


def busy(jobs: int = 12) -> Cluster:
    """Running and waiting jobs of two projects, with every kind of entry."""
    cluster = Cluster(quota=QUOTA + LONG_QUEUES)
    cluster.submit("running-0", instance_type="tpu-v4-32", max_tries=2)
    cluster.submit("on-the-bastion", user="bob", project="b")
    cluster.settle(4)
    for number in range(jobs):
        cluster.clock.advance(0.1)
        cluster.submit(f"job-{number:05}", instance_type=f"tpu-v4-{8 << number % 4}", num_replicas=1 + number % 2)
    cluster.submit("stranger", user="nobody", project="nowhere")
    cluster.submit("too-large", instance_type="tpu-v4-128", user="bob", project="b", max_wait_seconds=3600)
    cluster.settle(4)
    cluster.put_spec("too-large", b"{}")
    cluster.settle(3)
    return cluster


def test_every_entry_reads_back_as_the_daemon_made_it() -> None:
    cluster = busy()
    made = cluster.daemon._publisher._document
    assert made is not None
    read = packing.read(cluster.store.get(keys.STATUS).data)
    assert read.usage != UsageEntry()
    assert read.model_dump(mode="json", exclude={"usage"}) == made.model_dump(mode="json", exclude={"usage"})
    rows = stored(cluster)["queued"]["rows"]
    assert len(rows) >= 10
    assert any(len(row) > len(packing.COLUMNS) for row in rows), "a job with more to tell than others"
    assert {entry["phase"] for entry in stored(cluster)["jobs"]} == {"running"}


def test_a_waiting_job_takes_few_bytes_and_the_same_status_is_the_same_bytes() -> None:
    cluster = busy(jobs=400)
    before = cluster.store.get(keys.STATUS)
    cluster.restart_daemon()
    cluster.settle(3)
    again = cluster.store.get(keys.STATUS).data
    assert {**stored(cluster), "daemon": None, "usage": None} == {
        **json.loads(before.data),
        "daemon": None,
        "usage": None,
    }
    assert len(again) / 400 < 140


def test_labels_read_back_of_waiting_and_running_jobs_and_cost_those_without_nothing() -> None:
    cluster = Cluster()
    for name, labels in (("running", {"team": "a"}), ("waiting", {"team": "b", "n": ""}), ("plain", None)):
        spec = job_spec.new(
            name=name,
            bastion=BASTION,
            command="run",
            user_id="alice",
            project_id="a",
            now=cluster.clock.now(),
            options=JobOptions(instance_type="tpu-v4-64", labels=labels),
        )
        cluster.put_spec(name, spec.to_bytes())
        cluster.settle(3)
    entries = packing.read(cluster.store.get(keys.STATUS).data).entries
    assert {name: entry.labels for name, entry in entries.items()} == {
        "running": {"team": "a"},
        "waiting": {"team": "b", "n": ""},
        "plain": None,
    }
    rows = {row[0]: row for row in stored(cluster)["queued"]["rows"]}
    assert rows["waiting"][len(packing.COLUMNS) :] == [{"labels": {"team": "b", "n": ""}}]
    assert len(rows["plain"]) == len(packing.COLUMNS)


def test_a_successor_takes_over_since_when_a_reason_holds(cluster: Cluster) -> None:
    cluster.submit("holder", instance_type="tpu-v4-64")
    cluster.settle(3)
    cluster.submit("job", instance_type="tpu-v4-64")
    cluster.settle(3)
    cluster.hosts.scripts["holder"] = runs_for(1000)
    cluster.settle(50)
    since = (cluster.reason("job") or {})["since"]
    cluster.restart_daemon()
    cluster.settle(5)
    assert (cluster.reason("job") or {})["since"] == since


ENTRY = {
    "name": "x",
    "uid": "aaaaaaaaaa",
    "status": "PENDING",
    "phase": "queued",
    "project_id": "a",
    "user_id": "u",
    "priority": 5,
    "resources": {"v4": 8},
    "instance_type": "tpu-v4-8",
    "num_replicas": 1,
    "queued_at": "2026-01-01T00:00:00.000001Z",
    "attempts_before": 0,
    "position": 1,
    "position_in_project": None,
    "reason": None,
    **dict.fromkeys(("attempt", "started_at", "running_since", "hosts", "hosts_up", "hosts_running", "tier")),
    **dict.fromkeys(("stopping", "problem")),
}
TEXTS = (
    st.lists(
        st.one_of(
            st.integers(0, 10**20).map(str),
            st.sampled_from([" ", "v4", "-", ".", ",", "00", "job-7", "é", "{}"]),
            st.text(),
        )
    )
    .map("".join)
    .filter(lambda text: "\ud800" not in text and text.isprintable())
)
REASONS = st.fixed_dictionaries(
    {
        "code": st.sampled_from(["WaitingForPool", "Held"]),
        "message": TEXTS,
        "since": st.sampled_from(
            ["2026-01-01T00:00:00.000001Z", "2026-01-02T00:00:00.000000Z", "9999-12-31T23:59:59.000000Z"]
        ),
        "holders": st.lists(TEXTS, max_size=2),
        "unblock": st.none() | TEXTS,
        "also": st.lists(st.just("Held"), max_size=1),
    }
)


@given(
    reasons=st.lists(st.none() | REASONS, max_size=6),
    others=st.dictionaries(st.sampled_from(["problem", "zone"]), TEXTS),
)
def test_any_reason_and_field_reads_back(reasons: list[dict[str, Any] | None], others: dict[str, str]) -> None:
    jobs = [{**ENTRY, "name": f"x{number}", "reason": reason, **others} for number, reason in enumerate(reasons)]
    status = StatusDocument.model_validate({"jobs": jobs})
    data = documents.dumps(packing.pack(status))
    assert packing.read(data) == status
    assert packing.read(data).model_dump(mode="json")["jobs"] == jobs
    assert len(json.loads(data)["queued"]["rows"]) == len(jobs)


def test_the_former_format_is_read() -> None:
    status = packing.read(documents.dumps({"format": 1, "jobs": [ENTRY], "later": 7}))
    assert status.model_dump(mode="json")["jobs"] == [ENTRY]


@pytest.mark.parametrize("jobs", [None, "x", [1], [{}], [{**ENTRY, "resources": 3}], [{**ENTRY, "queued_at": "soon"}]])
def test_jobs_that_no_daemon_wrote_are_refused(jobs: object) -> None:
    with pytest.raises(InvalidDocument, match="not as a daemon writes it"):
        packing.read(documents.dumps({"format": 1, "jobs": jobs}))


@pytest.mark.parametrize(
    "queued",
    [
        None,
        {},
        {"columns": ["name"], "rows": []},
        {"rows": [[]]},
        {"rows": [7]},
        {"rows": {"a": 1}},
        {"rows": [["x", "u", 9, 0, 5, 0, 0, 1, 1, -1, 0, []]]},
        {"rows": [["x", "u", 0, 0, 5, 1e300, 0, 1, 1, -1, 0, []]]},
        {"rows": [["x", "u", 0, 0, 5, 0, 0, 1, 1, 0, 0, []]]},
        {"rows": [["x", "u", 0, 0, 5, 0, 0, 1, 1, "a", 0, []]]},
        {"rows": [["x", "u", 0, 0, 5, 0, 0, 1, 1, -1, 0, [], 7]]},
    ],
)
def test_rows_that_no_daemon_wrote_are_refused(queued: Any) -> None:
    good = {
        "columns": list(packing.COLUMNS),
        "owners": [["a", "u"]],
        "shapes": [[{}, None, None]],
        "reasons": [],
    }
    document = {"format": 2, "jobs": [], "queued": {**good, **queued} if queued else queued}
    with pytest.raises(InvalidDocument):
        packing.read(json.dumps(document).encode())
