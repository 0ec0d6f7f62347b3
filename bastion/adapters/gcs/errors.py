"""Classify and explain failures of requests to Cloud Storage.

Every exception of the library, its HTTP transport and the credentials passes through `explain`:

* `ConditionNotMet`, `NoSuchObject`, `PastTheEnd`: plain answers, which the store interprets.
* `Transient`: another try may succeed.
* Errors of `bastion.core.errors`: no try can succeed until the user does what the message says.
"""

from __future__ import annotations

import os
import re

import urllib3
from google.api_core.exceptions import GoogleAPICallError
from google.auth.exceptions import GoogleAuthError, RefreshError, TransportError
from requests import exceptions as errors

from bastion.adapters.bucket_requests.answers import ConditionNotMet, NoSuchObject, PastTheEnd, Transient, short
from bastion.core.errors import AccessDenied, StoreError

# 410: the upload's session is gone; a new one will work.
_RETRIED_STATUSES = frozenset({408, 410, 429, 500, 502, 503, 504})
# The service's reasons for rate limits; they come with 403 and 429.
_TOO_OFTEN = frozenset({"rateLimitExceeded", "userRateLimitExceeded"})
_PERMISSION = re.compile(r"storage\.[a-zA-Z]+\.[a-zA-Z]+")
_CALLER = re.compile(r"(\S+@\S+\.\S+) does not have")
_READING = frozenset({"storage.objects.get", "storage.objects.list"})
_POOL = re.compile(r"^<?\S*HTTPS?Connection(Pool)?\([^)]*\)(: |\. )?")

LOG_IN = (
    "run `gcloud auth application-default login` on your own machine; on a VM attach a service account with the "
    "scope cloud-platform"
)


# No connection was made, so the request cannot have taken effect.
_NEVER_SENT = (
    errors.ConnectTimeout,
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
)

# Everything that a request may raise; any other exception is a bug.
FAILURES = (GoogleAPICallError, GoogleAuthError, errors.RequestException, urllib3.exceptions.HTTPError)


def explain(failure: Exception, *, bucket: str, doing: str) -> Exception:
    """Return the exception to raise instead of a failure, one of `FAILURES`.

    `doing` names the operation: it continues with "...ing gs://bucket/key".
    """
    match failure:
        case GoogleAPICallError():
            return _of_answer(failure, bucket, doing)
        case GoogleAuthError():
            return _of_credentials(failure, bucket, doing)
        case errors.InvalidURL() | errors.MissingSchema() | errors.InvalidSchema():
            return StoreError(f"{doing}: {failure}; set STORAGE_EMULATOR_HOST to a URL such as http://localhost:4443")
        case errors.SSLError() if "CERTIFICATE_VERIFY_FAILED" in str(failure):
            return StoreError(
                f"{doing}: the server's certificate cannot be verified ({short(str(failure))}); if it is a "
                "proxy's or an emulator's, name the file of its authority in REQUESTS_CA_BUNDLE"
            )
        case _:
            cause = _cause(failure)
            text = short(_POOL.sub("", str(cause))) or type(cause).__name__
            return Transient(text, doubtful=not isinstance(cause, _NEVER_SENT))


def _of_answer(failure: GoogleAPICallError, bucket: str, doing: str) -> Exception:
    status = int(failure.code or 0)
    reason, said = _reason_and_text(failure)
    if status == 412:
        return ConditionNotMet(said)
    if status == 404:
        if said.startswith("No such object") or "bucket does not exist" not in said.lower():
            return NoSuchObject(said)
        return StoreError(f"{doing}: {_no_bucket(bucket)}")
    if status == 416:
        return PastTheEnd(said)
    if status in _RETRIED_STATUSES or reason in _TOO_OFTEN:
        # A request that is to be repeated later was not served.
        refused = status == 429 or reason in _TOO_OFTEN
        return Transient(f"{status} {short(said)}".rstrip(), doubtful=not refused)
    if status == 400 and "crc32c" in said.lower():
        return Transient(f"the bytes were damaged in transit: {short(said)}", doubtful=False)
    if status in (401, 403):
        return AccessDenied(_denied(said, bucket, doing))
    return StoreError(f"{doing}: the service refused it with {status}: {short(said)}")


def _no_bucket(bucket: str) -> str:
    emulator = os.environ.get("STORAGE_EMULATOR_HOST", "")
    if emulator:
        return (
            f"there is no bucket gs://{bucket} at {emulator} (STORAGE_EMULATOR_HOST); check its name, or create it: "
            f"run `bastion emulator gcs --bucket={bucket}`, or make a folder of this name beside the other buckets"
        )
    return (
        f"there is no bucket gs://{bucket}; check its name, or create it with "
        f"`gcloud storage buckets create gs://{bucket}`"
    )


def _of_credentials(failure: GoogleAuthError, bucket: str, doing: str) -> Exception:
    # The library marks temporary errors; an unreachable token server comes wrapped in a RefreshError.
    unreachable = isinstance(failure, TransportError) or (
        isinstance(failure, RefreshError) and isinstance(failure.__cause__ or failure.__context__, TransportError)
    )
    if failure.retryable or unreachable:
        return Transient(f"cannot get an access token ({short(str(failure))}); {LOG_IN}", doubtful=False)
    return AccessDenied(f"{doing}: the credentials for gs://{bucket} do not work ({short(str(failure))}); {LOG_IN}")


def _denied(said: str, bucket: str, doing: str) -> str:
    found = _PERMISSION.search(said)
    if found is None:
        return (
            f"{doing}: access was refused: {short(said)}; check the active account (`gcloud auth list`), the "
            "VM's access scopes (cloud-platform), and the project's billing"
        )
    permission = found.group()
    caller = _CALLER.search(said)
    who = caller.group(1) if caller else "the caller"
    member = "MEMBER"
    if caller:
        member = ("serviceAccount:" if who.endswith("gserviceaccount.com") else "user:") + who
    anonymous = " The request carried no credentials: " + LOG_IN + "." if said.startswith("Anonymous") else ""
    lacks = f"{doing}: {who} lacks the permission {permission} on gs://{bucket}; "
    if not permission.startswith("storage.objects."):
        return f"{lacks}an owner of the bucket has it.{anonymous}"
    role = "roles/storage.objectViewer" if permission in _READING else "roles/storage.objectUser"
    return (
        f"{lacks}if it is a bastion's bucket, ask its administrator for the right to the folder: a role on the whole "
        "bucket goes past all others' folders (docs/how-to/run-on-gcp.md#who-may-do-what). If it has only data of "
        f"yours, {role} grants it: `gcloud storage buckets add-iam-policy-binding gs://{bucket} --member={member} "
        f"--role={role}`.{anonymous}"
    )


def _reason_and_text(failure: GoogleAPICallError) -> tuple[str, str]:
    """Return the service's reason (may be empty) and message; downloads answer in plain text."""
    response = failure.response
    if response is None:
        return "", str(failure.message)
    try:
        error = response.json()["error"]
        details = error.get("errors") or [{}]
        return str(details[0].get("reason", "")), str(error["message"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return "", str(response.text)


def _cause(failure: BaseException) -> BaseException:
    """Return the innermost cause, below the HTTP libraries' wrappers."""
    inner = failure.args[0] if failure.args else None
    if isinstance(inner, urllib3.exceptions.MaxRetryError):
        inner = inner.reason
    return inner if isinstance(inner, BaseException) else failure
