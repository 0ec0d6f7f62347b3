"""Pin an input once per attempt: host 0 lists it and stores the listing, the others wait for that.

Thousands of hosts that list a million objects each would be a million requests, and would not see the same. The listing
stays in the bucket: it says what an attempt read.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Iterator

from bastion.agent.download import Cancelled
from bastion.agent.inputs import listing
from bastion.agent.inputs.problems import InputProblem, Patience
from bastion.core import limits
from bastion.core.bucket import host_errors, pinned
from bastion.core.bucket.pinned import Listing, PinnedObject
from bastion.core.errors import InvalidDocument, NotFound, PreconditionFailed
from bastion.ports import ObjectStore


class PinnedInput:
    """One input of an attempt. `listing`, then the parts, once it is pinned."""

    def __init__(self, store: ObjectStore, folder: str, listing: Listing, patience: Patience) -> None:
        """`folder`: a `keys.pinned_input` of `store`, the bastion's own."""
        self._store = store
        self._folder = folder
        self._patience = patience
        self.listing = listing

    def objects(self) -> Iterator[PinnedObject]:
        """Yield all objects; one part is in memory.

        Raises Cancelled; InputProblem if they are not those of the listing.
        """
        objects = size = 0
        for number in range(self.listing.parts):
            found = self._patience.in_own(functools.partial(self._part, self._folder + pinned.part_name(number)))
            objects, size = objects + len(found), size + sum(each.size for each in found)
            yield from found
        if (objects, size) != (self.listing.objects, self.listing.size):
            raise InputProblem(
                host_errors.HOST_FAILED,
                f"{self._folder} was edited: its parts have {objects} objects of {size} bytes, and its listing says "
                f"{self.listing.objects} of {self.listing.size}",
            )

    def _part(self, key: str) -> list[PinnedObject]:
        try:
            return pinned.unpack(self._store.get(key, max_bytes=limits.INPUT_PART_MAX_BYTES).data)
        except (NotFound, InvalidDocument) as error:
            raise InputProblem(host_errors.HOST_FAILED, f"{key}: {error}") from error


def read(store: ObjectStore, folder: str) -> Listing | None:
    """Return the listing that is there; None before. Raises StoreError; InputProblem if it is damaged."""
    key = folder + pinned.LISTING
    try:
        return pinned.read_listing(store.get(key, max_bytes=limits.REPORT_MAX_BYTES).data)
    except NotFound:
        return None
    except InvalidDocument as error:
        raise InputProblem(host_errors.HOST_FAILED, f"{key}: {error}") from error


def pin(store: ObjectStore, folder: str, source: ObjectStore, url: str, key: str, *, patience: Patience) -> Listing:
    """Return the listing that is there; otherwise list `key` in `source` and store it.

    May be repeated. Raises Cancelled, InputProblem; StoreError of `source`.
    """
    found = patience.in_own(functools.partial(read, store, folder))
    if found is not None:
        return found
    prefix, only = listing.prefix_of(source, url, key)
    rows = listing.objects(source, url, prefix, only)
    total = Listing(url=url, prefix=prefix, objects=0, size=0, disk_size=0, parts=0)
    while part := list(itertools.islice(rows, limits.INPUT_PART_OBJECTS)):
        packed = folder + pinned.part_name(total.parts), pinned.pack(part)
        patience.in_own(functools.partial(_replace, store, *packed))
        total = Listing(
            url=url,
            prefix=prefix,
            objects=total.objects + len(part),
            size=total.size + sum(each.size for each in part),
            disk_size=total.disk_size + sum(each.disk_bytes for each in part),
            parts=total.parts + 1,
        )
    return patience.in_own(functools.partial(_stored, store, folder, total))


def _stored(store: ObjectStore, folder: str, listing: Listing) -> Listing:
    try:
        store.put(folder + pinned.LISTING, listing.to_bytes(), generation=0)
    except PreconditionFailed:  # an earlier agent of this host
        return read(store, folder) or listing
    return listing


def _replace(store: ObjectStore, key: str, data: bytes) -> None:
    """Write a part, also over that of an agent that died before it wrote the listing."""
    try:
        store.put(key, data, generation=0)
    except PreconditionFailed:
        present = store.head(key)
        store.put(key, data, generation=present.generation if present is not None else 0)


def wait_for(
    store: ObjectStore, folder: str, *, patience: Patience, cancelled: threading.Event, poll_seconds: float
) -> Listing:
    """Wait until host 0 has pinned it. Raises Cancelled."""
    while not cancelled.is_set():
        found = patience.in_own(functools.partial(read, store, folder))
        if found is not None:
            return found
        cancelled.wait(poll_seconds)
    raise Cancelled
