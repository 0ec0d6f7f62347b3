"""A bucket of Google Cloud Storage behind the `ObjectStore` port.

    get      1 request   media; 1 more if `start` is past the end, or the answer has no Last-Modified
    head     1           metadata
    list     1           for each page of 1000 objects, when it is reached
    put      1           multipart upload; beyond 8 MiB a session: 1, and 1 for each 16 MiB
    append   3           upload of a part, compose, deletion of the part; for a new object 1, a put
    delete   1           2 if another generation is in the way

Invariants:

* Every mutation has `ifGenerationMatch`; there are no blind writes.
* All tries of one write share a random id in the object's metadata. The result of a write without an answer is found by
  reading that back, and from the generation that the current writer replaced.
"""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import Callable, Iterator
from typing import TypeVar

from google.cloud.storage import Client

from bastion.adapters.gcs.api import BucketApi, Found, Page, Stamp, content_type
from bastion.adapters.gcs.client import shared_client
from bastion.adapters.gcs.errors import ConditionNotMet, NoSuchObject, PastTheEnd, Transient
from bastion.adapters.gcs.pacing import WritePacer
from bastion.adapters.gcs.retry import Patience, Retries, TimeLimit
from bastion.adapters.system_clock import SystemClock
from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta, can_begin_key, check_key
from bastion.core.errors import NotFound, PreconditionFailed, StoreError, StoreUnavailable
from bastion.ports import Clock, StoredObject

T = TypeVar("T")


