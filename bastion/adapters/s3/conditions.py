"""The proof that a service applies the conditions on which the store stands.

A service that ignores one answers as if all were well: of two writers the last one would win. MinIO ignores `If-Match`
when it deletes, and moto 5.2 when a multipart upload completes.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

from bastion.adapters.bucket_requests.answers import ConditionNotMet, NoSuchObject, Transient
from bastion.adapters.bucket_requests.certain_writes import Found, Stamp
from bastion.adapters.bucket_requests.retry import Retries
from bastion.adapters.s3.api import BucketApi
from bastion.adapters.s3.errors import UnknownToService
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.errors import Refused, StoreError, StoreUnavailable

T = TypeVar("T")

_OTHER_ETAG = '"00000000000000000000000000000000"'


def prove(api: BucketApi, retries: Retries, scratch: str) -> None:
    """Try each condition on a new key under the prefix `scratch`: about twenty requests.

    Raises Refused with the names of those that the service ignores or does not know; StoreError otherwise.
    """
    try:
        ignored = _Proof(api, retries, f"{scratch}{secrets.token_hex(8)}").ignored()
    except Transient as failure:
        raise StoreUnavailable(
            f"the conditions of {api.shown(scratch)} could not be tried: {failure}; try again"
        ) from None
    if ignored:
        raise Refused(
            f"s3://{api.name} at {api.endpoint or 'Amazon S3'} ignores {' and '.join(ignored)}, so writers would "
            "overwrite each other's objects; a ROOT needs a service that applies it, such as Amazon S3 or SeaweedFS "
            "(inputs, outputs and checkpoints may stay there)"
        )


class _Proof:
    def __init__(self, api: BucketApi, retries: Retries, key: str) -> None:
        self._api = api
        self._retries = retries
        self._key = key

    def ignored(self) -> list[str]:
        if not self._tried(lambda: self._put("")):
            raise StoreError(f"{self._shown} cannot be created: the service says that it exists")
        other = Found(meta=ObjectMeta(key=self._key, size=0, generation=1, updated=0.0), etag=_OTHER_ETAG)
        ways: dict[str, Callable[[], object]] = {
            "If-None-Match on PutObject": lambda: self._put(""),
            "If-Match on PutObject": lambda: self._put(_OTHER_ETAG),
            "If-Match on CompleteMultipartUpload": lambda: self._api.grow(self._key, other, b"2", stamp=_stamp()),
            "If-Match on DeleteObject": lambda: self._api.delete(self._key, etag=_OTHER_ETAG),
        }
        ignored = []
        for name, way in ways.items():
            if self._tried(way):
                ignored.append(name)
                self._tried(lambda: self._put(""))  # the next one needs an object
        if ignored:
            self._remove()
        else:
            self._check_what_is_true()
        return ignored

    def _check_what_is_true(self) -> None:
        """Raise if the service refuses a condition that holds, or lists another generation than it tells."""
        present = self._present()
        etag = "" if present is None else present.etag
        if not self._tried(lambda: self._put(etag)):
            raise StoreError(f"{self._shown} cannot be written by its own ETag; a ROOT needs another service")
        present = self._present()
        listed = {meta.key: meta for meta in self._retry(lambda: self._api.page(self._key, "", "")).metas}
        if present is None or listed.get(self._key) != present.meta:
            raise StoreError(
                f"{self._shown} is not listed as it was written ({listed.get(self._key)}, not "
                f"{present and present.meta}): listings lag or tell other times; a ROOT needs another service"
            )
        self._remove()
        if self._present() is not None:
            raise StoreError(f"{self._shown} stays although its deletion was accepted; a ROOT needs another service")

    def _remove(self) -> None:
        present = self._present()
        if present is not None:
            self._tried(lambda: self._api.delete(self._key, etag=present.etag))

    @property
    def _shown(self) -> str:
        return self._api.shown(self._key)

    def _put(self, etag: str) -> object:
        return self._api.put(self._key, b"1", etag=etag, stamp=_stamp())

    def _present(self) -> Found | None:
        try:
            return self._retry(lambda: self._api.metadata(self._key))
        except NoSuchObject:
            return None

    def _tried(self, way: Callable[[], object]) -> bool:
        """Whether the condition let the request pass, or is unknown to the service."""
        try:
            self._retry(way)
        except (ConditionNotMet, NoSuchObject):
            return False
        except UnknownToService:
            pass
        return True

    def _retry(self, ask: Callable[[], T]) -> T:
        return self._retries.call(ask, until=self._retries.limit().ends)


def _stamp() -> Stamp:
    return Stamp(write_id=secrets.token_hex(12), follows=0)
