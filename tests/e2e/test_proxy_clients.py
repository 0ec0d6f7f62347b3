"""The clients that jobs use, unmodified, through `bastion proxy run` against the storage endpoint on this machine."""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from bastion.emulators.gcs.api import handler
from bastion.emulators.gcs.buckets import Buckets
from bastion.emulators.gcs.uploads import Uploads
from bastion.net.http1 import HttpServer
from tests.e2e.proxied_session import MARK
from tests.support.gsutil_session import Gsutil, session
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
SESSION = Path(__file__).parent / "proxied_session.py"
BASTION = [sys.executable, "-c", "import sys; from bastion.cli.main import main; sys.exit(main())"]


class Proxied:
    """A storage endpoint with the buckets `vault`, which is mapped, and `lake`, and a proxy before it.

    Attributes:
        endpoint: The address of the storage endpoint, past the proxy.
        environment: Of a client.
        buckets: The folder in which what is stored lies as files.
        log: The file of what the proxy says.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.buckets, self.log = folder, folder / "buckets", folder / "proxy.log"
        buckets = Buckets(self.buckets)
        for name in ("vault", "lake"):
            buckets.create(name)
        self._endpoint = HttpServer(handler(buckets, Uploads(buckets)))
        self._endpoint.open()
        self.endpoint = f"http://127.0.0.1:{self._endpoint.port}"
        base = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        self.keyring = folder / "keyring.json"
        subprocess.run(
            [*BASTION, "proxy", "keyring", "create", f"--key={KEY}", str(self.keyring)], env=base, check=True
        )
        certificates = folder / "certs"
        self.proxy_environment = {
            **base,
            "GCP_KMS_BUCKET_KEY_MAPPING": f"vault:{KEY}",
            "GCS_PROXY_KEYRING": str(self.keyring),
            "GCS_PROXY_STATE_PATH": str(folder / "state"),
            "GCS_PROXY_LISTEN": "127.0.0.1:0",
            "GCS_PROXY_UPSTREAM": self.endpoint,
            "PROXY_CERT_PATH": str(certificates),
            "DEBUG_LEVEL": "1",
            # A client's own setting, which the proxy's exports keep.
            "FSSPEC_GS": json.dumps({"token": "anon"}),
        }
        with self.log.open("wb") as log:
            self.proxy = subprocess.Popen(
                [*BASTION, "proxy", "run"], env=self.proxy_environment, stdout=subprocess.PIPE, stderr=log
            )
        until(lambda: self.proxy.poll() is not None or (certificates / "mitmproxy-ca-cert.pem").exists())
        assert self.proxy.poll() is None, self.log.read_text()
        assert self.proxy.stdout is not None
        told = [self.proxy.stdout.readline().decode() for _ in range(11)]
        exported = dict(pair.split("=", 1) for line in told for pair in shlex.split(line.removeprefix("export ")))
        self.environment = {
            **base,
            **exported,
            # Whoever finds this looks for no credentials; the address is that of the service itself.
            "STORAGE_EMULATOR_HOST": "https://storage.googleapis.com",
            "GOOGLE_AUTH_TOKEN_FOR_TESTING": "a-secret-token",
        }

    def run(self, part: str) -> None:
        folder = self.folder / part
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, str(SESSION), part, str(folder)],
            env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=200,
        )  # fmt: skip
        assert done.returncode == 0, f"{done.stdout.decode()[-3000:]}\n{self.log.read_text()[-3000:]}"

    def requests(self) -> requests.Session:
        """A client in this process."""
        session = requests.Session()
        session.trust_env = False
        session.proxies = {"https": self.environment["https_proxy"]}
        session.verify = self.environment["REQUESTS_CA_BUNDLE"]
        return session

    def close(self) -> None:
        self.proxy.terminate()
        try:
            assert self.proxy.wait(60) == 0
        finally:
            self.proxy.kill()
            self.proxy.communicate()
            self._endpoint.close()


@pytest.fixture(scope="module")
def proxied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxied]:
    made = Proxied(tmp_path_factory.mktemp("proxied"))
    yield made
    made.close()


PARTS = ["google_cloud_storage", "tensorstore", "gcsfs", "orbax", "tensorflow", "xml"]
# Not among the packages of the tests: TensorFlow alone is larger than all of them.
OPTIONAL = {"tensorflow"}


@pytest.mark.parametrize("part", PARTS)
def test_a_client_works_unmodified_and_leaves_no_plaintext_in_the_bucket(proxied: Proxied, part: str) -> None:
    if part in OPTIONAL and importlib.util.find_spec(part) is None:
        pytest.skip(f"{part} is not installed")

    proxied.run(part)

    stored = [path for path in (proxied.buckets / "vault").rglob("*") if path.is_file()]
    assert stored or part in ("gcsfs", "xml")
    assert not [path for path in stored if MARK in path.read_bytes()]


def test_nothing_secret_is_in_the_proxys_log(proxied: Proxied) -> None:
    log = proxied.log.read_text()

    assert "ready on" in log
    secrets = [
        version
        for key in json.loads(proxied.keyring.read_text())["keys"].values()
        for version in key["versions"].values()
    ]
    for secret in ("a-secret-token", "upload_id", "Bearer", MARK.decode(), "PRIVATE KEY", *secrets):
        assert secret not in log


def test_the_doctor_finds_a_client_well_equipped_and_says_what_one_without_lacks(proxied: Proxied) -> None:
    def examined(environment: dict[str, str]) -> tuple[int, str]:
        done = subprocess.run(
            [*BASTION, "proxy", "doctor"], env=environment, stdout=subprocess.PIPE, check=False, text=True
        )
        return done.returncode, done.stdout

    code, said = examined(proxied.environment)
    assert (code, "BAD" in said) == (0, False), said
    assert "bastion storage proxy CA" in said
    bare = {name: value for name, value in proxied.environment.items() if name not in ("https_proxy", "CURL_CA_BUNDLE")}
    code, said = examined(bare)
    assert code == 1
    assert "https_proxy is not set" in said
    assert "CURL_CA_BUNDLE is not set" in said


def test_after_a_rotation_what_is_stored_is_put_under_the_new_version_and_stays_readable(proxied: Proxied) -> None:
    def bastion(*words: str) -> str:
        environment = {**proxied.proxy_environment, "STORAGE_EMULATOR_HOST": proxied.endpoint}
        done = subprocess.run(
            [*BASTION, "proxy", *words], env=environment, stdout=subprocess.PIPE, check=False, text=True
        )
        assert done.returncode == 0, done.stdout
        return done.stdout

    def counted(*flags: str) -> dict[str, int]:
        found = json.loads(bastion("rewrap", "gs://vault/rotation/", "--output=json", *flags))
        assert isinstance(found, dict)
        return found

    url = "https://storage.googleapis.com/vault/rotation"
    client = proxied.requests()
    for number in range(3):
        assert client.put(f"{url}/{number}", data=MARK).status_code == 200
    requests.put(f"{proxied.endpoint}/vault/rotation/plain", data=b"plaintext", timeout=10)
    assert counted() == {"done": 0, "current": 3, "plaintext": 1, "changed": 0, "failed": 0}
    bastion("keyring", "rotate", f"--key={KEY}", str(proxied.keyring))

    assert counted("--dry_run")["done"] == 3
    assert counted() == {"done": 3, "current": 0, "plaintext": 1, "changed": 0, "failed": 0}

    assert counted() == {"done": 0, "current": 3, "plaintext": 1, "changed": 0, "failed": 0}
    seen = requests.get(f"{proxied.endpoint}/vault/rotation/1", timeout=10)
    assert seen.headers["x-goog-meta-gcsproxy-kek-version"] == "2"
    assert client.get(f"{url}/1").content == MARK
    assert client.get(f"{url}/plain").status_code == 403


@pytest.mark.timeout(600)
def test_gsutil_works_unmodified_and_leaves_no_plaintext_in_the_bucket(proxied: Proxied) -> None:
    folder = proxied.folder / "gsutil"
    for name in ("program", "files"):
        (folder / name).mkdir(parents=True)
    gsutil = Gsutil(
        folder / "program", ca_file=proxied.environment["REQUESTS_CA_BUNDLE"], environment=proxied.environment
    )

    session(gsutil, "vault", folder / "files", mark=MARK, composes=False)
    gsutil.run("cp", str(folder / "files" / "tree" / "small"), "gs://vault/gsutil/small")

    stored = [path for path in (proxied.buckets / "vault").rglob("*") if path.is_file()]
    assert stored
    assert not [path for path in stored if MARK in path.read_bytes()]