class GcsStore:
    """`bastion.ports.ObjectStore` on a bucket; thread-safe and process-safe.

    Args:
        bucket: Its name, without `gs://`.
        client: Default: `shared_client()`, whose errors are raised.
        rng: For the pauses between tries.
        parts_prefix: Keys with this prefix belong to the store: an append uploads its bytes there, composes and
            deletes. After a crash a lifecycle rule on this prefix removes them. Only listings of the prefix itself show
            them.
        write_interval_seconds: Minimum interval between writes of one key; the service takes about one a second. A
            write that would wait too long fails with `StoreUnavailable`.
    """

    def __init__(
        self,
        bucket: str,
        *,
        client: Client | None = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        parts_prefix: str = "bastion-parts/",
        write_interval_seconds: float = 1.0,
        patience: Patience | None = None,
    ) -> None:
        check_key(parts_prefix)
        self._api = BucketApi(shared_client() if client is None else client, bucket)
        self._parts_prefix = parts_prefix
        clock = clock or SystemClock()
        self._retries = Retries(clock, rng or random.Random(), patience or Patience())
        self._pacer = WritePacer(clock, write_interval_seconds)

    def __repr__(self) -> str:
        return f"GcsStore({self._api.name!r})"

    def get(self, key: str, *, start: int = 0, max_bytes: int = limits.READ_MAX_BYTES) -> StoredObject:
        check_key(key)
        if start < 0:
            raise ValueError(f"start is {start}; it counts from the beginning of the object")
        limit = self._retries.limit()

        def read() -> StoredObject:
            try:
                return self._api.media(key, start, max_bytes, limit)
            except PastTheEnd:
                meta = self._api.metadata(key, limit).meta
                if meta.size > start:
                    raise Transient("it grew meanwhile", doubtful=False) from None
                return StoredObject(meta=meta, data=b"")

        try:
            return self._answered(read, limit, f"{self._api.shown(key)} could not be read")
        except NoSuchObject:
            raise NotFound(f"there is no object {self._api.shown(key)}") from None

    def head(self, key: str) -> ObjectMeta | None:
        check_key(key)
        found = self._look_up(key, self._retries.limit())
        return None if found is None else found.meta

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        if not can_begin_key(prefix):
            return
        hidden = None if prefix.startswith(self._parts_prefix) else self._parts_prefix
        for page in self._pages(prefix, start_after, end_before):
            for meta in page.metas:
                # The service includes `start_after`. It may also hold names with a NUL, which no call here accepts.
                if meta.key != start_after and "\0" not in meta.key and not (hidden and meta.key.startswith(hidden)):
                    yield meta

    def put(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        check_key(key)
        return self._write(
            key,
            generation,
            lambda stamp, limit: self._api.insert(key, data, stamp=stamp, limit=limit),
            limit=self._retries.limit(sent_bytes=len(data), asks_after=True),
        )

    def append(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        check_key(key)
        if generation == 0:
            return self.put(key, data, generation=0)
        part_key = f"{self._parts_prefix}{secrets.token_hex(16)}"
        part = self._write(
            part_key,
            0,
            lambda stamp, limit: self._api.insert(part_key, data, stamp=stamp, limit=limit),
            limit=self._retries.limit(sent_bytes=len(data), asks_after=True),
        )
        try:
            return self._write(
                key,
                generation,
                lambda stamp, limit: self._api.compose(key, part, content_type(data), stamp=stamp, limit=limit),
                limit=self._retries.limit(asks_after=True),
            )
        finally:
            # Once only; a lifecycle rule removes what is left.
            with contextlib.suppress(Transient, StoreError, NoSuchObject, ConditionNotMet):
                self._api.delete(part_key, generation=part.generation, limit=self._retries.limit(most_seconds=5))

    def delete(self, key: str, *, generation: int) -> None:
        check_key(key)
        limit = self._retries.limit(asks_after=True)
        doubtful = False
        last: Transient | None = None

        def remove() -> None:
            nonlocal doubtful, last
            self._wait_for_slot(key, limit, last)
            try:
                self._api.delete(key, generation=generation, limit=limit)
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
            found = self._look_up(key, limit)
            if found is not None:
                raise self._refusal(key, found.meta.generation, generation) from None
        except Transient as failure:
            unavailable = StoreUnavailable(f"{problem}: {failure}; try again")
            if not doubtful:
                raise unavailable from failure
            found = self._look_up(key, limit)
            if found is not None and found.meta.generation == generation:
                raise unavailable from failure
            if found is not None:
                raise self._refusal(key, found.meta.generation, generation) from failure

    def _write(
        self, key: str, generation: int, send: Callable[[Stamp, TimeLimit], ObjectMeta], *, limit: TimeLimit
    ) -> ObjectMeta:
        """Complete a write, or find out its result."""
        stamp = Stamp(write_id=secrets.token_hex(12), follows=generation)
        doubtful = False
        last: Transient | None = None

        def attempt() -> ObjectMeta:
            nonlocal doubtful, last
            self._wait_for_slot(key, limit, last)
            try:
                return send(stamp, limit)
            except Transient as failure:
                doubtful, last = doubtful or failure.doubtful, failure
                raise

        try:
            return self._retries.call(attempt, until=limit.tries_end)
        except ConditionNotMet as refused:
            if not doubtful:
                raise self._refusal(key, None, generation) from None
            return self._outcome(key, stamp, limit, f"the last try was refused ({refused})")
        except NoSuchObject as missing:
            # A compose misses the object or its part.
            cause = f"the object or its new part is missing ({missing})"
            if doubtful:
                return self._outcome(key, stamp, limit, cause)
            found = self._look_up(key, limit)
            present = 0 if found is None else found.meta.generation
            if present != generation:
                raise self._refusal(key, present, generation) from None
            raise StoreUnavailable(f"{self._api.shown(key)} was not written: {cause}; try again") from None
        except Transient as failure:
            if not doubtful:
                raise StoreUnavailable(f"{self._api.shown(key)} was not written: {failure}; try again") from failure
            return self._outcome(key, stamp, limit, str(failure))

    def _outcome(self, key: str, stamp: Stamp, limit: TimeLimit, cause: str) -> ObjectMeta:
        """Find out the result of a write without an answer.

        Raises PreconditionFailed if another write replaced that generation; StoreUnavailable if it has not taken effect
        so far, or the result is unknown.
        """
        shown = self._api.shown(key)
        found = self._look_up(key, limit)
        if found is not None and found.stamp is not None:
            if found.stamp.write_id == stamp.write_id:
                return found.meta
            # Only one write can replace a generation. (Several can create an object that is deleted in between.)
            if stamp.follows and found.stamp.follows == stamp.follows:
                raise self._refusal(key, found.meta.generation, stamp.follows)
        present = 0 if found is None else found.meta.generation
        if present == stamp.follows:
            raise StoreUnavailable(f"{shown} has not been written so far: {cause}; read it again, then try again")
        raise StoreUnavailable(
            f"{shown} has generation {present} now (0: it does not exist), not that of this write; it is unknown "
            f"whether this write came before: {cause}; read it again"
        )

    def _look_up(self, key: str, limit: TimeLimit) -> Found | None:
        try:
            return self._answered(
                lambda: self._api.metadata(key, limit), limit, f"{self._api.shown(key)} could not be looked up"
            )
        except NoSuchObject:
            return None

    def _pages(self, prefix: str, start_after: str, end_before: str) -> Iterator[Page]:
        token = ""
        while True:
            limit = self._retries.limit()
            page = self._answered(
                lambda token=token, limit=limit: self._api.page(prefix, start_after, end_before, token, limit),  # type: ignore[misc]
                limit,
                f"{self._api.shown(prefix)}* could not be listed",
            )
            yield page
            token = page.next_token
            if not token:
                return

    def _answered(self, ask: Callable[[], T], limit: TimeLimit, problem: str) -> T:
        """Ask an idempotent question, with retries."""
        try:
            return self._retries.call(ask, until=limit.ends)
        except Transient as failure:
            raise StoreUnavailable(f"{problem}: {failure}; try again") from failure

    def _wait_for_slot(self, key: str, limit: TimeLimit, last: Transient | None) -> None:
        """Wait until the key may be written; if that is too late, raise with `last` as the reason."""
        if not self._pacer.wait(key, until=limit.tries_end):
            if last is not None:
                raise last
            raise StoreUnavailable(
                f"too many writes of {self._api.shown(key)} are waiting, because the service takes one a second; "
                "write it less often"
            )

    def _refusal(self, key: str, present: int | None, expected: int) -> PreconditionFailed:
        now = "another generation" if present is None else f"generation {present}"
        return PreconditionFailed(
            f"{self._api.shown(key)} has {now}, not {expected} (0: it does not exist); read it again"
        )
