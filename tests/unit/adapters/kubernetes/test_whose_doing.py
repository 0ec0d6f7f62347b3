"""What pods say, told apart: a job's own doing, and whose a JobSet, a Job or a pod is."""

from __future__ import annotations

from typing import Any

import pytest

from bastion.adapters.kubernetes import failures, seen

# The kubelet's words (pkg/kubelet/eviction/helpers.go).
LOW = "The node was low on resource: {what}. Threshold quantity: 100Mi, available: 50Mi. "


NAME = "b-aaaaaaaaaa-1-slice-0-1-abcde"


def pod(*, run: str = "aaaaaaaaaa-1", jobset: str = "b-aaaaaaaaaa-1", name: str = NAME, **status: Any) -> seen.SeenPod:
    labels = {
        "bastion-run": run,
        "jobset.sigs.k8s.io/jobset-name": jobset,
        "batch.kubernetes.io/job-completion-index": "1",
    }
    return seen.pod({"metadata": {"name": name, "labels": labels}, "status": {"phase": "Failed", **status}})


def evicted(message: str) -> dict[str, Any]:
    return {"reason": "Evicted", "message": message}


def disrupted(message: str) -> dict[str, Any]:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet", "message": message}
    return {"phase": "Succeeded", "conditions": [condition]}


@pytest.mark.parametrize("status", [evicted, disrupted])
@pytest.mark.parametrize(
    ("message", "own"),
    [
        ("Pod ephemeral local storage usage exceeds the total limit of containers 1Gi. ", True),
        ('Container host exceeded its local ephemeral storage limit "1Gi". ', True),
        ('Usage of EmptyDir volume "shm" exceeds the limit "1Gi". ', True),
        (
            LOW.format(what="ephemeral-storage")
            + "Container host was using 9Gi, request is 0, has larger consumption of ephemeral-storage. ",
            True,
        ),
        # Others filled the disk.
        (LOW.format(what="ephemeral-storage"), False),
        (LOW.format(what="memory"), False),
        ("Pod was terminated in response to imminent node shutdown.", False),
    ],
)
def test_a_pod_that_ate_its_own_disk_is_told_from_one_whose_node_was_full(message: str, own: bool, status: Any) -> None:
    found = failures.of_job([pod(**status(message))], hosts=4)
    assert (found is not None) == own
    if found is not None:
        assert (found.cause, found.host, found.exit_code) == ("failed", 1, 137)


def test_parts_of_a_copy_of_a_job_set_are_not_the_runs() -> None:
    assert pod().run == "aaaaaaaaaa-1"
    assert pod(jobset="copy").run == ""
    labels = {"bastion-run": "aaaaaaaaaa-1", "jobset.sigs.k8s.io/jobset-name": "copy"}
    assert seen.job({"metadata": {"name": "copy-slice-0", "labels": labels}}).run == ""


def test_a_pod_that_someone_copied_with_its_labels_is_no_host() -> None:
    """As `kubectl debug --copy-to=mine --keep-labels` does; what becomes of it must not end the job."""
    assert pod(name="mine").run == ""
    assert pod(name="b-aaaaaaaaaa-10-slice-0-1-abcde").run == ""


def jobset(name: str, labels: dict[str, str], template: dict[str, str]) -> dict[str, Any]:
    slices = {"name": "slice", "template": {"metadata": {"labels": template}, "spec": {}}}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"replicatedJobs": [slices]}}


@pytest.mark.parametrize("labels", [{}, {"bastion-managed": "other", "bastion-run": "zzzzzzzzzz-1"}])
def test_a_job_set_stays_ours_whatever_happens_to_its_labels(labels: dict[str, str]) -> None:
    ours = {"bastion-managed": "team", "bastion-run": "aaaaaaaaaa-1"}
    found = jobset("b-aaaaaaaaaa-1", labels, ours)
    assert (seen.manager(found), seen.jobset(found).run) == ("team", "aaaaaaaaaa-1")
    copy = jobset("b-aaaaaaaaaa-2", labels, ours)
    assert seen.manager(copy) == labels.get("bastion-managed", ""), "somebody's copy"
