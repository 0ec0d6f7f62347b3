"""`bastion proxy run`, `rewrap` and `doctor` as programs: how they end when something is not as it must be."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import requests

from bastion.adapters.kms import keyring
from bastion.emulators.gcs.api import handler
from bastion.emulators.gcs.buckets import Buckets
from bastion.emulators.gcs.uploads import Uploads
from bastion.net.http1 import HttpServer, Response

pytestmark = pytest.mark.e2e

KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"


def proxy(tmp_path: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """A command of `bastion proxy` with the environment of one that would work, but for what is given."""
    ring = tmp_path / "keyring.json"
    if not ring.exists():
        keyring.create(ring, KEY)
    environment = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    environment |= {
        "BASTION_HOME": str(tmp_path / "home"),
        "GCP_KMS_BUCKET_KEY_MAPPING": f"vault:{KEY}",
        "GCS_PROXY_KEYRING": str(ring),
        "GCS_PROXY_LISTEN": "127.0.0.1:0",
        "PROXY_CERT_PATH": str(tmp_path / "certs"),
        **variables,
    }
    return subprocess.run(
        [sys.executable, "-m", "bastion.cli.main", "proxy", *words],
        env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"GCP_KMS_BUCKET_KEY_MAPPING": ""}, "GCP_KMS_BUCKET_KEY_MAPPING is not set"),
        ({"GCP_KMS_BUCKET_KEY_MAPPING": "vault"}, "is not BUCKET[/PREFIX]:KEY"),
        ({"GCP_KMS_BUCKET_KEY_MAPPING": f"vault:{KEY}2"}, "has no key"),
        ({"GCS_PROXY_KEYRING": "/nowhere/ring"}, "keyring /nowhere/ring does not exist"),
        ({"GCS_PROXY_DISABLE_ENCRYPTION": "maybe"}, "write true or false"),
    ],
    ids=["no mapping", "no key", "unknown key", "no keyring", "no switch"],
)
def test_a_proxy_that_could_not_do_its_work_ends_with_64_and_publishes_nothing(
    tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    done = proxy(tmp_path, "run", **variables)

    assert done.returncode == 64
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "certs").exists()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = proxy(tmp_path, "run", GCS_PROXY_LISTEN=address)

    assert done.returncode == 64
    assert f"cannot listen on {address}" in done.stderr
    assert not (tmp_path / "certs").exists()


def test_a_bucket_that_is_not_mapped_is_not_rewrapped(tmp_path: Path) -> None:
    done = proxy(tmp_path, "rewrap", "gs://lake")

    assert done.returncode == 64
    assert "does not name the bucket 'lake'" in done.stderr


def test_rewrapping_names_what_cannot_be_opened_and_goes_on(tmp_path: Path) -> None:
    buckets = Buckets(tmp_path / "buckets")
    buckets.create("vault")
    server = HttpServer(handler(buckets, Uploads(buckets)))
    server.open()
    try:
        endpoint = f"http://127.0.0.1:{server.port}"
        for name, metadata in (("broken", {"x-goog-meta-gcsproxy-version": "1"}), ("plain", {})):
            put = requests.put(f"{endpoint}/vault/{name}", data=b"x", headers=metadata, timeout=10)
            assert put.status_code == 200

        done = proxy(tmp_path, "rewrap", "gs://vault", "--output=json", STORAGE_EMULATOR_HOST=endpoint)
    finally:
        server.close()

    assert done.returncode == 1
    assert json.loads(done.stdout) == {"done": 0, "current": 0, "plaintext": 1, "changed": 0, "failed": 1}
    assert "bastion: broken: the metadata's gcsproxy-" in done.stderr


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, "https_proxy is not set"),
        ({"https_proxy": "nonsense"}, "use http://HOST:PORT"),
        ({"https_proxy": "http://127.0.0.1:1"}, "nothing answers on 127.0.0.1:1"),
        ({"no_proxy": "googleapis.com"}, "bypasses the proxy; remove it"),
        ({"SSL_CERT_FILE": "/nowhere"}, "it cannot be read as certificates"),
        ({"GCS_PROXY_KEYRING": "/nowhere"}, f"{KEY} cannot be used"),
    ],
    ids=["unset", "malformed", "nobody there", "exempt", "no bundle", "no keyring"],
)
def test_the_doctor_says_what_is_wrong(tmp_path: Path, variables: dict[str, str], said: str) -> None:
    done = proxy(tmp_path, "doctor", **variables)

    assert done.returncode == 1
    assert said in done.stdout
    assert "Traceback" not in done.stderr


def test_the_doctor_says_whom_a_proxy_must_name_that_does_not_let_in(tmp_path: Path) -> None:
    server = HttpServer(lambda _: Response(status=200), admit=lambda _peer, _own: False)
    server.open()
    try:
        address = f"127.0.0.1:{server.port}"
        done = proxy(tmp_path, "doctor", https_proxy=f"http://{address}")
    finally:
        server.close()

    assert done.returncode == 1
    assert f"the listener on {address} closes the connection at once" in done.stdout
    assert "GCS_PROXY_USERS" in done.stdout
