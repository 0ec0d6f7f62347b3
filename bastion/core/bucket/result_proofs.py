"""The proof of a host's results: a signature in the document, by which readers know which run of the job measured them.

A forged figure would be believed as a measurement, so what nobody proves has no value. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from bastion.core import documents, limits
from bastion.core.bucket import results
from bastion.core.bucket.results import HostResults
from bastion.core.errors import InvalidDocument
from bastion.core.run_keys import RunKey, is_signed

_PURPOSE: Final = "results"
_PROOF: Final = "proof"


class UnprovedResults(InvalidDocument):
    """No run of the job proves to have measured this on this host. `results`: what the document says."""

    def __init__(self, message: str, found: HostResults) -> None:
        super().__init__(message)
        self.results = found


def to_bytes(measured: HostResults, key: str, run_key: RunKey) -> bytes:
    """The document with its proof. `key`: the object's, which names job, uid and host."""
    data = measured.to_bytes()
    return documents.dumps({**_load(data), _PROOF: run_key.sign(_PURPOSE, _signed(key, data))})


def read(key: str, data: bytes, public_key_of: Callable[[int], str | None]) -> HostResults:
    """Parse the object at that key; raises InvalidDocument, and UnprovedResults if it has no valid proof.

    Args:
        public_key_of: The public key of an attempt of the job; empty: it needs no proof; None: none can prove it.
    """
    found = results.read(data)
    public = public_key_of(found.attempt)
    if public == "":
        return found
    document = _load(data)
    signature = document.pop(_PROOF, "")
    # What was parsed, in canonical form: with the fields that only a newer agent knows.
    signed = _signed(key, documents.dumps(document))
    if public is None or not isinstance(signature, str) or not is_signed(public, _PURPOSE, signed, signature):
        raise UnprovedResults(
            f"do not prove to be of attempt {found.attempt} of this job, and do not count; someone else may have "
            "written them",
            found,
        )
    return found


def _signed(key: str, data: bytes) -> bytes:
    return key.encode() + b"\0" + data


def _load(data: bytes) -> dict[str, object]:
    loaded: dict[str, object] = documents.loads(
        data, max_bytes=limits.RESULTS_DOCUMENT_MAX_BYTES, max_values=results.MAX_VALUES
    )
    return loaded
