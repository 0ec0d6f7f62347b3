"""The ports to the outside world, as small Protocols.

Each docstring is the port's contract; every adapter passes the suite in `tests/contract/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from bastion.core import limits
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.model.audit import Proof
from bastion.core.model.gangs import CapacityModel, GangRef, GangRequest, GangStatus, Place
from bastion.core.model.running_hosts import RunningHost

if TYPE_CHECKING:
    from bastion.core.model.identity import Identity, Inbox

__all__ = [
    "CapacityModel",
    "Clock",
    "DescribedObject",
    "GangRef",
    "GangRequest",
    "GangStatus",
    "HostEntry",
    "InboxProof",
    "InboxRights",
    "Kms",
    "ObjectMeta",
    "ObjectMetadata",
    "ObjectStore",
    "Place",
    "Provisioner",
    "RunningHost",
    "SecretSource",
    "StoredObject",
    "WrappedKey",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """An object's bytes with the metadata of exactly those bytes."""

    meta: ObjectMeta
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedObject:
    """One object of any bucket, with its versions and custom metadata."""

    name: str
    generation: int
    metageneration: int
    metadata: Mapping[str, str]


class ObjectMetadata(Protocol):
    """Custom metadata of objects in any bucket.

    Both methods raise `AccessDenied`, `StoreUnavailable`, or another `StoreError`.
    """

    def list(self, bucket: str, prefix: str) -> Iterator[DescribedObject]:
        """Yield every object whose name begins with the prefix."""
        ...

    def patch(self, bucket: str, found: DescribedObject, changes: Mapping[str, str]) -> None:
        """Set some entries and keep the others; raises PreconditionFailed if the object is no longer the one found."""
        ...


