"""Other users of the machine at a storage endpoint that listens on loopback, such as the local bastion's."""

from __future__ import annotations

import encodings.idna  # noqa: F401 - the other user may not be able to load it
import http.client
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bastion.emulators.gcs import address
from tests.support.unix_users import MALLORY, as_root, call_as
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, as_root]

SPEC = "/team/alice-bastion/jobs/active/mine"


def asks(port: int, method: str, body: bytes | None = None) -> Callable[[], int]:
    """A request as any HTTP client sends it; the status, or 0 if the connection ends without an answer."""

    def ask() -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        try:
            connection.request(method, SPEC, body=body)
            return connection.getresponse().status
        except (ConnectionError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    return ask


def test_another_user_neither_reads_nor_writes_the_buckets_of_an_endpoint(tmp_path: Path) -> None:
    buckets, log = tmp_path / "buckets", tmp_path / "log"
    with log.open("wb") as output:
        # As `bastion local up` starts it.
        process = subprocess.Popen(
            [sys.executable, "-m", "bastion.emulators.gcs", f"--dir={buckets}", "--bucket=team"],
            stdout=output, stderr=output,
        )  # fmt: skip
    try:
        until(lambda: address.locate(buckets) is not None)
        found = address.locate(buckets)
        assert found is not None
        port = int(found.url.rpartition(":")[2])
        assert call_as(0, asks(port, "PUT", b"mine")) == 200
        assert call_as(0, asks(port, "GET")) == 200
        for method in ("GET", "PUT", "DELETE"):
            assert call_as(MALLORY, asks(port, method, b"forged" if method == "PUT" else None)) == 0
        stored = buckets / SPEC.removeprefix("/")
        assert stored.read_bytes() == b"mine"
        assert "its owner is another user, or unknown" in log.read_text()
        # Nor past the endpoint.
        assert (buckets / "team").stat().st_mode & 0o007 == 0
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
