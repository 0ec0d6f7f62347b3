"""What a user reads when S3 refuses: what, why, and what to do."""

from __future__ import annotations

import pytest

from bastion.adapters.bucket_requests.retry import Patience
from bastion.adapters.s3.client import shared_client
from bastion.adapters.s3.errors import UnknownToService
from bastion.adapters.s3.store import S3Store
from bastion.core.errors import AccessDenied, Refused, StoreError, StoreUnavailable
from bastion.net.http1 import Response
from tests.support.s3_stub import S3Stub, refusal

HASTY = Patience(deadline_seconds=0.5, first_pause_seconds=0.01, longest_pause_seconds=0.02)
ARN = "arn:aws:sts::123456789012:assumed-role/bastion/i-1"


@pytest.mark.parametrize(
    ("answer", "error", "parts"),
    [
        (
            refusal(400, "ExpiredToken", "The provided token has expired."),
            AccessDenied,
            ["the credentials have expired", "aws sso login"],
        ),
        (refusal(403, "InvalidAccessKeyId"), AccessDenied, ["does not know the access key", "AWS_PROFILE"]),
        (refusal(403, "SignatureDoesNotMatch"), AccessDenied, ["secret key"]),
        (refusal(403, "RequestTimeTooSkewed"), AccessDenied, ["clock is wrong", "timedatectl"]),
        (
            refusal(403, "AccessDenied", f"User: {ARN} is not authorized to perform: s3:PutObject on resource: x"),
            AccessDenied,
            [ARN, "lacks s3:PutObject on s3://", "policy"],
        ),
        (
            refusal(403, "AccessDenied", f"User: {ARN} is not authorized to perform: kms:GenerateDataKey on x"),
            AccessDenied,
            ["may not use the bucket's KMS key", "kms:Decrypt"],
        ),
        (
            refusal(403, "AccessDenied", "Access Denied"),
            AccessDenied,
            ["may belong to somebody else", "aws sts get-caller-identity"],
        ),
        (
            refusal(400, "IllegalLocationConstraintException", "x", x_amz_bucket_region="eu-west-1"),
            StoreError,
            ["is in eu-west-1", "AWS_REGION=eu-west-1"],
        ),
        (
            refusal(403, "InvalidObjectState", "not valid for the object's storage class"),
            StoreError,
            ["is archived (not valid for the object's storage class)", "aws s3api restore-object"],
        ),
        (refusal(501, "NotImplemented", "If-Match"), UnknownToService, ["does not know a part of the request"]),
        (refusal(400, "Strange", "what"), StoreError, ["refused it with 400 Strange: what"]),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_a_refusal_says_why_and_what_to_do(
    stub: S3Stub, answer: Response, error: type[Exception], parts: list[str]
) -> None:
    store = stub.store(stub.new_bucket(), HASTY)
    stub.before = lambda _: answer
    with pytest.raises(error) as raised:
        store.put("team-bastion/a", b"1", generation=0)
    assert "writing s3://" in str(raised.value)
    for part in parts:
        assert part in str(raised.value)


def test_the_reason_for_a_refused_head_is_asked_for(stub: S3Stub) -> None:
    store = stub.store(stub.new_bucket(), HASTY)
    stub.before = lambda request: refusal(400, "ExpiredToken", "expired", bare=request.method == "HEAD")
    with pytest.raises(AccessDenied, match=r"looking up s3://.*credentials have expired"):
        store.head("a")


def test_a_write_whose_time_may_not_be_looked_up_is_said_to_have_landed(stub: S3Stub) -> None:
    store = stub.store(stub.new_bucket(), HASTY)
    stub.before = lambda request: None if request.method == "PUT" else refusal(403, "AccessDenied", bare=True)
    with pytest.raises(AccessDenied, match=r"^s3://.*/a was written, but its time is unknown: looking up"):
        store.put("a", b"1", generation=0)
    stub.before = lambda _: None
    assert store.head("a") is not None


def test_a_missing_bucket_is_no_missing_object(stub: S3Stub) -> None:
    with pytest.raises(StoreError, match=r"there is no bucket s3://nowhere at http.*; check its name and AWS_ENDPOINT"):
        stub.store("nowhere").head("a")


@pytest.mark.parametrize(("status", "code"), [(503, "SlowDown"), (500, "InternalError"), (409, "OperationAborted")])
def test_what_may_pass_is_tried_again_until_the_time_is_over(stub: S3Stub, status: int, code: str) -> None:
    store = stub.store(stub.new_bucket(), HASTY)
    stub.before = lambda _: refusal(status, code)
    with pytest.raises(StoreUnavailable, match=r"after \d+ tries"):
        [*store.list("")]


def test_a_bucket_of_s3_express_is_refused(stub: S3Stub) -> None:
    with pytest.raises(Refused, match="directory bucket"):
        S3Store("team--use1-az4--x-s3", client=stub.client())


def test_without_credentials_the_message_says_where_they_come_from(
    stub: S3Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    client = stub.client(aws_access_key_id=None, aws_secret_access_key=None)
    with pytest.raises(AccessDenied, match=r"there are no credentials for s3://team .*aws configure"):
        S3Store("team", client=client).head("a")
    monkeypatch.setenv("AWS_PROFILE", "unknown")
    with pytest.raises(AccessDenied, match=r"unknown.*AWS_PROFILE"):
        shared_client()
