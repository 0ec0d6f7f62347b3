"""What is kept of documents: anybody may write objects with our labels, and none may stop the listing."""

from __future__ import annotations

import sys

import pytest

from bastion.adapters.kubernetes import seen
from bastion.adapters.kubernetes.state import Parts, gang_status
from tests.support.gang_documents import CASES, NAME, Documents, damaged, ended, waiting

STRANGE = [
    {},
    {"metadata": None},
    {"metadata": {"name": "x"}, "spec": [], "status": "no"},
    {"metadata": {"name": "x", "labels": []}, "status": {"conditions": {"a": 1}}},
]


def test_no_damage_to_a_document_raises() -> None:
    documents = Documents()
    ended(documents.pods[0], 137, "OOMKilled", "killed")
    waiting(documents.pods[1], "ErrImagePull", "denied")
    assert documents.jobset is not None
    damages = {
        seen.jobset: damaged(documents.jobset),
        seen.job: [each for job in documents.jobs for each in damaged(job)],
        seen.pod: [each for pod in documents.pods for each in damaged(pod)],
    }
    for shrink, given in damages.items():
        assert len(given) > 20
        for document in [*given, *STRANGE]:
            assert shrink(document) == shrink(document)


@pytest.mark.parametrize("case", CASES)
def test_a_gang_with_a_damaged_part_still_has_a_status(case: str) -> None:
    documents = CASES[case][1]()
    for index, strange in enumerate(STRANGE):
        documents.pods.insert(index, strange)
        documents.jobs.insert(index, strange)
    assert gang_status(NAME, "", documents.parts).ref.name == NAME
    parts = Parts(jobset=seen.jobset({}), jobs=[], pods=[], now=0.0, waited=lambda _pod: 0.0)
    assert gang_status(NAME, "", parts).token == ""


def test_texts_are_cut_and_those_that_repeat_are_kept_once() -> None:
    documents = Documents()
    waiting(documents.pods[0], "".join(["ErrImage", "Pull"]), "m" * 100_000)
    first, second = (seen.pod(pod) for pod in (documents.pods[0], {**documents.pods[0]}))
    assert first.waiting is not None and second.waiting is not None
    assert len(first.waiting.message) == 500
    assert first.waiting.reason is second.waiting.reason
    assert first.run is sys.intern(first.run) is second.run
    assert first.status is second.status, "no word is one object"


def test_an_index_that_is_none_is_that_of_the_first_host() -> None:
    pod = seen.pod({"metadata": {"labels": {"jobset.sigs.k8s.io/job-index": "9" * 12}}})
    assert (pod.slice_index, pod.worker, pod.phase) == (0, 0, "Pending")
