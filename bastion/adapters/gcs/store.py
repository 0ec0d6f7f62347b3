"""A bucket of Google Cloud Storage behind the `ObjectStore` port.

    get      1 request   media, all or a range; 1 more if `start` is past the end, or the answer has no Last-Modified
    head     1           metadata
    list     1           for each page of 1000 objects, when it is reached
    put      1           multipart upload; beyond 8 MiB a session: 1, and 1 for each 16 MiB
    append   3           upload of a part, compose, deletion of the part; for a new object 1, a put
    delete   1           2 if another generation is in the way

Invariant:

* Every mutation has `ifGenerationMatch`; there are no blind writes. `certain_writes` finds out the result of one
  without an answer.
"""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import Iterator
from typing import TypeVar

from google.cloud.storage import Client

from bastion.adapters.bucket_requests.answers import ConditionNotMet, NoSuchObject, PastTheEnd, Transient
from bastion.adapters.bucket_requests.certain_writes import CertainWrites, Found
from bastion.adapters.bucket_requests.content_type import content_type
from bastion.adapters.bucket_requests.retry import Patience, Retries, TimeLimit
from bastion.adapters.gcs.api import BucketApi, Page
from bastion.adapters.gcs.client import shared_client
from bastion.adapters.gcs.pacing import WritePacer
from bastion.adapters.system_clock import SystemClock
from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta, can_begin_key, check_key, check_size, check_start
from bastion.core.errors import NotFound, StoreError, StoreUnavailable
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
        self._writes = CertainWrites(self._api, self._retries, before=self._wait_for_slot)

    def __repr__(self) -> str:
        return f"GcsStore({self._api.name!r})"

    def get(self, key: str, *, start: int = 0, max_bytes: int = limits.READ_MAX_BYTES) -> StoredObject:
        return self._read(key, start, None, max_bytes)

    def get_range(self, key: str, *, start: int, size: int) -> StoredObject:
        check_size(size)
        return self._read(key, start, size, size)

    def _read(self, key: str, start: int, size: int | None, max_bytes: int) -> StoredObject:
        check_key(key)
        check_start(start)
        limit = self._retries.limit()

        def read() -> StoredObject:
            try:
                return self._api.media(key, start, size, max_bytes, limit)
            except PastTheEnd:
                meta = self._api.metadata(key, limit).meta
                if meta.size > start:
                    raise Transient("it grew meanwhile", doubtful=False) from None
                return StoredObject(meta=meta, data=b"")

        try:
            return self._writes.answered(read, limit, f"{self._api.shown(key)} could not be read")
        except NoSuchObject:
            raise NotFound(f"there is no object {self._api.shown(key)}") from None

    def head(self, key: str) -> ObjectMeta | None:
        check_key(key)
        found = self._writes.look_up(key, self._retries.limit())
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
        return self._writes.write(
            key,
            generation,
            lambda stamp, limit: Found(meta=self._api.insert(key, data, stamp=stamp, limit=limit)),
            limit=self._retries.limit(sent_bytes=len(data), asks_after=True),
        ).meta

    def append(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        check_key(key)
        if generation == 0:
            return self.put(key, data, generation=0)
        part_key = f"{self._parts_prefix}{secrets.token_hex(16)}"
        part = self._writes.write(
            part_key,
            0,
            lambda stamp, limit: Found(meta=self._api.insert(part_key, data, stamp=stamp, limit=limit)),
            limit=self._retries.limit(sent_bytes=len(data), asks_after=True),
        ).meta
        try:
            return self._writes.write(
                key,
                generation,
                lambda stamp, limit: Found(
                    meta=self._api.compose(key, part, content_type(data), stamp=stamp, limit=limit)
                ),
                limit=self._retries.limit(asks_after=True),
            ).meta
        finally:
            # Once only; a lifecycle rule removes what is left.
            with contextlib.suppress(Transient, StoreError, NoSuchObject, ConditionNotMet):
                self._api.delete(part_key, generation=part.generation, limit=self._retries.limit(most_seconds=5))

    def delete(self, key: str, *, generation: int) -> None:
        check_key(key)
        limit = self._retries.limit(asks_after=True)
        self._writes.delete(
            key, generation, lambda: self._api.delete(key, generation=generation, limit=limit), limit=limit
        )

    def _pages(self, prefix: str, start_after: str, end_before: str) -> Iterator[Page]:
        token = ""
        while True:
            limit = self._retries.limit()
            page = self._writes.listed(
                lambda token=token, limit=limit: self._api.page(prefix, start_after, end_before, token, limit),  # type: ignore[misc]
                limit,
                f"{self._api.shown(prefix)}* could not be listed",
            )
            yield page
            token = page.next_token
            if not token:
                return

    def _wait_for_slot(self, key: str, limit: TimeLimit, last: Transient | None) -> None:
        """Wait until the key may be written; if that is too late, raise with `last` as the reason."""
        if not self._pacer.wait(key, until=limit.tries_end):
            if last is not None:
                raise last
            raise StoreUnavailable(
                f"too many writes of {self._api.shown(key)} are waiting, because the service takes one a second; "
                "write it less often"
            )
