"""One pass of the Job controller over one Job."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

import pytest

from bastion.emulators.kubernetes.client import Obj
from bastion.emulators.kubernetes.controllers.api_objects import timestamp
from bastion.emulators.kubernetes.controllers.cluster import Outcome
from bastion.emulators.kubernetes.controllers.exclusive import Denied
from bastion.emulators.kubernetes.controllers.job import release, sync
from tests.support.kubernetes_objects import NOW, a_job, a_pod, with_condition


def _sync(job: Obj, *pods: Obj) -> Outcome:
    return sync(job, pods, now=NOW, admit=lambda pod: pod)


def _writes(outcome: Outcome) -> list[tuple[str, str]]:
    return [(write.method, write.path.removeprefix("/api/v1/namespaces/default/pods")) for write in outcome.writes]


def _status(outcome: Outcome) -> Any:
    (status,) = [write.body["status"] for write in outcome.writes if write.path.endswith("/jobs/j/status")]
    return status


def _conditions(outcome: Outcome) -> list[tuple[str, str, str]]:
    found = _status(outcome).get("conditions") or []
    return [(each["type"], each["reason"], each["message"]) for each in found]


def _running(job: Obj, **status: Any) -> Obj:
    """The Job after a pass that saw its pods run."""
    counters = {"active": 2, "ready": 0, "terminating": 0, "uncountedTerminatedPods": {}}
    return {**job, "status": {"startTime": timestamp(NOW), **counters, **status}}


def test_it_creates_a_pod_for_every_index() -> None:
    outcome = _sync(a_job())
    assert _writes(outcome)[:2] == [("create", ""), ("create", "")]
    pod = outcome.writes[1].body
    assert pod["metadata"]["generateName"] == "j-1-"
    assert pod["spec"]["hostname"] == "j-1"
    assert pod["metadata"]["finalizers"] == ["batch.kubernetes.io/job-tracking"]
    index = "batch.kubernetes.io/job-completion-index"
    assert pod["metadata"]["labels"] == {
        "bastion-run": "r",
        "batch.kubernetes.io/controller-uid": "job-uid",
        "batch.kubernetes.io/job-name": "j",
        "controller-uid": "job-uid",
        "job-name": "j",
        index: "1",
    }
    assert pod["metadata"]["annotations"] == {index: "1"}
    (owner,) = pod["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"], owner["blockOwnerDeletion"]) == (
        "Job",
        "job-uid",
        True,
        True,
    )
    (variable,) = pod["spec"]["containers"][0]["env"]
    assert variable["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{index}']"
    assert _status(outcome)["startTime"] == timestamp(NOW)


def test_a_long_name_is_cut_so_that_the_pods_name_fits() -> None:
    job = a_job()
    job["metadata"]["name"] = "a" * 60
    name = _sync(job).writes[0].body["metadata"]["generateName"]
    assert name == "a" * 55 + "-0-"
    assert len(name) + 5 == 63


def test_pods_that_run_are_counted_and_then_nothing_is_written() -> None:
    job = a_job()
    pods = [a_pod(job, 0, ready=True), a_pod(job, 1)]
    status = _status(_sync(job, *pods))
    assert (status["active"], status["ready"], status["terminating"]) == (2, 1, 0)
    assert _sync({**job, "status": status}, *pods).writes == ()


def test_a_pod_that_fails_by_its_exit_code_names_itself_and_ends_the_others() -> None:
    job = a_job()
    pods = [a_pod(job, 0), a_pod(job, 1, "Failed", exit_code=3)]
    outcome = _sync(_running(job), *pods)
    message = "Container host for pod default/j-1-abcde failed with exit code 3 matching FailJob rule at index 1"
    assert _conditions(outcome) == [("FailureTarget", "PodFailurePolicy", message)]
    assert _writes(outcome) == [
        ("delete", "/j-0-abcde"),
        ("update", "/apis/batch/v1/namespaces/default/jobs/j/status"),
        ("patch", "/j-0-abcde"),
        ("patch", "/j-1-abcde"),
    ]
    assert outcome.writes[2].body == {"metadata": {"uid": "pod-0", "finalizers": None}}
    status = _status(outcome)
    assert status["uncountedTerminatedPods"] == {"failed": ["pod-0", "pod-1"]}
    assert status["terminating"] == 1
    assert "active" not in status


def test_a_disrupted_pod_fails_the_job_once_it_has_failed() -> None:
    job = a_job()
    leaving = a_pod(job, 0, deleting=True, conditions=("DisruptionTarget",))
    assert _conditions(_sync(_running(job), leaving, a_pod(job, 1))) == []
    gone = a_pod(job, 0, "Failed", deleting=True, conditions=("DisruptionTarget",), exit_code=143)
    message = "Pod default/j-0-abcde has condition DisruptionTarget matching FailJob rule at index 0"
    assert _conditions(_sync(_running(job), gone, a_pod(job, 1)))[0] == ("FailureTarget", "PodFailurePolicy", message)


def test_a_job_has_failed_when_its_last_pod_has_ended() -> None:
    job = with_condition(_running(a_job()), "FailureTarget", reason="PodFailurePolicy", message="m")
    job["status"]["uncountedTerminatedPods"] = {"failed": ["pod-0", "pod-1"]}
    failed = a_pod(job, 1, "Failed", exit_code=3, held=False)
    going = _sync(job, a_pod(job, 0, deleting=True, held=False), failed)
    assert [kind for kind, _, _ in _conditions(going)] == ["FailureTarget"]
    assert (_status(going)["failed"], _status(going)["uncountedTerminatedPods"]) == (2, {})
    ended = _sync({**job, "status": _status(going)}, failed)
    assert _conditions(ended)[-1] == ("Failed", "PodFailurePolicy", "m")
    assert [(event.reason, event.warning) for event in ended.events] == [("PodFailurePolicy", True)]
    assert _sync({**job, "status": _status(ended)}, failed).writes == ()


def test_without_a_policy_the_backoff_limit_fails_it() -> None:
    job = _running(a_job(podFailurePolicy=None))
    outcome = _sync(job, a_pod(job, 0), a_pod(job, 1, "Failed", exit_code=1))
    assert _conditions(outcome) == [
        ("FailureTarget", "BackoffLimitExceeded", "Job has reached the specified backoff limit")
    ]


def test_below_the_backoff_limit_a_failed_pod_is_replaced() -> None:
    job = _running(a_job(podFailurePolicy=None, backoffLimit=1))
    outcome = _sync(job, a_pod(job, 0), a_pod(job, 1, "Failed", exit_code=1))
    assert [write.body["spec"]["hostname"] for write in outcome.writes if write.method == "create"] == ["j-1"]
    assert _conditions(outcome) == []


def test_a_pod_that_is_being_deleted_is_replaced_only_when_it_has_ended() -> None:
    job = _running(a_job())
    outcome = _sync(job, a_pod(job, 0, deleting=True), a_pod(job, 1))
    assert [write.method for write in outcome.writes] == ["update"]
    eager = _running(a_job(podReplacementPolicy="TerminatingOrFailed", podFailurePolicy=None, backoffLimit=1))
    outcome = _sync(eager, a_pod(eager, 0, deleting=True), a_pod(eager, 1))
    assert outcome.writes[0].method == "create"


def test_when_every_index_succeeded_the_job_completes() -> None:
    job = a_job()
    pods = [a_pod(job, index, "Succeeded", exit_code=0) for index in (0, 1)]
    first = _sync(_running(job), *pods)
    assert _conditions(first) == [
        ("SuccessCriteriaMet", "CompletionsReached", "Reached expected number of succeeded pods")
    ]
    assert (_status(first)["completedIndexes"], _status(first)["succeeded"]) == ("0,1", 2)
    assert [write.method for write in first.writes] == ["update", "patch", "patch"]
    free = [a_pod(job, index, "Succeeded", exit_code=0, held=False) for index in (0, 1)]
    second = _sync({**job, "status": _status(first)}, *free)
    assert _conditions(second)[-1][0] == "Complete"
    assert _status(second)["completionTime"] == timestamp(NOW)


def test_an_index_that_succeeded_stays_so_when_its_pod_is_gone() -> None:
    job = _running(a_job(), completedIndexes="0", succeeded=1)
    outcome = _sync(job, a_pod(job, 1))
    assert _status(outcome)["succeeded"] == 1
    assert [write for write in outcome.writes if write.method == "create"] == []


def test_a_suspended_job_ends_its_pods_and_says_so() -> None:
    job = _running(a_job(suspend=True))
    outcome = _sync(job, a_pod(job, 0), a_pod(job, 1))
    assert [method for method, _ in _writes(outcome)] == ["patch", "patch", "delete", "delete", "update"]
    assert _conditions(outcome) == [("Suspended", "JobSuspended", "Job suspended")]


def test_a_resumed_job_starts_anew() -> None:
    job = with_condition(a_job(status={"startTime": "2020-01-01T00:00:00Z"}), "Suspended")
    outcome = _sync(job)
    (condition,) = _status(outcome)["conditions"]
    assert (condition["status"], condition["reason"]) == ("False", "JobResumed")
    assert _status(outcome)["startTime"] == timestamp(NOW)


def test_a_deadline_fails_a_job_and_is_awaited() -> None:
    job = _running(a_job(activeDeadlineSeconds=60))
    pods = [a_pod(job, 0), a_pod(job, 1)]
    assert _sync(job, *pods).again_seconds == 60
    late = sync(job, pods, now=NOW + datetime.timedelta(seconds=60), admit=lambda pod: pod)
    assert _conditions(late)[0][1] == "DeadlineExceeded"


def test_a_deleted_job_lets_go_of_its_pods_and_makes_none() -> None:
    job = a_job(deleting=True)
    outcome = _sync(job, a_pod(job, 0))
    assert ("patch", "/j-0-abcde") in _writes(outcome)
    assert not any(method == "create" for method, _ in _writes(outcome))


def test_two_pods_of_an_index_become_one() -> None:
    job = _running(a_job())
    twin = a_pod(job, 1)
    twin["metadata"].update(name="j-1-zzzzz", uid="twin")
    outcome = _sync(job, a_pod(job, 0), a_pod(job, 1), twin)
    assert [path for method, path in _writes(outcome) if method == "delete"] == ["/j-1-zzzzz"]


def test_a_denied_pod_ends_the_pass_and_leaves_an_event() -> None:
    def admit(pod: Obj) -> Obj:
        if pod["spec"]["hostname"] != "j-0":
            raise Denied("not yet")
        return pod

    outcome = sync(a_job(hosts=3), (), now=NOW, admit=admit)
    assert [write.method for write in outcome.writes] == ["create", "update"]
    assert [(event.reason, event.message) for event in outcome.events] == [("FailedCreate", "Error creating: not yet")]


@pytest.mark.parametrize(
    ("spec", "named"),
    [({"completionMode": "NonIndexed"}, "completionMode NonIndexed"), ({"successPolicy": {}}, "successPolicy")],
)
def test_what_is_not_emulated_is_said(spec: dict[str, Any], named: str) -> None:
    outcome = _sync(a_job(**spec))
    assert outcome.writes == ()
    (event,) = outcome.events
    assert event.reason == "NotEmulated"
    assert named in event.message


def test_pods_of_a_job_that_is_gone_are_let_go() -> None:
    job = a_job()
    pods: Sequence[Obj] = [a_pod(job, 0), a_pod(job, 1, held=False)]
    assert _writes(release(pods)) == [("patch", "/j-0-abcde")]
