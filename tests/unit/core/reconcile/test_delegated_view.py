"""Jobs that Kueue decides on, as the scheduler sees them, also where their states cannot be read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bastion.core.bucket.objects import ObjectMeta
from bastion.core.model.daemon_settings import load
from bastion.core.model.gangs import GangRef, GangState, GangStatus, Place
from bastion.core.model.job_record import Attempt, JobRecord
from bastion.core.model.kueue import KueueStatus
from bastion.core.model.lifecycle import Status
from bastion.core.model.provisioning import BUILT_IN
from bastion.core.model.world import JobView, OrphanGang
from bastion.core.reconcile.scheduling_view import SchedulingView
from scheduler import Job, JobStatus
from tests.support.job_specs import new_spec

SETTINGS = load(
    b"""
[clusters.training]
uid = "5f0c0000-0000-0000-0000-000000000000"
queue = "bastion-{project}"
[types.v4]
zones = ["k8s:training"]
[types.v4.pod]
image = "train:v1"
[[tiers]]
model = "spot"
"""
)
SPEC = new_spec(name="job", command="x", instance_type="tpu-v4-16")
UNITS = {"v4": 16}


def record(place: Place | None = None) -> JobRecord:
    """A queued job, or one with an attempt in that place."""
    made = JobRecord(name="job", uid="abcdefghij", generation=1, job=SPEC, queued_at=1.0)
    if place is None:
        return made
    charged = {} if place.queue else UNITS
    attempt = Attempt(number=1, token="t", started_at=2.0, place=place, charged=charged)
    return made.model_copy(update={"status": Status.ACTIVE, "attempt": attempt, "next_attempt": 2})


def seen(view: JobView, settings: Any = SETTINGS) -> Job:
    (job,) = SchedulingView().snapshot({"job": view}, None, provisioning=settings).jobs
    return job


def orphan(kueue: KueueStatus | None) -> OrphanGang:
    ref = GangRef(name="b-abcdefghij-1", zone="k8s:training")
    status = GangStatus(ref=ref, run="abcdefghij-1", token="t", state=GangState.READY, kueue=kueue)
    return OrphanGang(status=status, on_bastion=False)


IN_KUEUE = Place(zone="k8s:training", queue="bastion-a")
OURS = Place(zone="k8s:training")


@pytest.mark.parametrize(
    ("place", "settings", "delegated"),
    [
        (None, SETTINGS, True),
        (None, BUILT_IN, False),
        (IN_KUEUE, SETTINGS, True),
        (IN_KUEUE, BUILT_IN, True),
        (OURS, SETTINGS, False),
    ],
    ids=["queued", "queued here", "submitted", "submitted, and the mode changed", "started here, and the mode changed"],
)
def test_a_queued_job_is_delegated_by_the_settings_and_an_attempt_by_its_place(
    place: Place | None, settings: Any, delegated: bool
) -> None:
    job = seen(JobView(name="job", record=record(place)), settings)
    assert job.delegated is delegated
    assert dict(job.demand) == ({} if delegated else UNITS)
    assert dict(job.charged) == (UNITS if place is OURS else {})


@pytest.mark.parametrize("place", [None, IN_KUEUE, OURS])
def test_a_state_that_cannot_be_read_charges_units_only_where_we_decide(place: Place | None) -> None:
    job = seen(JobView(name="job", record=record(place), unread=True, spec=SPEC))
    assert (job.status, job.delegated) == (JobStatus.RUNNING, place is not OURS)
    assert dict(job.charged) == (UNITS if place is OURS else {})


@pytest.mark.parametrize("kueue", [None, KueueStatus(queue="bastion-a")])
@pytest.mark.parametrize("with_state", [True, False])
def test_a_gang_that_is_left_counts_where_we_decide(kueue: KueueStatus | None, with_state: bool) -> None:
    view = JobView(name="job", orphan_gangs=(orphan(kueue),))
    if with_state:
        view = replace(view, record=record())
    else:
        view = replace(view, spec=SPEC, spec_meta=ObjectMeta(key="k", generation=1, size=1, updated=1.0))
    job = seen(view)
    assert job.delegated is (kueue is not None)
    assert dict(job.charged) == ({} if kueue else UNITS)
