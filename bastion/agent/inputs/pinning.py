"""Pin an input once per attempt: host 0 lists it and stores the listing, the others wait for that.

Thousands of hosts that list a million objects each would be a million requests, and would not see the same. The listing
stays in the bucket: it says what an attempt read. Hosts of other jobs may write there: only what the run's key proves
is used.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Iterator

from bastion.agent.download import Cancelled
from bastion.agent.inputs import listing
from bastion.agent.inputs.problems import InputProblem, Patience
from bastion.core import limits
from bastion.core.bucket import host_errors, pinned
from bastion.core.bucket.pinned import Listing, PinnedObject
from bastion.core.errors import InvalidDocument, NotFound, PreconditionFailed
from bastion.core.run_keys import RunKey
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
        for number, digest in enumerate(self.listing.digests):
            key = self._folder + pinned.part_name(number)
            found = self._patience.in_own(functools.partial(self._part, key, digest))
            objects, size = objects + len(found), size + sum(each.size for each in found)
            yield from found
        if (objects, size) != (self.listing.objects, self.listing.size):
            raise InputProblem(
                host_errors.HOST_FAILED,
                f"{self._folder} was edited: its parts have {objects} objects of {size} bytes, and its listing says "
                f"{self.listing.objects} of {self.listing.size}",
            )

    def _part(self, key: str, digest: str) -> list[PinnedObject]:
        try:
            data = self._store.get(key, max_bytes=limits.INPUT_PART_MAX_BYTES).data
            if pinned.digest(data) != digest:
                raise InvalidDocument("it is not what this run stored; someone else may have replaced it")
            return pinned.unpack(data)
        except (NotFound, InvalidDocument) as error:
            raise InputProblem(host_errors.HOST_FAILED, f"{key}: {error}") from error


def read(store: ObjectStore, folder: str, run_key: RunKey) -> Listing | None:
    """Return the listing that is there; None before. Raises StoreError; InputProblem if the run did not write it."""
    key = folder + pinned.listing_name(run_key)
    try:
        return pinned.proved(key, store.get(key, max_bytes=limits.DOCUMENT_MAX_BYTES).data, run_key.public)
    except NotFound:
        return None
    except InvalidDocument as error:
        raise InputProblem(host_errors.HOST_FAILED, f"{key}: {error}") from error


def pin(
    store: ObjectStore,
    folder: str,
    source: ObjectStore,
    url: str,
    key: str,
    *,
    run_key: RunKey,
    patience: Patience,
    note: Callable[[str], None],
) -> Listing:
    """Return the listing that is there; otherwise list `key` in `source` and store it.

    `note`: for the job's log. May be repeated. Raises Cancelled, InputProblem; StoreError of `source`.
    """
    try:
        found = patience.in_own(functools.partial(read, store, folder, run_key))
    except InputProblem as problem:
        note(f"listing the input {url} again: {problem}")
        found = None
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
            digests=[*total.digests, pinned.digest(packed[1])],
        )
    listing_key = folder + pinned.listing_name(run_key)
    signed = pinned.with_proof(listing_key, total, run_key)
    patience.in_own(functools.partial(_replace, store, listing_key, signed))
    return total


def _replace(store: ObjectStore, key: str, data: bytes) -> None:
    """Write it over what is there: of an agent that died before it wrote the listing, or of another job's host."""
    try:
        store.put(key, data, generation=0)
    except PreconditionFailed:
        present = store.head(key)
        store.put(key, data, generation=present.generation if present is not None else 0)


def wait_for(
    store: ObjectStore,
    folder: str,
    *,
    run_key: RunKey,
    patience: Patience,
    cancelled: threading.Event,
    poll_seconds: float,
) -> Listing:
    """Wait until host 0 has pinned it. Raises Cancelled.

    Raises InputProblem if it was replaced since: the attempt ends, and the next one pins anew. To list here would mix
    what host 0 saw with what is there now.
    """
    while not cancelled.is_set():
        found = patience.in_own(functools.partial(read, store, folder, run_key))
        if found is not None:
            return found
        cancelled.wait(poll_seconds)
    raise Cancelled
