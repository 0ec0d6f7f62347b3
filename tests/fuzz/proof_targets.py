"""What the hosts of a run sign: whatever is believed says what was signed, in whatever way it is written."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

from bastion.core.bucket import outputs, pinned, protocol, result_proofs, results, segment_proofs
from bastion.core.bucket.manifest_proofs import ManifestProofs
from bastion.core.errors import InvalidDocument
from bastion.core.run_keys import RunKey
from tests.fuzz.documents_targets import host_results, log_segments, manifests, pinned_listings
from tests.fuzz.mangling import Form
from tests.fuzz.target import Target

KEY = "outputs/train/aaaaaaaaaa/worker-0/one"
RUN_KEY = RunKey(bytes(range(32)))
PLACE = "outputs/train/aaaaaaaaaa/worker-0/"
PROOFS = ManifestProofs(place=PLACE, public_keys={"aaaaaaaaaa-1": RUN_KEY.public})
_INVALID = (InvalidDocument,)


def _same_as_signed(name: str, seeds: Callable[[], Sequence[bytes]], read: Callable[[bytes], object]) -> Target:
    """A target whose parser believes the seeds, and nothing that says anything else."""

    @functools.cache
    def signed() -> list[object]:
        return [read(seed) for seed in seeds()]

    def parse(data: bytes) -> None:
        found = read(data)
        assert found in signed()

    form = Form.LINES if name == "proved-segment" else Form.JSON
    return Target(name=name, parse=parse, errors=_INVALID, seeds=seeds, form=form)


@functools.cache
def _results() -> Sequence[bytes]:
    return [result_proofs.to_bytes(results.read(data), KEY, RUN_KEY) for data in host_results()]


@functools.cache
def _reports() -> Sequence[bytes]:
    made = [
        protocol.Report(run="aaaaaaaaaa-1", host=0, phase=protocol.HostPhase.RUNNING, last_step=7),
        protocol.Report(run="aaaaaaaaaa-1", host=3, phase=protocol.HostPhase.ENDED, exit_code=137, message="killed"),
    ]
    return [protocol.sign(each, RUN_KEY).to_bytes() for each in made]


@functools.cache
def _listings() -> Sequence[bytes]:
    return [pinned.with_proof(KEY, pinned.read_listing(data), RUN_KEY) for data in pinned_listings()]


@functools.cache
def _manifests() -> Sequence[bytes]:
    return [PROOFS.to_bytes(outputs.read(data), RUN_KEY) for data in manifests()]


@functools.cache
def _segments() -> Sequence[bytes]:
    return [segment_proofs.with_proof(KEY, data, RUN_KEY) for data in log_segments()]


def _segment(data: bytes) -> bytes:
    text = segment_proofs.proved(KEY, data, RUN_KEY.public)
    if text is None:
        assert data.startswith(segment_proofs.without_proof(data))
        raise InvalidDocument("not proved")
    return text


def _report(data: bytes) -> protocol.Report:
    found = protocol.read_signed(protocol.Report, data, RUN_KEY.public)
    return found.model_copy(update={"signature": ""})  # its letters may be of either case


TARGETS = (
    _same_as_signed(
        "proved-results", _results, lambda data: result_proofs.read(KEY, data, lambda attempt: RUN_KEY.public)
    ),
    _same_as_signed("proved-report", _reports, _report),
    _same_as_signed("proved-listing", _listings, lambda data: pinned.proved(KEY, data, RUN_KEY.public)),
    _same_as_signed("proved-manifest", _manifests, lambda data: PROOFS.read(1, data)),
    _same_as_signed("proved-segment", _segments, _segment),
)
