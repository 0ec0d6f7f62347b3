"""Which public key readers believe for a run."""

from __future__ import annotations

from bastion.client.jobs.results import Result
from bastion.core.bucket.keys import Run
from bastion.core.model.run_public_keys import RunPublicKeys

UID = "aaaaaaaaaa"


def test_a_run_that_the_job_never_had_has_no_key() -> None:
    known = RunPublicKeys(uid=UID, attempts={1: "k1", 2: "k2"}, cleanups=("c1",))
    assert [known.of(Run(UID, number)) for number in (1, 2, 3)] == ["k1", "k2", None]
    assert [known.of(Run(UID, 0, cleanup_try)) for cleanup_try in (1, 2)] == ["c1", None]
    assert known.of(Run("bbbbbbbbbb", 1)) is None
    assert RunPublicKeys(uid=UID).of(Run(UID, 1)) is None


def test_runs_of_an_older_version_prove_nothing_and_newer_ones_of_the_same_job_do() -> None:
    older = RunPublicKeys(uid=UID, attempts={1: "", 2: ""})
    assert [older.of(Run(UID, 1)), older.of(Run(UID, 0))] == ["", ""]
    both = RunPublicKeys(uid=UID, attempts={1: "", 2: "k2"})
    assert [both.of(Run(UID, number)) for number in (0, 1, 2, 3)] == [None, "", "k2", None]
    assert [both.proving(Run(UID, number)) for number in (0, 1, 2, 3)] == [None, None, "k2", None]
    assert [older.proving(Run(UID, number)) for number in (1, 3)] == ["", ""]


def test_an_attempt_that_never_had_machines_is_not_one_of_an_older_version() -> None:
    never = {"number": 1, "cause": "capacity", "started_at": "2027-01-15T08:00:00Z", "ended_at": "2027-01-15T08:01:00Z"}
    ran = {**never, "number": 2, "cause": "succeeded", "public_key": "k2"}
    both = Result.model_validate({"name": "job", "uid": UID, "attempts": [never, ran]}).public_keys
    assert [both.of(Run(UID, number)) for number in (1, 2)] == [None, "k2"]
    alone = Result.model_validate({"name": "job", "uid": UID, "attempts": [never]}).public_keys
    assert alone.of(Run(UID, 1)) is None
    older = Result.model_validate({"name": "job", "uid": UID, "attempts": [{**never, "cause": "evicted"}]}).public_keys
    assert older.of(Run(UID, 1)) == ""
