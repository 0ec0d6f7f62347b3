"""The ports: what the daemon, the worker and the clients need from the outside world, as small Protocols.

Core`, below everything that does I/O. Each port has its contract in its docstring, and
one contract suite in `tests/contract/` that every adapter passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.model.gangs import CapacityModel, GangRef, GangRequest, GangStatus, Place

__all__ = [
    "CapacityModel",
    "Clock",
    "DescribedObject",
    "GangRef",
    "GangRequest",
    "GangStatus",
    "Kms",
    "ObjectMeta",
    "ObjectMetadata",
    "ObjectStore",
    "Place",
    "Provisioner",
    "StoredObject",
    "WrappedKey",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object's bytes together with the metadata of exactly those bytes."""

    meta: ObjectMeta
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedObject:
    """One object of any bucket: its versions, and its custom metadata."""

    name: str
    generation: int
    metageneration: int
    metadata: Mapping[str, str]


class ObjectMetadata(Protocol):
    """The custom metadata of the objects of buckets that are not the bastion's own.

    Both raise `AccessDenied`, `StoreUnavailable`, or another `StoreError`.
    """

    def list(self, bucket: str, prefix: str) -> Iterator[DescribedObject]:
        """Every object whose name begins with the prefix."""
        ...

    def patch(self, bucket: str, found: DescribedObject, changes: Mapping[str, str]) -> None:
        """Sets some entries, leaving the others, if the object is still what was found.

        Raises:
            PreconditionFailed: it is not.
        """
        ...


