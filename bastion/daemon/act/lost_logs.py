"""Gap lines for hosts that died, in a segment of the daemon's own; a host that returns uses the next number."""

from __future__ import annotations

from itertools import islice

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.bucket.gap_lines import gap_line, last_instant, missing
from bastion.core.errors import NotFound, PreconditionFailed
from bastion.core.reconcile.effects import TellLogGap
from bastion.ports import ObjectStore

# One page of a listing.
_PAGE = limits.LIST_PAGE_OBJECTS
# Enough of the last segment for its last line.
_TAIL_BYTES = 2 * limits.LOG_LINE_MAX_BYTES
_TRIES = 5
# No host gets this far, even after the highest number that it believes: others wrote it.
_BELIEVED = 2 * limits.SEQUENCE_NUMBER_BELIEVED_MAX


def tell(store: ObjectStore, effect: TellLogGap) -> None:
    """Write the gap line after the host's last segment, unless that ends with it.

    Raises StoreError if it is unknown whether it was written; call again.
    """
    text = missing(None, effect.reason)
    for _ in range(_TRIES):
        last = _last_number(store, effect)
        at = effect.at
        if last:
            tail = _tail(store, keys.log_segment(effect.job, effect.run, effect.host, last))
            if tail.endswith(f" F {text}\n".encode()):
                return
            at = max(at, last_instant(tail))
        try:
            store.put(
                keys.log_segment(effect.job, effect.run, effect.host, last + 1), gap_line(text, at=at), generation=0
            )
        except PreconditionFailed:
            continue  # the host is alive, or an earlier write of ours landed
        return
    raise PreconditionFailed(
        f"the log of {effect.run} worker {effect.host} is still growing; checking again in the next tick"
    )


def _tail(store: ObjectStore, key: str) -> bytes:
    meta = store.head(key)
    if meta is None:
        return b""
    try:
        return store.get(key, start=max(0, meta.size - _TAIL_BYTES)).data
    except NotFound:
        return b""


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
