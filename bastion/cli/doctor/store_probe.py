"""Try whether a store keeps the conditions of writes, and compare its clock with this machine's."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from bastion.cli.doctor.finding import Report
from bastion.core.bucket import keys
from bastion.core.errors import PreconditionFailed
from bastion.core.instants import duration
from bastion.ports import Clock, ObjectStore

# Tokens of the cloud are refused at five minutes.
_SKEW_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class _Written:
    generation: int
    skew: float  # of this machine's clock against the bucket's, less what the request took


def probe(report: Report, store: ObjectStore, clock: Clock, *, name: str, conditions: bool = True) -> float:
    """Make, replace and delete one object. Return the skew of this machine's clock in seconds.

    `conditions`: whether to try them; the adapter of S3 has a closer look.

    Raises StoreError; AccessDenied if the caller may not write there.
    """
    key = f"{keys.DOCTOR}{name}"
    written = _create(store, clock, key)
    generation = written.generation
    ignored = []
    try:
        other = generation + 1
        tried: dict[str, Callable[[], object]] = {
            "creating an object that exists": lambda: store.put(key, b"2", generation=0),
            "replacing another generation": lambda: store.put(key, b"3", generation=other),
            "deleting another generation": lambda: store.delete(key, generation=other),
        }
        for what, call in tried.items():
            if conditions and not _refused(call):
                ignored.append(what)
        with contextlib.suppress(PreconditionFailed):
            if not ignored:
                generation = store.put(key, b"4", generation=generation).generation
    finally:
        found = store.head(key)
        if found is not None:
            store.delete(key, generation=found.generation)
    if not ignored and (found is None or found.generation != generation):
        ignored.append("an object is not as it was written")
    if ignored:
        report.error(
            f"the store does not refuse {', '.join(ignored)}",
            why="every write of the bastion names the object that it replaces; without that, two daemons or users "
            "overwrite each other's objects",
            remedy="use another place for the ROOT: Cloud Storage, Amazon S3, SeaweedFS or a local disk",
        )
    if abs(written.skew) > _SKEW_SECONDS:
        side = "ahead of" if written.skew > 0 else "behind"
        report.warning(
            f"the clock of this machine is {duration(abs(written.skew))} {side} the bucket's",
            why="ages and times that commands show here are wrong by that, and tokens are refused at five minutes",
            remedy="turn on time synchronization here (timedatectl set-ntp true)",
        )
    return written.skew


def _create(store: ObjectStore, clock: Clock, key: str) -> _Written:
    before = clock.now()
    meta = store.put(key, b"1", generation=0)
    after = clock.now()
    late, early = before - meta.updated, after - meta.updated
    # Within the request's time there is no skew to see.
    skew = late if late > 0 else early if early < 0 else 0.0
    return _Written(meta.generation, skew)


def _refused(call: Callable[[], object]) -> bool:
    try:
        call()
    except PreconditionFailed:
        return True
    return False
