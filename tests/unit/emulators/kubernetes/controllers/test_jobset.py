"""One pass of the JobSet controller over one JobSet."""

from __future__ import annotations

import datetime
import hashlib
from typing import Any

import pytest

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import timestamp
from bastion.emulators.kubernetes.controllers.cluster import Outcome
from bastion.emulators.kubernetes.controllers.jobset import sync
from bastion.emulators.kubernetes.controllers.jobset_jobs import build_job
from tests.support.kubernetes_jobs import job_template
from tests.support.kubernetes_objects import NOW, a_job_set, with_condition


def _sync(job_set: Obj, *jobs: Obj, has_service: bool = True) -> Outcome:
    return sync(job_set, jobs, has_service=has_service, now=NOW)


def _created(outcome: Outcome) -> list[str]:
    return [write.body["metadata"]["name"] for write in outcome.writes if write.method == "create"]


def _status(outcome: Outcome) -> Any:
    (status,) = [write.body["status"] for write in outcome.writes if write.path.endswith("/b-one-1/status")]
    return status


def _conditions(outcome: Outcome) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each["reason"]) for each in _status(outcome).get("conditions") or ()}


def _jobs(job_set: Obj, **status: Any) -> list[Obj]:
    """All its Jobs, as the server returns them."""
    found: list[Obj] = []
    for replicated in job_set["spec"]["replicatedJobs"]:
        for index in range(replicated["replicas"]):
            job = {**build_job(job_set, replicated, index), "status": dict(status)}
            job["metadata"].update(uid=f"{replicated['name']}-{index}", resourceVersion="1")
            found.append(job)
    return found


def _two(**second: Any) -> Obj:
    """A JobSet of two replicated jobs, `a` with two Jobs and `b` with one."""
    replicated = [
        {"name": "a", "replicas": 2, "template": job_template()},
        {"name": "b", "replicas": 1, "template": job_template(), **second},
    ]
    return a_job_set(replicatedJobs=replicated)


def test_the_jobs_of_a_set_say_where_they_belong() -> None:
    job_set = _two()
    job = build_job(job_set, job_set["spec"]["replicatedJobs"][1], 0)
    facts = {
        "jobset-name": "b-one-1",
        "jobset-uid": "set-uid",
        "replicatedjob-name": "b",
        "restart-attempt": "0",
        "replicatedjob-replicas": "1",
        "global-replicas": "3",
        "job-index": "0",
        "job-key": hashlib.sha1(b"default/b-one-1-b-0", usedforsecurity=False).hexdigest(),
        "job-global-index": "2",
        "group-name": "default",
        "group-replicas": "3",
        "job-group-index": "2",
    }
    expected = {f"jobset.sigs.k8s.io/{name}": value for name, value in facts.items()}
    exclusive = {"alpha.jobset.sigs.k8s.io/exclusive-topology": "cloud.google.com/gke-nodepool"}
    for metadata in (job["metadata"], job["spec"]["template"]["metadata"]):
        assert metadata["labels"] == {"bastion-run": "r", **expected}
        assert metadata["annotations"] == {**expected, **exclusive}
    assert job["spec"]["template"]["spec"]["subdomain"] == "b-one-1"
    assert job["spec"]["suspend"] is False


def test_a_coordinator_is_named_by_its_host() -> None:
    job_set = a_job_set(coordinator={"replicatedJob": "slice", "jobIndex": 0, "podIndex": 1})
    job = build_job(job_set, job_set["spec"]["replicatedJobs"][0], 0)
    assert job["metadata"]["labels"]["jobset.sigs.k8s.io/coordinator"] == "b-one-1-slice-0-1.b-one-1"


def test_a_new_set_gets_its_service_and_its_jobs() -> None:
    outcome = _sync(a_job_set(slices=2), has_service=False)
    assert _created(outcome) == ["b-one-1", "b-one-1-slice-0", "b-one-1-slice-1"]
    service = outcome.writes[0].body["spec"]
    assert service == {
        "clusterIP": "None",
        "selector": {"jobset.sigs.k8s.io/jobset-name": "b-one-1"},
        "publishNotReadyAddresses": True,
    }
    counters = {"ready": 0, "succeeded": 0, "failed": 0, "active": 0, "suspended": 0}
    assert _status(outcome) == {"restarts": 0, "replicatedJobsStatus": [{"name": "slice", **counters}]}


def test_jobs_that_run_are_counted_and_then_nothing_is_written() -> None:
    job_set = a_job_set(slices=2)
    jobs = _jobs(job_set, active=2, ready=2)
    jobs[1]["status"]["ready"] = 1
    outcome = _sync(job_set, *jobs)
    (counters,) = _status(outcome)["replicatedJobsStatus"]
    assert (counters["active"], counters["ready"]) == (2, 1)
    assert _sync({**job_set, "status": _status(outcome)}, *jobs).writes == ()


def test_the_first_job_to_fail_fails_the_set() -> None:
    job_set = a_job_set(slices=2)
    first, second = _jobs(job_set)
    first = with_condition(first, "Failed", at="2026-11-23T11:00:02Z")
    second = with_condition(second, "Failed", at="2026-11-23T11:00:01Z")
    outcome = _sync(job_set, first, second)
    (condition,) = _status(outcome)["conditions"]
    assert (condition["type"], condition["reason"]) == ("Failed", "FailedJobs")
    assert condition["message"] == "jobset failed due to one or more job failures (first failed job: b-one-1-slice-1)"
    assert _status(outcome)["terminalState"] == "Failed"
    assert [(event.reason, event.warning) for event in outcome.events] == [("FailedJobs", True)]


