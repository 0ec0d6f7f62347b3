"""The one error tree of `bastion`.

Every message says what happened, why, and what to do. Bad input never reaches the user as a traceback: the
CLI prints a `BastionError` as one line and exits with its `exit_code`.

Quota files have an error of their own, `quota.QuotaFileError`, because `quota/` is a layer below this one.
"""

from __future__ import annotations

EXIT_REFUSED = 64
# Of a job whose code is missing or cannot be used: what sysexits.h calls EX_NOINPUT.
EXIT_NO_CODE = 66
EXIT_INFRASTRUCTURE = 75
EXIT_DETACHED = 130
EXIT_CANCELLED = 143


class BastionError(Exception):
    """Something went wrong that a person can act on."""

    exit_code = 1


class Refused(BastionError):
    """What was asked is not possible as asked; nothing was changed."""

    exit_code = EXIT_REFUSED


class InvalidSpec(Refused):
    """A job spec breaks a rule of the format or a limit."""


class UnknownInstanceType(Refused):
    """No such instance type, or none that this bastion can provision."""


class InvalidDocument(BastionError):
    """An object in the bucket is not what its key promises (a half-written state, a foreign file)."""


class StoreError(BastionError):
    """An object store refused or failed an operation."""


class NotFound(StoreError):
    """The object does not exist."""


class ObjectTooLarge(InvalidDocument, StoreError):
    """The object is larger than anything that its key may hold; it was not read."""


class PreconditionFailed(StoreError):
    """The object's generation is not the one the caller expected: somebody else wrote it."""


class StoreUnavailable(StoreError):
    """The store did not answer in time; the operation may be tried again."""

    exit_code = EXIT_INFRASTRUCTURE


class StoreFull(StoreUnavailable):
    """The store has no room; nothing was written."""


class AccessDenied(StoreError):
    """The store refuses this identity; the message names the missing permission."""


class ProvisionerError(BastionError):
    """A slice could not be created, listed or deleted."""

    exit_code = EXIT_INFRASTRUCTURE


class SliceExists(ProvisionerError):
    """A node of that name exists already."""


class Stockout(ProvisionerError):
    """The zone has no capacity now; the job waits, this is nobody's failure."""


class ProvisionerUnavailable(ProvisionerError):
    """The provisioning API did not answer; look again next tick."""


class ProvisionerRefused(ProvisionerError):
    """The provisioning API will never accept this request; the message holds its own words."""


class AgentNotPacked(BastionError):
    """The worker agent cannot be packed for the nodes out of this installation."""

    exit_code = EXIT_INFRASTRUCTURE


class KmsError(BastionError):
    """The service that holds the keys did not do what was asked."""


class KmsUnavailable(KmsError):
    """The key service did not answer properly; the same call may succeed later."""

    exit_code = EXIT_INFRASTRUCTURE


class KmsRefused(KmsError):
    """The key service will not do this until a person acts: no such key, no permission, not what it wrapped."""

    exit_code = EXIT_REFUSED


class SealBroken(BastionError):
    """Sealed bytes are not what was sealed with this key, at this place, in this order."""


class EnvelopeBroken(BastionError):
    """What an object's metadata says of its keys is not whole, or belongs to another object."""