class ObjectStore(Protocol):
    """A bucket, or a folder that behaves like one.

    Contract (the suite is `tests/contract/test_object_store*.py`):

    * A key is any non-empty UTF-8 string of at most 1024 bytes without NUL, CR or LF, except the names that Cloud
      Storage reserves (`bastion.core.bucket.objects.check_key`).
    * Every mutation names the generation it expects; 0 means "must not exist". There is no blind write.
    * A mutation returns (it landed), raises `PreconditionFailed` (it did not), or raises `StoreUnavailable` (unknown,
      it may still land). Without a reply, an adapter first reads back: its own write id means that it landed; a
      replaced expected generation means that it did not. Otherwise the caller reads the object again; the same call can
      never land twice.
    * Generations of a key differ, also over deletion and re-creation; nothing may rely on their order. On S3 the same
      bytes within one second have the same generation, and a write that names a generation also succeeds if the object
      became those bytes again since (ADR 50).
    * Reads are strongly consistent with finished writes.
    * Listings are in ascending order of the keys' UTF-8 bytes. They may miss an object that is being written, so
      absence in one listing proves nothing.
    * Calls are safe from several threads and processes.
    * Errors: `NotFound`, `PreconditionFailed`, `AccessDenied`, `StoreUnavailable` of `bastion.core.errors`;
      `ValueError` for an invalid key.
    """

    def get(self, key: str, *, start: int = 0, max_bytes: int = limits.READ_MAX_BYTES) -> StoredObject:
        """Return the object's bytes from offset `start`; empty past the end. `meta.size` is the whole size.

        Pass the `max_bytes` of its type for objects that others may write: a listed size may be outdated.
        `meta.updated` may be rounded down to the second; other methods return it exactly.

        Raises:
            NotFound: No such object.
            ObjectTooLarge: More than `max_bytes` bytes follow `start`; they were not read.
        """
        ...

    def get_range(self, key: str, *, start: int, size: int) -> StoredObject:
        """Return at most `size` bytes of the object from offset `start`; otherwise like `get`.

        Raises NotFound.
        """
        ...

    def head(self, key: str) -> ObjectMeta | None:
        """Return the object's metadata; None if a lookup of this key says that it does not exist."""
        ...

    def list(self, prefix: str, *, start_after: str = "", end_before: str = "") -> Iterator[ObjectMeta]:
        """Yield objects in order of key: beginning with `prefix`, after `start_after` and before `end_before` (if
        given).

        Lazy: a bucket in the cloud bills each page of `limits.LIST_PAGE_OBJECTS` as a request.
        """
        ...

    def put(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        """Write the whole object atomically if its generation is `generation` (0: it does not exist).

        Raises PreconditionFailed if it has another generation.
        """
        ...

    def append(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        """Append bytes if the generation is `generation` (0: creates the object), at a cost proportional to `data`.

        On S3 an object below 5 MiB is written anew, at the cost of the whole. A crash may leave a torn tail, never a
        lost head. Raises PreconditionFailed if it has another generation.
        """
        ...

    def delete(self, key: str, *, generation: int) -> None:
        """Delete the object if its generation is `generation`; a missing object counts as success.

        Raises PreconditionFailed if it has another generation. After lost replies, this call may still have deleted the
        one named.
        """
        ...


class Provisioner(Protocol):
    """Creates, lists and deletes gangs: all slices of a run, or the bastion's own host.

    Contract (the suite is `tests/contract/test_provisioner.py`):

    * `create` and `delete` return once the request is accepted.
    * A gang is all or nothing: READY when every node is, LOST after losing a node, FAILED if it can never become whole.
      The rest stays until it is deleted.
    * `create` of an existing name raises `GangExists`; the caller compares tokens.
    * `failure(ref)` reports a later failure that left nothing behind (no capacity), until the name is created again.
      With something left behind the gang is FAILED, and its status has the cause.
    * `list` returns every gang of this bastion in the zone, in order of name; a new one may be missing. It raises if
      the zone does not answer. An empty zone is the provisioner's own.
    * `get` looks one name up: None means that no part of it exists.
    * `delete` may be repeated while any part exists; it succeeds for a gang that is missing, being deleted or not
      deletable yet.
    * Errors: `ProvisionerUnavailable` (look again), `ProvisionerRefused` (never), `Stockout` (wait), `GangExists`.
    """

    def create(self, request: GangRequest) -> None: ...

    def failure(self, ref: GangRef) -> Exception | None:
        """Return why the last creation of that gang failed (`Stockout`, `ProvisionerRefused`, ...); None otherwise."""
        ...

    def get(self, ref: GangRef) -> GangStatus | None: ...

    def list(self, zone: str = "") -> Sequence[GangStatus]: ...

    def delete(self, ref: GangRef) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WrappedKey:
    """A wrapped key."""

    version: str  # number of the wrapping key's version, as in `.../cryptoKeyVersions/7`
    data: bytes = field(repr=False)  # opaque; at most 1 KiB for a key of 32 bytes


class Kms(Protocol):
    """Wraps keys with keys that never leave the service.

    Contract (the suite is `tests/contract/test_kms.py`):

    * A key is named `projects/P/locations/L/keyRings/R/cryptoKeys/K` in every service. It has versions; one is primary.
    * `wrap` uses the primary. `unwrap` works for every version that still exists.
    * `associated` is authenticated and not stored: `unwrap` needs the same bytes.
    * `unwrap` returns exactly the wrapped bytes, or raises.
    * A call takes at most about ten seconds. Calls are thread-safe.
    * Errors: `KmsUnavailable` (may succeed later) and `KmsRefused` (needs a person: no key, no permission, or not
      wrapped by this key). Neither contains the data.
    """

    def wrap(self, key: str, data: bytes, *, associated: bytes) -> WrappedKey:
        """Wrap `data`, a key of 32 bytes, under the primary version of `key`."""
        ...

    def unwrap(self, key: str, version: str, data: bytes, *, associated: bytes) -> bytes:
        """Return the wrapped data; `key`, `version` and `data` are those of `wrap`."""
        ...

    def primary(self, key: str) -> str:
        """The version that `wrap` uses now."""
        ...


class SecretSource(Protocol):
    """Where a host finds the values of secrets.

    Contract (the suite is `tests/contract/test_secret_source.py`):

    * `read` returns the value as it is now, at most `limits.SECRET_MAX_BYTES` long, without a NUL, and not empty.
    * It raises `SecretUnreadable` where there is no such value, with what to do. No error contains a value.
    * It raises `SecretUnavailable` where a service may answer later; the caller repeats the call.
    * A call does not wait for people: a named pipe is no secret. It ends within half a minute, and changes nothing.
    """

    def read(self, where: str) -> str:
        """Return the value; `where` is what follows the scheme in a job's reference."""
        ...


class HostEntry(Protocol):
    """Runs command lines of people on a job's host, for as long as its attempt runs there.

    Contract:

    * It runs as whom the job's command runs, in the command's environment and folder. It ends with the command.
    * It runs only where a process of that attempt's command is: a host of another attempt is refused.
    * The right to do so is the platform's. No entry gives more rights on the host than the command has.
    """

    def enter(self, host: RunningHost, command: Sequence[str], *, begin: Callable[[], object] = lambda: None) -> int:
        """Run a command, or a shell if it is empty, with this process's stdin, stdout and stderr.

        Args:
            begin: Called when the host was found and nothing runs there yet; nothing does if it raises.

        Returns its exit code, or 128 + the number of the signal that ended it. Raises Refused if the attempt does not
        run there, or nobody can enter from here.
        """
        ...


class InboxProof(Protocol):
    """What proves that an object in an inbox is its user's (mode `inbox`).

    Contract (the suite is `tests/contract/test_inbox.py`): what another user could put into `inbox/<user>/`, or change
    there, has a problem, or his write is refused by the bucket.

    Attributes:
        kind: What the audit trail calls it.
    """

    @property
    def kind(self) -> Proof: ...

    def problem(self, user: str, inbox: Inbox, meta: ObjectMeta) -> str:
        """Say why the object may not be that user's, and what to do; empty if it is his."""
        ...

    def prepare(self, found: Identity) -> str:
        """Make what users need to write to their inboxes; return a problem. Called when the identities change."""
        ...


class InboxRights(Protocol):
    """What lets a user write to his inbox, for the commands of an administrator.

    Attributes:
        automatic: Whether `grant` and `revoke` do what is to be done; else somebody does by hand what the lines say.
    """

    @property
    def automatic(self) -> bool: ...

    def refusal(self, inbox: Inbox) -> str:
        """Say why this kind of bucket cannot have that inbox, and what to do; empty if it can."""
        ...

    def granting(self, user: str, inbox: Inbox) -> list[str]:
        """The lines of a shell that do what `grant` does, or a document and such a line; needs no rights."""
        ...

    def revoking(self, user: str, inbox: Inbox) -> list[str]: ...

    def check(self, user: str, inbox: Inbox) -> None:
        """Raise what `grant` would raise, as far as that is known before."""
        ...

    def grant(self, user: str, inbox: Inbox) -> None:
        """Let him write there, and nobody else; harmless if he may already.

        Raises Refused if somebody else may, and StoreError.
        """
        ...

    def revoke(self, user: str) -> None:
        """Let nobody write there. What is there stays, because jobs may come from it."""
        ...

    def findings(self, users: Mapping[str, Inbox]) -> dict[str, list[str]]:
        """What is wrong with the rights of each, also of inboxes that are not among `users`. Raises StoreError."""
        ...


class Clock(Protocol):
    """Time, injected so that tests and the simulator control it."""

    def now(self) -> float:
        """Seconds since the epoch (UTC)."""
        ...

    def monotonic(self) -> float:
        """Seconds since a fixed instant, including sleep of the machine; never steps back."""
        ...

    def sleep(self, seconds: float) -> None: ...
