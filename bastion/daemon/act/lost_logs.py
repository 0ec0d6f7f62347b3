"""Gap lines for hosts that died, in a segment of the daemon's own; a host that returns uses the next number."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from bastion.core import limits
from bastion.core.bucket import keys, segment_proofs
from bastion.core.bucket.gap_lines import gap_line, last_instant, missing
from bastion.core.errors import NotFound, ObjectTooLarge, PreconditionFailed
from bastion.core.reconcile.effects import TellLogGap
from bastion.core.run_keys import RunKey
from bastion.ports import ObjectStore

_log = logging.getLogger(__name__)

# One page of a listing.
_PAGE = limits.LIST_PAGE_OBJECTS
_TRIES = 5
# No host gets this far, even after the highest number that it believes: others wrote it.
_BELIEVED = 2 * limits.SEQUENCE_NUMBER_BELIEVED_MAX


def tell(store: ObjectStore, effect: TellLogGap) -> None:
    """Write the gap line after the host's last segment, unless that ends with it.

    Raises StoreError if it is unknown whether it was written; call again.
    """
    text = missing(None, effect.reason)
    key = RunKey.from_text(effect.run_key)
    last = _last_number(store, effect)
    taken = 0
    for _ in range(_TRIES):
        at = effect.at
        if last:
            said = _Segment.at(store, keys.log_segment(effect.job, effect.run, effect.host, last), key.public)
            if said.proved and said.text.endswith(f" F {text}\n".encode()):
                return
            at = max(at, last_instant(said.text)) if said.proved else at
        there = keys.log_segment(effect.job, effect.run, effect.host, last + 1)
        try:
            store.put(there, segment_proofs.with_proof(there, gap_line(text, at=at), key), generation=0)
        except PreconditionFailed:
            # The host is alive, or an earlier write of ours landed. Others must not hold up the job's end.
            taken += not _Segment.at(store, there, key.public).proved
            last = segment_proofs.free_number(_numbers(store, effect, after=last), last) - 1
            continue
        return
    if taken:
        _log.warning("others take the numbers where the log of %s worker %d ends", effect.run, effect.host)
        return
    raise PreconditionFailed(
        f"the log of {effect.run} worker {effect.host} is still growing; checking again in the next tick"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Segment:
    text: bytes = b""
    proved: bool = False

    @classmethod
    def at(cls, store: ObjectStore, key: str, public: str) -> _Segment:
        try:
            data = store.get(key, max_bytes=limits.LOG_SEGMENT_READ_MAX_BYTES).data
        except (NotFound, ObjectTooLarge):
            return cls()
        text = segment_proofs.proved(key, data, public)
        return cls() if text is None else cls(text=text, proved=True)


def _numbers(store: ObjectStore, effect: TellLogGap, *, after: int) -> Iterator[int]:
    folder = keys.log_segments(effect.job, effect.run, effect.host)
    for meta in store.list(folder, start_after=keys.segment_in(folder, after)):
        number = keys.segment_number(meta.key.removeprefix(folder))
        if number is not None:
            yield number


def _last_number(store: ObjectStore, effect: TellLogGap) -> int:
    """Return the number of the last segment, 0 if there is none; few requests even for a million segments."""

    def after(number: int) -> list[int]:
        key = keys.log_segment(effect.job, effect.run, effect.host, number)
        found = islice(store.list(folder, start_after=key), _PAGE)
        numbers = (keys.segment_number(meta.key.removeprefix(folder)) for meta in found)
        return [each for each in numbers if each is not None and each < _BELIEVED]

    folder = keys.log_segments(effect.job, effect.run, effect.host)
    shown = after(0)
    if len(shown) < _PAGE:
        return shown[-1] if shown else 0
    low, step = shown[-1], _PAGE
    while found := after(low + step):
        low, step = found[-1], step * 2
    high = low + step
    while high - low > _PAGE:
        middle = (low + high) // 2
        found = after(middle)
        low, high = (found[-1], high) if found else (low, middle)
    remaining = after(low)
    return remaining[-1] if remaining else low
