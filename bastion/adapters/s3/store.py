"""A bucket of S3 behind the `ObjectStore` port.

    get      1 request   GET, of all or of a range; 1 more if `start` is past the end
    head     1           HEAD
    list     1           for each page of 1000 objects, when it is reached
    put      2           PUT, and HEAD for its time; 1 more if this process neither read nor wrote that generation
    append   3           below 5 MiB: GET, PUT, HEAD; otherwise 5: an upload of a copied part and a new one, and HEAD
    delete   2           HEAD and DELETE

Invariant: every mutation has `If-Match` or `If-None-Match`; there are no blind writes. `certain_writes` finds out the
result of one without an answer.

What S3's conditions compare is the ETag, which most often is the bytes' MD5. So a write that names a generation also
succeeds if the object was replaced since and then became the same bytes again (ADR 50).
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from bastion.adapters.bucket_requests.answers import ConditionNotMet, NoSuchObject, PastTheEnd, Transient
from bastion.adapters.bucket_requests.certain_writes import CertainWrites, Found
from bastion.adapters.bucket_requests.retry import Patience, Retries, TimeLimit
from bastion.adapters.s3.api import BucketApi, Page, Seen
from bastion.adapters.s3.client import shared_client
from bastion.adapters.s3.conditions import prove
from bastion.adapters.system_clock import SystemClock
from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta, can_begin_key, check_key, check_size, check_start
from bastion.core.errors import NotFound, Refused, StoreError
from bastion.ports import Clock, StoredObject

# Below it an append writes the object anew: a part that is not the last has at least that size.
_LEAST_PART_BYTES = 5 * 1024 * 1024
# Objects whose ETags are in memory, about 1 kB each.
_KNOWN_MAX = 4096
_EXPRESS = "--x-s3"


class S3Store:
    """`bastion.ports.ObjectStore` on a bucket; thread-safe and process-safe.

    Generations do not increase: they differ (`generations`).

    Args:
        bucket: Its name, without `s3://`.
        client: Of boto3. Default: `shared_client()`, whose errors are raised.
        rng: For the pauses between tries.
        in_order: Whether the service lists in the order of the keys' bytes, as Amazon's does; another one's listing is
            read to its end and sorted (SeaweedFS lists folder by folder). Default: by the endpoint.

    Raises Refused for a bucket of S3 Express.
    """

    def __init__(
        self,
        bucket: str,
        *,
        client: Any = None,
        clock: Clock | None = None,
        rng: random.Random | None = None,
        patience: Patience | None = None,
        in_order: bool | None = None,
    ) -> None:
        if bucket.endswith(_EXPRESS):
            raise Refused(
                f"s3://{bucket} is a directory bucket (S3 Express); its listings have no order and its ETags are not "
                "of the bytes; use a general purpose bucket"
            )
        self._api = BucketApi(shared_client() if client is None else client, bucket)
        self._retries = Retries(clock or SystemClock(), rng or random.Random(), patience or Patience())
        self._writes = CertainWrites(self._api, self._retries)
        self._in_order = not self._api.endpoint if in_order is None else in_order
        self._known = _Known()

    def __repr__(self) -> str:
        return f"S3Store({self._api.name!r})"

    def prove_conditions(self, scratch: str) -> None:
        """Try the service's conditions on a key under the prefix `scratch`; raises Refused if it ignores one."""
        prove(self._api, self._retries, scratch)

    def keeps_versions(self) -> bool:
        """Whether versioning is on; False if this identity may not know."""
        return self._api.keeps_versions()

    def get(self, key: str, *, start: int = 0, max_bytes: int = limits.READ_MAX_BYTES) -> StoredObject:
        return self._read(key, start, None, max_bytes)

    def get_range(self, key: str, *, start: int, size: int) -> StoredObject:
        check_size(size)
        return self._read(key, start, size, size)

    def _read(self, key: str, start: int, size: int | None, max_bytes: int) -> StoredObject:
        check_key(key)
        check_start(start)
        limit = self._retries.limit()

        def read() -> Seen:
            try:
                return self._api.media(key, start, max_bytes, limit, size=size)
            except PastTheEnd:
                found = self._api.metadata(key)
                if found.meta.size > start:
                    raise Transient("it grew meanwhile", doubtful=False) from None
                return Seen(found=found, data=b"")

        try:
            seen = self._writes.answered(read, limit, f"{self._api.shown(key)} could not be read")
        except NoSuchObject:
            raise NotFound(f"there is no object {self._api.shown(key)}") from None
        self._known.keep(seen.found)
        return StoredObject(meta=seen.found.meta, data=seen.data)

    def head(self, key: str) -> ObjectMeta | None:
        check_key(key)
        found = self._writes.look_up(key, self._retries.limit())
        return None if found is None else found.meta

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        if not can_begin_key(prefix):
            return
        # S3 may hold names that no call here accepts.
        metas = (meta for meta in self._metas(prefix, start_after, end_before) if "\0" not in meta.key)
        if self._in_order:
            yield from metas
        else:
            yield from sorted(metas, key=lambda meta: meta.key)

    def put(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        check_key(key)
        limit = self._retries.limit(sent_bytes=len(data), asks_after=True)
        etag = self._expected(key, generation, limit).etag if generation else ""
        return self._replace(key, data, generation, etag, limit)

    def append(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        check_key(key)
        if generation == 0:
            return self.put(key, data, generation=0)
        old = self._expected(key, generation, self._retries.limit())
        if old.meta.size < _LEAST_PART_BYTES:
            whole = self._bytes(old) + data
            limit = self._retries.limit(sent_bytes=len(whole), asks_after=True)
            return self._replace(key, whole, generation, old.etag, limit)
        written = self._writes.write(
            key,
            generation,
            lambda stamp, _limit: self._api.grow(key, old, data, stamp=stamp),
            limit=self._retries.limit(sent_bytes=len(data), asks_after=True),
        )
        self._known.keep(written)
        return written.meta

    def delete(self, key: str, *, generation: int) -> None:
        check_key(key)
        limit = self._retries.limit(asks_after=True)
        # A deletion of what was written again with the same bytes would succeed, so look first.
        found = self._writes.look_up(key, limit)
        if found is None:
            return
        if found.meta.generation != generation:
            raise self._writes.refusal(key, found.meta.generation, generation)
        etag = found.etag
        self._writes.delete(key, generation, lambda: self._api.delete(key, etag=etag), limit=limit)

    def _replace(self, key: str, data: bytes, generation: int, etag: str, limit: TimeLimit) -> ObjectMeta:
        written = self._writes.write(
            key,
            generation,
            lambda stamp, _limit: self._api.put(key, data, etag=etag, stamp=stamp),
            limit=limit,
        )
        self._known.keep(written)
        return written.meta

    def _expected(self, key: str, generation: int, limit: TimeLimit) -> Found:
        """The object of that generation, with its ETag; raises PreconditionFailed if it is another one."""
        found = self._known.get(key)
        if found is None or found.meta.generation != generation:
            found = self._writes.look_up(key, limit)
        if found is None or found.meta.generation != generation:
            raise self._writes.refusal(key, 0 if found is None else found.meta.generation, generation)
        return found

    def _bytes(self, old: Found) -> bytes:
        """The bytes of an object that a write is to follow."""
        key, limit = old.meta.key, self._retries.limit()
        try:
            return self._writes.answered(
                lambda: self._api.media(key, 0, _LEAST_PART_BYTES, limit, etag=old.etag).data,
                limit,
                f"{self._api.shown(key)} could not be read",
            )
        except (ConditionNotMet, NoSuchObject):
            raise self._writes.refusal(key, None, old.meta.generation) from None

    def _metas(self, prefix: str, start_after: str, end_before: str) -> Iterator[ObjectMeta]:
        """What is listed, in the service's order."""
        last = ""
        for page in self._pages(prefix, start_after if self._in_order else ""):
            for meta in page.metas:
                if self._in_order:
                    if meta.key <= last:
                        raise StoreError(f"{self._api.shown(prefix)}* is not listed in the order of keys; report this")
                    last = meta.key
                    if end_before and meta.key >= end_before:
                        return
                if meta.key > start_after and not (end_before and meta.key >= end_before):
                    yield meta

    def _pages(self, prefix: str, start_after: str) -> Iterator[Page]:
        token = ""
        while True:
            limit = self._retries.limit()
            page = self._writes.listed(
                lambda token=token: self._api.page(prefix, start_after, token),  # type: ignore[misc]
                limit,
                f"{self._api.shown(prefix)}* could not be listed",
            )
            yield page
            token = page.next_token
            if not token:
                return


class _Known:
    """The ETags of the objects last read and written; thread-safe."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Found] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, found: Found) -> None:
        with self._lock:
            self._found[found.meta.key] = found
            self._found.move_to_end(found.meta.key)
            if len(self._found) > _KNOWN_MAX:
                self._found.popitem(last=False)

    def get(self, key: str) -> Found | None:
        with self._lock:
            return self._found.get(key)
