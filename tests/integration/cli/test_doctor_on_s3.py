"""`bastion doctor` at a ROOT on S3."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from bastion.cli.main import main
from bastion.net.http1 import Request, Response
from tests.support.s3_stub import S3Stub, refusal

WITHOUT_A_DAEMON = 2


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Stub]:
    stub = S3Stub()
    stub.open()
    monkeypatch.setenv("BASTION_HOME", str(tmp_path_factory.mktemp("home")))
    monkeypatch.setenv("AWS_ENDPOINT_URL", stub.url)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield stub
    stub.close()


def doctor(stub: S3Stub, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], list[str]]:
    """Findings, and what was not checked."""
    bucket = stub.new_bucket()
    capsys.readouterr()
    assert main(["doctor", f"--root=s3://{bucket}/team-bastion", "--output=json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert stub.buckets[bucket] == {}
    return [found["what"] for found in document["findings"]], [one["what"] for one in document["unchecked"]]


def test_a_service_that_keeps_its_conditions_lacks_a_daemon_only(
    stub: S3Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    found, unchecked = doctor(stub, capsys)
    assert len(found) == WITHOUT_A_DAEMON
    assert "who may do what" in unchecked


def test_a_condition_that_is_ignored_and_versions_are_named_once(
    stub: S3Stub, capsys: pytest.CaptureFixture[str]
) -> None:
    def versioned(request: Request) -> Response | None:
        if "versioning" not in request.query:
            return None
        return Response(status=200, body=b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>")

    stub.before = versioned
    found, _ = doctor(stub, capsys)
    assert ["keeps versions" in what for what in found] == [False, False, True]
    stub.ignored = {"DELETE If-Match"}
    found, _ = doctor(stub, capsys)
    assert ["ignores If-Match on DeleteObject" in what for what in found] == [False, False, True]


def test_who_may_not_write_is_told_so(stub: S3Stub, capsys: pytest.CaptureFixture[str]) -> None:
    stub.before = lambda request: refusal(403, "AccessDenied") if request.method == "PUT" else None
    found, unchecked = doctor(stub, capsys)
    assert len(found) == WITHOUT_A_DAEMON
    assert "whether the service keeps the conditions of writes" in unchecked
