"""Errors of the storage, its folder or the endpoint in the API's terms."""

from __future__ import annotations

from bastion.core.errors import AccessDenied, StoreError, StoreUnavailable
from bastion.emulators.gcs import resources
from bastion.storage_wire.refusals import Refusal, invalid

_ACCOUNTS = ("user:", "serviceAccount:")
_PRECONDITION = "At least one of the pre-conditions you specified did not hold."


def not_served(method: str, path: str) -> Refusal:
    """501: the real service may support this call; this endpoint does not."""
    return Refusal(
        501, "notImplemented", f"This endpoint does not serve {method} {path}; see docs/reference/storage-endpoint.md."
    )


def permission_message(error: resources.NotPermitted) -> str:
    """What the service says of a missing permission; it names accounts without their kind."""
    caller = error.caller.partition(":")[2] if error.caller.startswith(_ACCOUNTS) else error.caller
    return (
        f"{caller or 'Anonymous caller'} does not have {error.permission} access to the Google Cloud Storage "
        f"{error.kind}. Permission '{error.permission}' denied on resource (or it may not exist)."
    )


def _not_permitted(error: resources.NotPermitted, *, is_json: bool) -> Refusal:
    """403; 401 for anonymous callers of the JSON API."""
    message = permission_message(error)
    if not is_json:
        return Refusal(403, "forbidden", "Access denied.", code="AccessDenied", details=message)
    if not error.caller:
        return Refusal(401, "required", message, location=("header", "Authorization"))
    return Refusal(403, "forbidden", message)


def of_storage(error: resources.StorageError, *, is_json: bool = True) -> Refusal:
    said = str(error)
    match error:
        case resources.NotPermitted():
            return _not_permitted(error, is_json=is_json)
        case resources.UnknownToken():
            return Refusal(
                401,
                "authError",
                "Invalid Credentials",
                code="AuthenticationRequired",
                details=said,
                location=("header", "Authorization"),
                headers=(("WWW-Authenticate", 'Bearer realm="https://accounts.google.com/"'),),
            )
        case resources.NoSuchManagedFolder():
            return Refusal(404, "notFound", said)
        case resources.ManagedFolderExists():
            return Refusal(409, "conflict", "The specified managed folder already exists.")
        case resources.ManagedFolderNotEmpty():
            return Refusal(409, "conflict", "The managed folder you tried to delete is not empty.")
        case resources.NotModified():
            return Refusal(304, "notModified", said)
        case resources.ConditionFailed():
            message = f"{_PRECONDITION} ({said})" if said else _PRECONDITION
            return Refusal(412, "conditionNotMet", message, location=("header", "If-Match"))
        case resources.NoSuchBucket():
            return Refusal(404, "notFound", f"The specified bucket does not exist. ({said})", code="NoSuchBucket")
        case resources.NoSuchObject():
            return Refusal(404, "notFound", said)
        case resources.NoSuchUpload():
            return Refusal(404, "notFound", said, code="NoSuchUpload")
        case resources.BucketExists():
            message = "Your previous request to create the named bucket succeeded and you already own it."
            return Refusal(409, "conflict", message, code="BucketAlreadyOwnedByYou")
        case resources.BucketNotEmpty():
            return Refusal(
                409, "conflict", f"The bucket you tried to delete is not empty. ({said})", code="BucketNotEmpty"
            )
        case resources.ChecksumMismatch():
            return invalid(said, code="BadDigest")
        case _:
            return invalid(said)


def of_store(error: StoreError) -> Refusal:
    """Errors of the folder: the machine's fault, except for missing permissions."""
    if isinstance(error, AccessDenied):
        return Refusal(403, "forbidden", str(error), code="AccessDenied")
    if isinstance(error, StoreUnavailable):
        return Refusal(503, "backendError", str(error), code="ServiceUnavailable")
    return Refusal(500, "internalError", str(error), code="InternalError")
