"""The settings that the S3 client finds in its environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from bastion.adapters.s3.client import new_client
from bastion.core.errors import StoreError

KEYS = {"aws_access_key_id": "a", "aws_secret_access_key": "b", "region_name": "us-east-1"}


@pytest.mark.parametrize("variable", ["AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE"])
@pytest.mark.parametrize(
    ("content", "why"), [(None, "No such file or directory"), ("junk", "it has no certificate in PEM")]
)
def test_certificates_that_cannot_be_read_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, content: str | None, why: str
) -> None:
    # A connection would fail, as if the service did not answer, and be tried again for minutes.
    path = tmp_path / "bundle.pem"
    if content is not None:
        path.write_text(content)
    monkeypatch.delenv("AWS_CA_BUNDLE", raising=False)  # the machine's own goes first
    monkeypatch.setenv(variable, str(path))
    with pytest.raises(StoreError) as refusal:
        new_client(**KEYS)
    assert f"the certificates in {path} cannot be read ({why}); correct AWS_CA_BUNDLE" in str(refusal.value)


def test_an_endpoint_without_tls_needs_no_certificates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", "/missing")
    assert new_client(endpoint_url="http://127.0.0.1:9000", **KEYS) is not None
