"""A job on an emulated slice whose storage is encrypted: the real proxy beside it, the storage endpoint behind it."""

from __future__ import annotations

import collections
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from bastion import processes
from bastion.adapters.kms import keyring
from tests.support.extras import needs
from tests.support.storage_machine import BASTION, StorageMachine
from tests.support.waiting import until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(450)]

KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
SECRET = "the weights are 42 and 43"

# Every host stores a small and a large object, waits for a word, and reads what it stored.
PROGRAM = """
import os, time
from google.auth.credentials import AnonymousCredentials
from google.cloud import storage

me = os.environ["BASTION_HOST_INDEX"]
bucket = storage.Client(project="p", credentials=AnonymousCredentials()).bucket("lake")
large = os.urandom(1024) * (12 * 1024)
bucket.blob(f"ckpt/{me}/small").upload_from_string(SECRET)
bucket.blob(f"ckpt/{me}/large").upload_from_string(large)
print("stored", flush=True)
while not bucket.blob("plain/go").exists():
    time.sleep(0.1)
assert bucket.get_blob(f"ckpt/{me}/large").size == len(large)
assert bucket.blob(f"ckpt/{me}/large").download_as_bytes() == large
bucket.blob(f"ckpt/{me}/last").upload_from_string(SECRET)
print(bucket.blob(f"ckpt/{me}/small").download_as_text())
"""


class Machine(StorageMachine):
    """A daemon on a folder, a storage endpoint for what the jobs store, and a key."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, bucket="lake", root=str(folder / "bucket" / "e2e-bastion"))
        (folder / "bucket").mkdir()
        self.lake = self.buckets / "lake"
        self.keyring = folder / "keyring.json"
        keyring.create(self.keyring, KEY)

    def launch(self, name: str, program: str, *flags: str, ring: Path | None = None) -> subprocess.Popen[str]:
        """Begins `launch --wait` of a Python program on two hosts, encrypted."""
        return subprocess.Popen(
            [
                *(*BASTION, "launch", f"--name={name}", "--wait"),
                *("--instance_type=tpu-v4-16", f"--proxy=lake/ckpt/:{KEY}"),
                *(f"--env=GCS_PROXY_KEYRING={ring or self.keyring}", *flags, "--", "python3", "-c", program),
            ],
            env=self.environment,
            cwd=self.home.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def proxies(self) -> dict[bytes, list[processes.ProcessId]]:
        """The processes of the proxies that run on hosts of this home, by the address of each; the first one first."""
        found = collections.defaultdict(list)
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                environment = (folder / "environ").read_bytes()
                words = (folder / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            # Not while it is on its way to being one.
            ours = str(self.home.path).encode() in environment
            if ours and b"bastion.wiring.proxy_main" in words and b"-S" not in words:
                process = processes.ProcessId.of(int(folder.name))
                address = environment.partition(b"GCS_PROXY_LISTEN=")[2].partition(b"\0")[0]
                found[address] += [process] if process is not None else []
        return {address: sorted(members, key=lambda process: process.pid) for address, members in found.items()}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    machine = Machine(tmp_path_factory.mktemp("sidecar"))
    try:
        machine.start()
        yield machine
    finally:
        machine.stop()


def test_what_a_job_stores_is_ciphertext_though_its_proxy_is_killed_in_the_middle(machine: Machine) -> None:
    job = machine.launch("train", f"SECRET = {SECRET!r}\n{PROGRAM}")
    try:
        until(lambda: all((machine.lake / "ckpt" / host / "large").exists() for host in "01"), 180)
        first, second = machine.proxies().values()
        assert min(len(first), len(second)) >= 2
        # Of one host the process that was started, of the other one that serves: then all end.
        first[0].signal(9)
        second[-1].signal(9)
        (machine.lake / "plain").mkdir()
        (machine.lake / "plain" / "go").touch()
        out, err = job.communicate(timeout=180)
    finally:
        job.kill()
    assert job.returncode == 0, out + err
    assert out.count(SECRET) == 2
    assert err.count("the storage proxy was killed by signal 9; restarting it") == 1, err
    assert err.count("ended unexpectedly (-9); stopping all); restarting it") == 1, err

    stored = [path for path in machine.lake.rglob("*") if path.is_file()]
    assert len([path for path in stored if "ckpt" in path.parts]) >= 6
    assert [path for path in stored if b"the weights" in path.read_bytes()] == []
    assert (machine.lake / "ckpt" / "0" / "small").stat().st_size == len(SECRET) + 40 + 16

    said = machine.bastion("logs", "train", "--proxy")
    assert said.returncode == 0
    assert said.stderr.count("ready on 127.100.") >= 4
    assert SECRET not in said.stderr
    assert "ready on" not in machine.bastion("logs", "train").stderr
    until(lambda: machine.proxies() == {})


def test_a_key_that_cannot_be_used_is_the_users_failure_and_nothing_is_stored(machine: Machine, tmp_path: Path) -> None:
    job = machine.launch("no-key", "raise SystemExit(5)", ring=tmp_path / "missing.json")
    _, err = job.communicate(timeout=180)
    assert job.returncode == 64, err
    assert "ProxyRefused" in err
    # The command never ran.
    assert "exited with 5" not in err


def test_hosts_find_each_other_beside_their_proxies_and_nothing_leads_around_these(machine: Machine) -> None:
    needs("jax")
    program = (
        "import os, jax; print(jax.device_count(), jax.process_count(), "
        "[name for name in os.environ if 'STORAGE_EMULATOR' in name or 'GCS_HTTP' in name])"
    )
    job = machine.launch("around", program)
    out, err = job.communicate(timeout=180)
    assert job.returncode == 0, err
    assert out.count("8 2 []") == 2, out
    assert "they bypass the storage proxy" in err
