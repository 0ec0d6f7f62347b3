"""The error tree of `bastion`; quota files have `quota.QuotaFileError`.

Every message says what happened, why, and what to do. The CLI prints a `BastionError` as one line and exits with its
`exit_code`.
"""

from __future__ import annotations

# Nobody agreed to a command that asks first.
EXIT_UNCONFIRMED = 2
EXIT_REFUSED = 64
# A job's code is missing or unusable; EX_NOINPUT of sysexits.h.
EXIT_NO_CODE = 66
EXIT_INFRASTRUCTURE = 75
# `bastion wait --timeout`; that of timeout(1).
EXIT_TIMEOUT = 124
EXIT_DETACHED = 130
EXIT_CANCELLED = 143


class BastionError(Exception):
    """An error that a person can act on."""

    exit_code = 1


class Refused(BastionError):
    """The request is not possible; nothing was changed."""

    exit_code = EXIT_REFUSED


class InvalidSpec(Refused):
    """A job spec breaks a rule of the format or a limit."""


class UnknownInstanceType(Refused):
    """No such instance type, or not available on this bastion."""


class InvalidDocument(BastionError):
    """An object in the bucket is malformed (half-written, or foreign)."""


class SecretUnreadable(Refused):
    """A host cannot read the value of a job's secret. The message has no value."""


class SecretUnavailable(BastionError):
    """The source of a secret did not answer properly; a retry may succeed. The message has no value."""

    exit_code = EXIT_INFRASTRUCTURE


class StoreError(BastionError):
    """An object store refused or failed an operation."""


class NotFound(StoreError):
    """The object does not exist."""


class ObjectTooLarge(InvalidDocument, StoreError):
    """The object exceeds the maximum for its key; it was not read."""


class PreconditionFailed(StoreError):
    """The object has another generation than expected: someone else wrote it."""


class StoreUnavailable(StoreError):
    """The store did not answer in time; the operation may be retried."""

    exit_code = EXIT_INFRASTRUCTURE


class StoreFull(StoreUnavailable):
    """The store has no space; nothing was written."""


class AccessDenied(StoreError):
    """The store refuses this identity; the message names the missing permission."""


class ProvisionerError(BastionError):
    """A slice could not be created, listed or deleted."""

    exit_code = EXIT_INFRASTRUCTURE


class GangExists(ProvisionerError):
    """A gang of that name already exists."""


class Stockout(ProvisionerError):
    """The zone has no capacity now; the job waits."""


class ProvisionerUnavailable(ProvisionerError):
    """The provisioning API did not answer; retry in the next tick."""


class MissingPermission(ProvisionerUnavailable):
    """The provisioning API knows this identity and does not allow the request; an operator must grant `permission`.

    No job ends for it. `permission` names verb, resource and scope: `list pods in namespace training`.
    """

    def __init__(self, message: str, *, permission: str) -> None:
        super().__init__(message)
        self.permission = permission


class CredentialsRefused(ProvisionerUnavailable):
    """The provisioning API does not accept the credentials: expired, revoked, or another cluster's."""


class ProvisionerRefused(ProvisionerError):
    """The provisioning API will never accept this request; the message is the API's."""


class AgentNotPacked(BastionError):
    """This installation cannot pack the worker agent."""

    exit_code = EXIT_INFRASTRUCTURE


class KmsError(BastionError):
    """The key service failed."""


class KmsUnavailable(KmsError):
    """The key service did not answer properly; a retry may succeed."""

    exit_code = EXIT_INFRASTRUCTURE


class KmsRefused(KmsError):
    """The key service needs a person: no such key, no permission, or wrong data."""

    exit_code = EXIT_REFUSED


class SealBroken(BastionError):
    """Sealed bytes do not match this key, place and order."""


class EnvelopeBroken(BastionError):
    """The key metadata of an object is incomplete, or belongs to another object."""
