"""Classify and explain failures of requests to S3.

Every exception of boto3 passes through `explain`:

* `ConditionNotMet`, `NoSuchObject`, `PastTheEnd`: plain answers, which the store interprets.
* `Transient`: another try may succeed.
* Errors of `bastion.core.errors`: no try can succeed until the user does what the message says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import urllib3
from botocore import exceptions as errors

from bastion.adapters.bucket_requests.answers import ConditionNotMet, NoSuchObject, PastTheEnd, Transient, short
from bastion.core.errors import AccessDenied, StoreError

# Everything that a request may raise; any other exception is a bug.
FAILURES = (errors.ClientError, errors.BotoCoreError, urllib3.exceptions.HTTPError)

# No connection was made, so the request cannot have taken effect.
_NEVER_SENT = (
    errors.EndpointConnectionError,
    errors.ConnectTimeoutError,
    errors.ProxyConnectionError,
)
# The service did not serve the request; it is to be repeated.
_NOT_SERVED = frozenset(
    {
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "RequestLimitExceeded",
        "BandwidthLimitExceeded",
    }
)
# Another write of the key was under way. What is uploaded in parts begins anew.
_CONFLICTS = frozenset({"ConditionalRequestConflict", "OperationAborted"})
_DAMAGED = frozenset({"BadDigest", "XAmzContentChecksumMismatch"})
_RETRIED = frozenset(
    {"RequestTimeout", "InternalError", "ServiceUnavailable", "BadDigest", "XAmzContentChecksumMismatch"}
)
_EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
_UNKNOWN_KEY = frozenset({"InvalidAccessKeyId", "InvalidToken", "UnrecognizedClientException", "InvalidClientTokenId"})
_OTHER_REGION = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301", "307"}
)
_ACTION = re.compile(r"\b(s3|kms):[A-Za-z]+")
_CALLER = re.compile(r"\barn:aws[a-z-]*:(?:sts|iam)::\S+")

LOG_IN = (
    "on your own machine run `aws configure` or `aws sso login` (AWS_PROFILE names the profile); on an instance attach "
    "a role, in a pod use a service account with a role (IRSA)"
)


class UnknownToService(StoreError):
    """501: the service does not know a part of the request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where requests go. `endpoint`: the URL of a service other than Amazon's; empty for Amazon S3."""

    bucket: str
    endpoint: str


def status_of(failure: BaseException) -> int | None:
    """The HTTP status of an answer; None if there was none."""
    if not isinstance(failure, errors.ClientError):
        return None
    status: int | None = failure.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    return status


def code_of(failure: BaseException) -> str:
    """The service's code, as in `NoSuchKey`; the status as text if an answer to HEAD had none; empty without answer."""
    if not isinstance(failure, errors.ClientError):
        return ""
    return str(failure.response.get("Error", {}).get("Code", ""))


def explain(failure: Exception, *, place: Place, doing: str) -> Exception:
    """Return the exception to raise instead of a failure, one of `FAILURES`.

    `doing` names the operation: it continues with "...ing s3://bucket/key".
    """
    match failure:
        case errors.ClientError():
            return _of_answer(failure, place, doing)
        case errors.NoCredentialsError() | errors.PartialCredentialsError():
            return AccessDenied(f"{doing}: there are no credentials for s3://{place.bucket} ({failure}); {LOG_IN}")
        case errors.SSOError() | errors.UnauthorizedSSOTokenError() | errors.TokenRetrievalError():
            return AccessDenied(f"{doing}: the login has expired ({short(str(failure))}); run `aws sso login`")
        case errors.CredentialRetrievalError() | errors.MetadataRetrievalError():
            # The role's credentials come from another service, which may be unreachable for a while.
            return Transient(f"cannot get credentials ({short(str(failure))}); {LOG_IN}", doubtful=False)
        case errors.SSLError() if "CERTIFICATE_VERIFY_FAILED" in str(failure):
            return StoreError(
                f"{doing}: the server's certificate cannot be verified ({short(str(failure))}); name the file of its "
                "authority in AWS_CA_BUNDLE"
            )
        case errors.HTTPClientError() | errors.ConnectionError() | errors.IncompleteReadError():
            return Transient(short(str(failure)), doubtful=not isinstance(failure, _NEVER_SENT))
        case urllib3.exceptions.HTTPError():
            return Transient(short(str(failure)) or type(failure).__name__, doubtful=True)
        case _:
            return StoreError(f"{doing}: {short(str(failure))}; check AWS_* and ~/.aws/config")


