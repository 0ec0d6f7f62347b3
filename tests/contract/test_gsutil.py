"""gsutil, unmodified, against the storage endpoint over a real socket."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bastion.emulators.gcs.server import StorageEndpoint
from tests.support.gsutil_session import Gsutil, session


@pytest.mark.timeout(600)
def test_gsutil_works_unmodified_in_both_directions(tmp_path: Path) -> None:
    for name in ("gsutil", "files"):
        (tmp_path / name).mkdir()
    with StorageEndpoint(tmp_path / "buckets", https_port=0, buckets=["lake"]) as endpoint:
        address = endpoint.address
        gsutil = Gsutil(
            tmp_path / "gsutil",
            ca_file=address.ca_file,
            environment={name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
            endpoint=address.https_url.removeprefix("https://"),
        )
        session(gsutil, "lake", tmp_path / "files")