def test_a_finished_set_ends_the_jobs_that_still_run() -> None:
    job_set = with_condition(a_job_set(slices=2), "Failed")
    failed, running = _jobs(job_set)
    outcome = _sync(job_set, with_condition(failed, "Failed"), running)
    (deletion,) = [write for write in outcome.writes if write.method == "delete"]
    assert (deletion.path.rpartition("/")[2], deletion.propagation) == ("b-one-1-slice-1", "Foreground")


def test_a_set_completes_with_its_last_job() -> None:
    job_set = a_job_set(slices=2)
    first, second = _jobs(job_set)
    assert "Completed" not in _conditions(_sync(job_set, with_condition(first, "Complete"), second))
    outcome = _sync(job_set, with_condition(first, "Complete"), with_condition(second, "Complete"))
    assert _conditions(outcome) == {"Completed": ("True", "AllJobsCompleted")}
    assert _status(outcome)["terminalState"] == "Completed"


def test_success_may_mean_any_job_of_some() -> None:
    job_set = _two()
    job_set["spec"]["successPolicy"] = {"operator": "Any", "targetReplicatedJobs": ["b"]}
    a0, a1, b0 = _jobs(job_set)
    assert "Completed" not in _conditions(_sync(job_set, with_condition(a0, "Complete"), a1, b0))
    assert "Completed" in _conditions(_sync(job_set, a0, a1, with_condition(b0, "Complete")))


def test_a_dependency_is_awaited() -> None:
    job_set = _two(dependsOn=[{"name": "a", "status": "Ready"}])
    a0, a1, _ = _jobs(job_set, ready=2, active=2)
    a1["status"]["ready"] = 0
    assert _created(_sync(job_set, a0, a1)) == []
    a1["status"]["ready"] = 2
    assert _created(_sync(job_set, a0, a1)) == ["b-one-1-b-0"]


def test_in_order_the_second_starts_when_the_first_is_ready() -> None:
    job_set = _two()
    job_set["spec"]["startupPolicy"] = {"startupPolicyOrder": "InOrder"}
    first = _sync(job_set)
    assert _created(first) == ["b-one-1-a-0", "b-one-1-a-1"]
    assert _conditions(first)["StartupPolicyInProgress"][0] == "True"
    jobs = _jobs(job_set, ready=2, active=2)
    second = _sync({**job_set, "status": _status(first)}, *jobs[:2])
    assert _created(second) == ["b-one-1-b-0"]
    third = _sync({**job_set, "status": _status(second)}, *jobs)
    assert _conditions(third)["StartupPolicyInProgress"][0] == "False"
    assert _conditions(third)["StartupPolicyCompleted"][0] == "True"


def test_suspending_stops_the_jobs_and_resuming_starts_them() -> None:
    job_set = a_job_set(suspend=True)
    (job,) = _jobs(a_job_set(), startTime=timestamp(NOW))
    outcome = _sync(job_set, job)
    assert [write.body for write in outcome.writes if write.method == "patch"] == [{"spec": {"suspend": True}}]
    assert _conditions(outcome) == {"Suspended": ("True", "SuspendedJobs")}
    resumed = {**a_job_set(), "status": _status(outcome)}
    job["spec"]["suspend"] = True
    outcome = _sync(resumed, job)
    unstart, start = [write for write in outcome.writes if write.method == "patch"]
    assert unstart.path.endswith("/b-one-1-slice-0/status")
    assert start.body["spec"]["suspend"] is False
    assert _conditions(outcome) == {"Suspended": ("False", "ResumeJobs")}


@pytest.mark.parametrize(
    ("policy", "reason"),
    [
        ({"rules": [{"action": "FailJobSet"}]}, "FailJobSetFailurePolicyAction"),
        ({"rules": [{"action": "FailJobSet", "onJobFailureReasons": ["Other"]}], "maxRestarts": 1}, "NotEmulated"),
        ({"rules": [{"action": "FailJobSet", "targetReplicatedJobs": ["other"]}]}, "ReachedMaxRestarts"),
        (
            {"rules": [{"action": "FailJobSet", "onJobFailureMessagePatterns": ["^Con.*3$"]}]},
            "FailJobSetFailurePolicyAction",
        ),
        ({"maxRestarts": 0}, "ReachedMaxRestarts"),
        ({"maxRestarts": 2}, "NotEmulated"),
    ],
)
def test_a_failure_policy_fails_the_set_or_is_not_emulated(policy: Obj, reason: str) -> None:
    job_set = a_job_set(failurePolicy=policy)
    (job,) = _jobs(job_set)
    outcome = _sync(job_set, with_condition(job, "Failed", reason="PodFailurePolicy", message="Container 3"))
    assert _conditions(outcome) == {"Failed": ("True", reason)}


def test_a_finished_set_expires() -> None:
    job_set = with_condition(a_job_set(ttlSecondsAfterFinished=60), "Completed")
    assert _sync(job_set).again_seconds == 60
    late = sync(job_set, (), has_service=True, now=NOW + datetime.timedelta(seconds=60))
    assert [(write.method, write.propagation) for write in late.writes if write.method == "delete"] == [
        ("delete", "Foreground")
    ]


def test_sets_that_are_deleted_or_another_controllers_are_left_alone() -> None:
    job_set = a_job_set()
    job_set["metadata"]["deletionTimestamp"] = timestamp(NOW)
    assert _sync(job_set).writes == ()
    assert _sync(a_job_set(managedBy="kueue.x-k8s.io/multikueue")).writes == ()