def _of_answer(failure: errors.ClientError, place: Place, doing: str) -> Exception:
    status, code = status_of(failure) or 0, code_of(failure)
    error: dict[str, Any] = failure.response.get("Error", {})
    said = short(str(error.get("Message", ""))) or code
    match code:
        case "PreconditionFailed" | "412" | "304":
            return ConditionNotMet(said)
        case "NoSuchKey" | "404" | "NoSuchVersion":
            return NoSuchObject(said)
        case "NoSuchUpload":
            return Transient("the upload is gone", doubtful=True)
        case "NoSuchBucket":
            return StoreError(f"{doing}: {_no_bucket(place)}")
        case "InvalidRange" | "416":
            return PastTheEnd(said)
        case "RequestTimeTooSkewed":
            return AccessDenied(f"{doing}: this machine's clock is wrong ({said}); set it (`timedatectl`)")
        case "SignatureDoesNotMatch":
            return AccessDenied(
                f"{doing}: the secret key is not that of the access key, or a proxy changes requests; {LOG_IN}"
            )
        case "InvalidObjectState":
            return StoreError(
                f"{doing}: the object is archived ({said}); restore it (`aws s3api restore-object`) or copy it to "
                "another storage class, and try again"
            )
        case "NotImplemented":
            return UnknownToService(f"{doing}: the service does not know a part of the request: {said}")
    if code in _CONFLICTS:
        return Transient(f"another write was under way ({code})", doubtful=False)
    if code in _NOT_SERVED or status == 429:
        return Transient(f"{status} {code}: {said}", doubtful=False)
    if code in _DAMAGED:
        return Transient(f"the bytes were damaged in transit: {said}", doubtful=False)
    if code in _RETRIED or status in (408, 500, 502, 503, 504):
        return Transient(f"{status} {code}: {said}", doubtful=True)
    if code in _EXPIRED:
        return AccessDenied(f"{doing}: the credentials have expired ({code}); {LOG_IN}")
    if code in _UNKNOWN_KEY:
        return AccessDenied(f"{doing}: the service does not know the access key ({code}); {LOG_IN}")
    if code in _OTHER_REGION:
        return StoreError(f"{doing}: {_other_region(failure, place, said)}")
    if status in (401, 403):
        return AccessDenied(_denied(said, place, doing))
    return StoreError(f"{doing}: the service refused it with {status} {code}: {said}")


def _no_bucket(place: Place) -> str:
    if place.endpoint:
        return (
            f"there is no bucket s3://{place.bucket} at {place.endpoint}; check its name and AWS_ENDPOINT_URL, or "
            f"create it with `aws s3 mb s3://{place.bucket}`"
        )
    return f"there is no bucket s3://{place.bucket}; check its name, or create it with `aws s3 mb s3://{place.bucket}`"


def _other_region(failure: errors.ClientError, place: Place, said: str) -> str:
    headers = failure.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    region = failure.response.get("Error", {}).get("Region") or headers.get("x-amz-bucket-region", "")
    where = f"in {region}" if region else "in another region"
    return f"s3://{place.bucket} is {where} ({said}); set AWS_REGION={region or 'REGION'}, or `region` in ~/.aws/config"


def _denied(said: str, place: Place, doing: str) -> str:
    action, caller = _ACTION.search(said), _CALLER.search(said)
    who = caller.group() if caller else "the caller"
    if action is None:
        return (
            f"{doing}: access was refused: {said}; the bucket may belong to somebody else: check its name, the "
            "identity (`aws sts get-caller-identity`), and the policies of both (docs/how-to/run-on-s3.md has one)"
        )
    if action.group(1) == "kms":
        return (
            f"{doing}: {who} may not use the bucket's KMS key ({action.group()}); allow kms:Decrypt and "
            "kms:GenerateDataKey on it"
        )
    return (
        f"{doing}: {who} lacks {action.group()} on s3://{place.bucket}; add it to the identity's policy, and to the "
        "bucket's if it belongs to another account (docs/how-to/run-on-s3.md has one)"
    )
