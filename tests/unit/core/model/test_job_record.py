"""The state of a job: what older versions wrote is read, and what an intent names comes back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from bastion.core.errors import InvalidDocument
from bastion.core.model import job_record
from bastion.core.model.gangs import CapacityModel, Place
from bastion.core.model.job_record import Attempt, JobRecord, PastAttempt, Waiting
from bastion.core.model.lifecycle import Status
from tests.support.job_specs import new_spec

SPEC = new_spec(instance_type="tpu-v4-8")


def record(attempt: Attempt) -> JobRecord:
    return JobRecord(
        name="job",
        uid="aaaaaaaaaa",
        generation=1,
        job=SPEC,
        queued_at=1.0,
        status=Status.ACTIVE,
        attempt=attempt,
        next_attempt=2,
    )


def test_the_place_of_an_attempt_and_what_it_waits_for_come_back_as_they_were_stored() -> None:
    attempt = Attempt(
        number=1,
        token="t",
        started_at=2.0,
        place=Place(zone="us-central2-b", model=CapacityModel.RESERVED, reservation="r", external_ips=False),
        waiting=Waiting(state="WAITING_FOR_RESOURCES", zone="us-central2-b", since=3.0),
    )
    assert job_record.read(record(attempt).to_bytes(), name="job") == record(attempt)


def flat(attempt: Attempt) -> dict[str, Any]:
    """The state as versions before format 2 wrote it: the record's fields at the top level."""
    document = json.loads(record(attempt).to_bytes())
    return {**document["metadata"]["record"], "status": document["status"], "metadata": {"tier": 1}, "format": 1}


def test_a_state_of_a_version_that_knew_no_places_and_no_tries_is_read() -> None:
    attempt = Attempt(number=1, token="t", started_at=2.0)
    document = flat(attempt)
    for name in ("place", "agent", "try_number", "waiting", "up_since"):
        document["attempt"].pop(name, None)
    for name in ("zone_turn", "capacity_failures", "waited_seconds"):
        del document[name]
    past = PastAttempt(number=1, started_at=0, ended_at=1, cause="evicted", message="")
    document["attempts"] = [{k: v for k, v in past.model_dump(mode="json").items() if k not in ("zone", "tries")}]
    read = job_record.read(json.dumps(document).encode(), name="job")
    assert isinstance(read, JobRecord)
    assert read == record(attempt).model_copy(update={"attempts": (past,), "metadata": {"tier": 1}})


def test_a_flat_state_is_rewritten_under_its_metadata() -> None:
    read = job_record.read(json.dumps(flat(Attempt(number=1, token="t", started_at=2.0))).encode(), name="job")
    assert isinstance(read, JobRecord)
    rewritten = json.loads(read.to_bytes())
    assert set(rewritten) == {"status", "metadata"}
    assert set(rewritten["metadata"]) == {"tier", "format", "record"}
    assert rewritten["metadata"]["tier"] == 1
    assert job_record.read(read.to_bytes(), name="job") == read


@pytest.mark.parametrize("data", [b"ACTIVE", b" active\n", b'{"status":"ACTIVE","metadata":{"tier":0}}'])
def test_a_state_without_a_record_of_ours_is_just_its_status(data: bytes) -> None:
    assert job_record.read(data, name="job") is Status.ACTIVE


@pytest.mark.parametrize(
    "document",
    [
        {"status": "ACTIVE", "metadata": {"format": 3, "record": {}}},
        {"status": "ACTIVE", "metadata": {"format": 2}},
        {"status": "ACTIVE", "metadata": {"format": 2, "record": []}},
        {"status": "ACTIVE", "metadata": {"format": 2, "record": {}}},
        {"status": "ACTIVE", "metadata": {}, "format": 2},
        {"metadata": {}},
    ],
)
def test_a_state_of_an_unknown_format_is_not_read_as_a_bare_status(document: dict[str, Any]) -> None:
    with pytest.raises(InvalidDocument):
        job_record.read(json.dumps(document).encode(), name="job")
