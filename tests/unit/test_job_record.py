"""The state of a job: what older versions wrote is read, and what an intent names comes back."""

from __future__ import annotations

import json

from bastion.core import job_record, jobspec
from bastion.core.job_record import Attempt, JobRecord, PastAttempt, Waiting
from bastion.core.lifecycle import Status
from bastion.core.slices import CapacityModel, Place

SPEC = jobspec.new(
    name="job", bastion="b-bastion", command="true", user_id="u", project_id="p", now=0, instance_type="tpu-v4-8"
)


def record(attempt: Attempt) -> JobRecord:
    return JobRecord(
        name="job",
        uid="aaaaaaaaaa",
        generation=1,
        spec=dict(SPEC.document),
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


def test_a_state_of_a_version_that_knew_no_places_and_no_tries_is_read() -> None:
    attempt = Attempt(number=1, token="t", started_at=2.0)
    document = json.loads(record(attempt).to_bytes())
    for name in ("place", "agent", "try_number", "waiting", "up_since"):
        document["attempt"].pop(name, None)
    for name in ("zone_turn", "capacity_failures", "waited_seconds"):
        del document[name]
    past = PastAttempt(number=1, started_at=0, ended_at=1, cause="evicted", message="")
    document["attempts"] = [{k: v for k, v in past.model_dump(mode="json").items() if k not in ("zone", "tries")}]
    read = job_record.read(json.dumps(document).encode(), name="job")
    assert isinstance(read, JobRecord)
    assert read == record(attempt).model_copy(update={"attempts": (past,)})
