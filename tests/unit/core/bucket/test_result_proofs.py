"""Which results prove to be of a host of a job's attempt."""

from __future__ import annotations

import pytest

from bastion.core import limits
from bastion.core.bucket import keys, result_proofs
from bastion.core.bucket.result_proofs import UnprovedResults
from bastion.core.bucket.results import HostResults
from bastion.core.run_keys import RunKey

KEY, LATER, THEIRS = (RunKey(letter * 32) for letter in (b"1", b"2", b"t"))
PLACE = keys.results("job", "abcdefghij", 0)
MEASURED = HostResults(attempt=1, try_number=2, exit_code=0, lines=['{"metric": "m", "value": 1}'])
SIGNED = result_proofs.to_bytes(MEASURED, PLACE, KEY)


def public_key_of(attempt: int) -> str | None:
    return {1: KEY.public, 2: LATER.public, 4: ""}.get(attempt)


def test_what_the_runs_key_signed_is_read() -> None:
    assert result_proofs.read(PLACE, SIGNED, public_key_of) == MEASURED


def test_an_attempt_that_needs_no_proof_is_read_as_it_is() -> None:
    older = MEASURED.model_copy(update={"attempt": 4})
    assert result_proofs.read(PLACE, older.to_bytes(), public_key_of) == older


@pytest.mark.parametrize(
    "place",
    [
        keys.results("job", "abcdefghij", 1),
        keys.results("job", "bbbbbbbbbb", 0),
        keys.results("other", "abcdefghij", 0),
    ],
)
def test_a_copy_in_another_place_proves_nothing(place: str) -> None:
    with pytest.raises(UnprovedResults):
        result_proofs.read(place, SIGNED, public_key_of)


@pytest.mark.parametrize(
    "data",
    [
        MEASURED.to_bytes(),
        result_proofs.to_bytes(MEASURED, PLACE, THEIRS),
        result_proofs.to_bytes(MEASURED, PLACE, LATER),
        result_proofs.to_bytes(MEASURED.model_copy(update={"attempt": 3}), PLACE, THEIRS),  # the job had none
        SIGNED.replace(b'"attempt":1', b'"attempt":2'),
        SIGNED.replace(b'"try_number":2', b'"try_number":3'),
        SIGNED.replace(b'"exit_code":0', b'"exit_code":1'),
        SIGNED.replace(b'\\"value\\": 1', b'\\"value\\": 9'),
        SIGNED.replace(b"{", b'{"newer":1,', 1),
        SIGNED.replace(b'"proof":"', b'"proof":"00'),
        MEASURED.to_bytes().replace(b"{", b'{"proof":7,', 1),
        MEASURED.to_bytes().replace(b"{", b'{"proof":null,', 1),
    ],
)
def test_what_is_changed_or_signed_by_others_proves_nothing(data: bytes) -> None:
    assert data != SIGNED
    with pytest.raises(UnprovedResults, match="do not prove to be of attempt"):
        result_proofs.read(PLACE, data, public_key_of)


def test_the_largest_results_have_room_for_the_proof() -> None:
    line = "x" * (limits.RESULTS_MAX_BYTES // limits.RESULTS_MAX_LINES - 1)
    most = MEASURED.model_copy(update={"lines": [line] * limits.RESULTS_MAX_LINES})
    assert result_proofs.read(PLACE, result_proofs.to_bytes(most, PLACE, KEY), public_key_of) == most
