"""Writes and deletions whose result is found out when no answer came.

All tries of one write share a random id in the object's metadata. The result of a write without an answer is found by
reading that back, and from the generation that the current writer replaced.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from bastion.adapters.bucket_requests.answers import ConditionNotMet, NoSuchObject, PastTheEnd, Transient
from bastion.adapters.bucket_requests.retry import Retries, TimeLimit
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.errors import PreconditionFailed, StoreUnavailable

T = TypeVar("T")

# Custom metadata of everything we write.
WRITE_ID = "bastion-write"
FOLLOWS = "bastion-follows"
_NUMBER = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """A write's mark in its object's metadata, by which its writer recognizes it."""

    write_id: str  # the same in all tries of one write; unique otherwise
    follows: int  # the generation that it replaces; 0 if it creates the object

    def metadata(self) -> dict[str, str]:
        return {WRITE_ID: self.write_id, FOLLOWS: str(self.follows)}

    @staticmethod
    def of(metadata: Mapping[str, str]) -> Stamp | None:
        """The stamp in an object's custom metadata; None if the object is not ours."""
        # Others may have written it: `int` refuses thousands of digits.
        if WRITE_ID not in metadata or not _NUMBER.fullmatch(str(metadata.get(FOLLOWS, ""))):
            return None
        return Stamp(write_id=metadata[WRITE_ID], follows=int(metadata[FOLLOWS]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An object's metadata and the stamp of its write; None if it is not ours. `etag`: as the service quotes it."""

    meta: ObjectMeta
    stamp: Stamp | None = None
    etag: str = ""


class LookUp(Protocol):
    """The requests that finding out a result needs."""

    def metadata(self, key: str, limit: TimeLimit, /) -> Found:
        """Raises NoSuchObject, Transient."""
        ...

    def shown(self, key: str) -> str:
        """A key for messages."""
        ...


def _at_once(key: str, limit: TimeLimit, last: Transient | None) -> None:
    """No wait before a write."""


class CertainWrites:
    """Completes the writes of one bucket, or finds out their results; thread-safe.

    Args:
        before: Called before each try, with the reason of the try before; may wait, or raise to end the tries.
    """

    def __init__(
        self,
        api: LookUp,
        retries: Retries,
        *,
        before: Callable[[str, TimeLimit, Transient | None], None] = _at_once,
    ) -> None:
        self._api = api
        self._retries = retries
        self._before = before

    def write(self, key: str, generation: int, send: Callable[[Stamp, TimeLimit], Found], *, limit: TimeLimit) -> Found:
        """Complete a write, or find out its result."""
        stamp = Stamp(write_id=secrets.token_hex(12), follows=generation)
        doubtful = False
        last: Transient | None = None

        def attempt() -> Found:
            nonlocal doubtful, last
            self._before(key, limit, last)
            try:
                return send(stamp, limit)
            except PastTheEnd as failure:
                raise StoreUnavailable(f"{self._api.shown(key)} was not written: {failure}; try again") from failure
            except Transient as failure:
                doubtful, last = doubtful or failure.doubtful, failure
                raise

        try:
            return self._retries.call(attempt, until=limit.tries_end)
        except ConditionNotMet as refused:
            if not doubtful:
                raise self.refusal(key, None, generation) from None
            return self._outcome(key, stamp, limit, f"the last try was refused ({refused})")
        except NoSuchObject as missing:
            # What the write is composed of is missing.
            cause = f"the object or its new part is missing ({missing})"
            if doubtful:
                return self._outcome(key, stamp, limit, cause)
            found = self.look_up(key, limit)
            present = 0 if found is None else found.meta.generation
            if present != generation:
                raise self.refusal(key, present, generation) from None
            raise StoreUnavailable(f"{self._api.shown(key)} was not written: {cause}; try again") from None
        except Transient as failure:
            if not doubtful:
                raise StoreUnavailable(f"{self._api.shown(key)} was not written: {failure}; try again") from failure
            return self._outcome(key, stamp, limit, str(failure))

    def delete(self, key: str, generation: int, send: Callable[[], None], *, limit: TimeLimit) -> None:
        """Complete a conditional deletion, or find out its result."""
        doubtful = False
        last: Transient | None = None

        def remove() -> None:
            nonlocal doubtful, last
            self._before(key, limit, last)
            try:
                send()
            except Transient as failure:
                doubtful, last = doubtful or failure.doubtful, failure
                raise

        problem = f"{self._api.shown(key)} could not be deleted"
        try:
            self._retries.call(remove, until=limit.tries_end)
        except NoSuchObject:
            pass
        except ConditionNotMet:
            # The condition also fails without an object.
            found = self.look_up(key, limit)
            if found is not None:
                raise self.refusal(key, found.meta.generation, generation) from None
        except Transient as failure:
            unavailable = StoreUnavailable(f"{problem}: {failure}; try again")
            if not doubtful:
                raise unavailable from failure
            found = self.look_up(key, limit)
            if found is not None and found.meta.generation == generation:
                raise unavailable from failure
            if found is not None:
                raise self.refusal(key, found.meta.generation, generation) from failure

    def look_up(self, key: str, limit: TimeLimit) -> Found | None:
        try:
            return self.answered(
                lambda: self._api.metadata(key, limit), limit, f"{self._api.shown(key)} could not be looked up"
            )
        except NoSuchObject:
            return None

    def answered(self, ask: Callable[[], T], limit: TimeLimit, problem: str) -> T:
        """Ask an idempotent question without a condition, with retries. Raises NoSuchObject, too."""
        try:
            return self._retries.call(ask, until=limit.ends)
        except (Transient, ConditionNotMet, PastTheEnd) as failure:
            raise StoreUnavailable(f"{problem}: {failure}; try again") from failure

    def listed(self, ask: Callable[[], T], limit: TimeLimit, problem: str) -> T:
        """Ask for a page of a listing, which is there even if no object is."""
        try:
            return self.answered(ask, limit, problem)
        except NoSuchObject as failure:
            raise StoreUnavailable(f"{problem}: {failure}; try again") from failure

    def refusal(self, key: str, present: int | None, expected: int) -> PreconditionFailed:
        """The error for a generation in the way; None: it is unknown which."""
        now = "another generation" if present is None else f"generation {present}"
        return PreconditionFailed(
            f"{self._api.shown(key)} has {now}, not {expected} (0: it does not exist); read it again"
        )

    def _outcome(self, key: str, stamp: Stamp, limit: TimeLimit, cause: str) -> Found:
        """Find out the result of a write without an answer.

        Raises PreconditionFailed if another write replaced that generation; StoreUnavailable if it has not taken effect
        so far, or the result is unknown.
        """
        shown = self._api.shown(key)
        found = self.look_up(key, limit)
        if found is not None and found.stamp is not None:
            if found.stamp.write_id == stamp.write_id:
                return found
            # Only one write can replace a generation. (Several can create an object that is deleted in between.)
            if stamp.follows and found.stamp.follows == stamp.follows:
                raise self.refusal(key, found.meta.generation, stamp.follows)
        present = 0 if found is None else found.meta.generation
        if present == stamp.follows:
            raise StoreUnavailable(f"{shown} has not been written so far: {cause}; read it again, then try again")
        raise StoreUnavailable(
            f"{shown} has generation {present} now (0: it does not exist), not that of this write; it is unknown "
            f"whether this write came before: {cause}; read it again"
        )