class ObjectStore(Protocol):
    """A bucket, or a folder that behaves like one.

    Contract (the suite is `tests/contract/test_object_store*.py`):

    * A key is any non-empty UTF-8 string of at most 1024 bytes without NUL, CR or LF, but for the names that Cloud
      Storage keeps to itself (`bastion.core.bucket.objects.check_key`). Every such key can be stored.
    * Every mutation names the generation it expects: 0 means "must not exist". There is no blind write.
    * A mutation returns (it landed), or raises `PreconditionFailed` (it did not, somebody else's did), or raises
      `StoreUnavailable` (it may have landed, may land yet, or not at all). An adapter that got no answer first finds
      out: its own write id in the object means that it landed; that another write has replaced the expected generation
      means that it did not. What remains unknown is a write whose object is unchanged so far, or was changed twice. The
      caller reads the object again and goes on from there; the same call again can never land twice.
    * Generations of one key strictly increase over the store's own writers, also over a deletion and re-creation.
    * Reads are strongly consistent with finished writes; bytes and generation of one `get` belong together.
    * Listings are in ascending order of the keys' UTF-8 bytes. An object being written while listed may be missing,
      so absence in one listing proves nothing.
    * Calls are thread-safe and may come from several processes at once.
    * Errors: `NotFound`, `PreconditionFailed`, `AccessDenied`, `StoreUnavailable` of `bastion.core.errors`;
      `ValueError` for a key that no store could hold.
    """

    def get(self, key: str, *, start: int = 0, max_bytes: int = limits.READ_MAX_BYTES) -> StoredObject:
        """The object's bytes from offset `start` on (empty if `start` is past the end); `meta.size` is the whole size.

        What others may write is read with the `max_bytes` of its kind: a size seen in a listing may be outdated.

        `meta.updated` may be rounded down to the second here, where `head`, `list`, `put` and `append` tell it exactly.

        Raises:
            NotFound: there is no such object.
            ObjectTooLarge: more than `max_bytes` bytes follow `start`; they were not taken into memory.
        """
        ...

    def head(self, key: str) -> ObjectMeta | None:
        """The object's metadata, or None if a lookup of this very key says that it does not exist."""
        ...

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        """Objects whose key begins with `prefix` and is greater than `start_after`, in key order.

        `end_before`: if given, only keys less than it. What the caller does not take is not asked for: a bucket in the
        cloud answers in pages of `limits.LIST_PAGE_OBJECTS`, each of them a request.
        """
        ...

    def put(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        """Writes the whole object, atomically, if its present generation is `generation` (0: it does not exist).

        Raises:
            PreconditionFailed: it has another generation.
        """
        ...

    def append(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        """Adds bytes at the end if the present generation is `generation` (0: creates the object).

        Costs in proportion to `data`, not to the object. A crash inside may leave a torn tail, never a lost head.

        Raises:
            PreconditionFailed: it has another generation.
        """
        ...

    def delete(self, key: str, *, generation: int) -> None:
        """Deletes the object if its present generation is `generation`; an object that is already gone is success.

        Raises:
            PreconditionFailed: it has another generation. The one named is gone; if answers were lost on the way, this
                very call may have deleted it before somebody else created the object anew.
        """
        ...


class Provisioner(Protocol):
    """Creates, lists and deletes gangs: all slices of a run as one, or the bastion's own host.

    Contract (the suite is `tests/contract/test_provisioner.py`):

    * No call waits for a gang: `create` and `delete` return once the request is accepted.
    * A gang is all or nothing. Its state is READY when each of its nodes is; one that lost a node is LOST, one that can
      never become whole is FAILED. What is left of either stays until it is deleted.
    * `create` of a name that exists raises `SliceExists`, whoever owns it; the caller compares tokens.
    * A creation that fails later and leaves nothing behind (no capacity) is told by `failure(ref)` until the name is
      created again. One that leaves something behind is FAILED, and its status tells why.
    * `list` returns every gang of this bastion in that zone, in any state, in order of name; one just created may be
      missing. It raises if the zone does not answer. An empty zone is the provisioner's own.
    * `get` asks for one name: None means that the API says that nothing of it exists.
    * `delete` is asked for again as long as anything of the gang exists; for one that does not exist, is being deleted
      or cannot be deleted yet, it is success.
    * Errors: `ProvisionerUnavailable` (look again), `ProvisionerRefused` (never), `Stockout` (wait), `SliceExists`.
    """

    def create(self, request: GangRequest) -> None: ...

    def failure(self, ref: GangRef) -> Exception | None:
        """Why the last creation of that gang failed (`Stockout`, `ProvisionerRefused`, ...); None: it did not."""
        ...

    def get(self, ref: GangRef) -> GangStatus | None: ...

    def list(self, zone: str = "") -> Sequence[GangStatus]: ...

    def delete(self, ref: GangRef) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedKey:
    """A key as only the key service can open it.

    Attributes:
        version: Number of the version of the wrapping key, as in `.../cryptoKeyVersions/7`.
        data: Opaque; at most 1 KiB for a key of 32 bytes.
    """

    version: str
    data: bytes = field(repr=False)


class Kms(Protocol):
    """Holds keys that never leave it, and wraps other keys with them.

    Contract (the suite is `tests/contract/test_kms.py`):

    * A key is named `projects/P/locations/L/keyRings/R/cryptoKeys/K`, wherever it lies. It has versions; one is
      primary.
    * `wrap` uses the primary. `unwrap` of what any version wrapped works as long as that version exists, also after a
      rotation.
    * `associated` is authenticated and not stored: `unwrap` needs the very same bytes.
    * `unwrap` returns exactly what was wrapped or raises; bytes that were changed on the way are never returned.
    * A call takes at most some ten seconds. Calls are thread-safe.
    * Errors: `KmsUnavailable` (the same call may succeed later) and `KmsRefused` (not until a person acts: no such key,
      no permission, or the data is nothing that this key wrapped). Neither holds what was to be wrapped.
    """

    def wrap(self, key: str, data: bytes, *, associated: bytes) -> WrappedKey:
        """`data`, a key of 32 bytes, under the primary version of `key`."""
        ...

    def unwrap(self, key: str, version: str, data: bytes, *, associated: bytes) -> bytes:
        """What was wrapped; `key`, `version` and `data` are those of `wrap`."""
        ...

    def primary(self, key: str) -> str:
        """The version that `wrap` uses now."""
        ...


class Clock(Protocol):
    """Time, injected everywhere so that tests and the simulator own it."""

    def now(self) -> float:
        """Seconds since the epoch (UTC)."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed instant, counting also while the machine sleeps; never steps back."""
        ...

    def sleep(self, seconds: float) -> None: ...
