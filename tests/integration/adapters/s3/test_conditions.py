"""A service that ignores a condition is refused by the condition's name."""

from __future__ import annotations

import pytest

from bastion.core.errors import Refused, StoreError
from tests.support.s3_server import S3Server
from tests.support.s3_stub import S3Stub, refusal


def test_a_service_that_applies_every_condition_is_accepted_and_nothing_is_left_of_the_proof(
    s3_server: S3Server, stub: S3Stub
) -> None:
    real = s3_server.store(s3_server.new_bucket())
    for store in (real, stub.store(stub.new_bucket())):
        store.prove_conditions("team-bastion/conditions/")
        assert [*store.list("")] == []


@pytest.mark.parametrize(
    ("ignored", "named"),
    [
        ("PUT If-None-Match", "If-None-Match on PutObject"),
        ("PUT If-Match", "If-Match on PutObject"),
        # As moto 5.2.5 does.
        ("POST If-Match", "If-Match on CompleteMultipartUpload"),
        # As MinIO does.
        ("DELETE If-Match", "If-Match on DeleteObject"),
    ],
)
def test_a_service_that_ignores_one_is_refused_by_its_name(stub: S3Stub, ignored: str, named: str) -> None:
    stub.ignored = {ignored}
    bucket = stub.new_bucket()
    with pytest.raises(Refused) as refused:
        stub.store(bucket).prove_conditions("team-bastion/conditions/")
    assert f"s3://{bucket} at {stub.url} ignores {named}, so writers would overwrite" in str(refused.value)
    assert stub.buckets[bucket] == {}


def test_a_condition_that_the_service_does_not_know_is_named_as_well(stub: S3Stub) -> None:
    bucket = stub.new_bucket()
    stub.before = lambda request: refusal(501, "NotImplemented", "If-Match") if request.method == "DELETE" else None
    with pytest.raises(Refused, match="ignores If-Match on DeleteObject, so writers"):
        stub.store(bucket).prove_conditions("team-bastion/conditions/")


def test_a_service_that_refuses_what_is_true_is_not_accepted_either(stub: S3Stub) -> None:
    stub.before = lambda request: refusal(412, "PreconditionFailed") if "If-Match" in request.headers else None
    with pytest.raises(StoreError, match="cannot be written by its own ETag"):
        stub.store(stub.new_bucket()).prove_conditions("team-bastion/conditions/")


def test_all_that_are_ignored_are_named_at_once(stub: S3Stub) -> None:
    stub.ignored = {"PUT If-Match", "POST If-Match", "DELETE If-Match"}
    with pytest.raises(Refused, match=r"on PutObject and If-Match on CompleteM.* and If-Match on DeleteObject,"):
        stub.store(stub.new_bucket()).prove_conditions("x/")
