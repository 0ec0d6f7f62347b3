"""The storage endpoint as a program and in this process: start, use, kill, restart, end; HTTPS; faults; limits."""

from __future__ import annotations

import json
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bastion.adapters.folder.store import DirectoryStore
from bastion.core.errors import Refused
from bastion.emulators.gcs.address import StorageAddress, locate, state_of
from bastion.emulators.gcs.fault_rules import parse_flag
from bastion.emulators.gcs.faults import Faults
from bastion.emulators.gcs.server import StorageEndpoint
from bastion.emulators.state_folder import EmulatorRunning
from tests.support.waiting import until

pytestmark = pytest.mark.e2e

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts the program on `tmp_path / "buckets"`; whatever still runs at the end is killed."""
    processes: list[subprocess.Popen[bytes]] = []

    def begin(*arguments: str, program: tuple[str, ...] = ("-m", "bastion.emulators.gcs")) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, *program, *arguments, f"--dir={tmp_path / 'buckets'}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        processes.append(process)
        return process

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def _located(folder: Path, process: subprocess.Popen[bytes]) -> StorageAddress:
    """Waits until this very process is ready."""

    def ready() -> bool:
        assert process.poll() is None, "it ended before it was ready"
        address = locate(folder)
        return address is not None and address.process.pid == process.pid

    until(ready)
    address = locate(folder)
    assert address is not None
    return address


def _put(url: str, bucket: str, name: str, data: bytes) -> None:
    request = urllib.request.Request(f"{url}/{bucket}/{name}", data=data, method="PUT")
    with urllib.request.urlopen(request, timeout=10):
        pass


def _get(url: str, bucket: str, name: str, *, ca_file: str = "") -> bytes:
    context = ssl.create_default_context(cafile=ca_file) if ca_file else None
    with urllib.request.urlopen(f"{url}/{bucket}/{name}", timeout=10, context=context) as answer:
        content: bytes = answer.read()
        return content


def test_the_program_serves_says_where_and_ends_in_order(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "buckets"
    process = start("emulator", "gcs", "--bucket=team", "--https_port=0", program=("-m", "bastion.cli.main"))
    address = _located(folder, process)
    _put(address.url, "team", "a/b", b"content")
    assert (folder / "team" / "a" / "b").read_bytes() == b"content"
    (folder / "team" / "by-hand").write_bytes(b"copied in")
    assert _get(address.https_url, "team", "by-hand", ca_file=address.ca_file) == b"copied in"
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"export STORAGE_EMULATOR_HOST={address.url}\n".encode() in said
    assert address.ca_file.encode() in said
    assert locate(folder) is None
    assert not (state_of(folder) / "endpoint.json").exists()


def test_after_a_kill_the_next_one_serves_the_same_at_the_same_places(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "buckets"
    first = start("--bucket=team", "--https-port=0")
    before = _located(folder, first)
    _put(before.url, "team", "a", b"acknowledged")
    first.kill()
    first.wait()
    assert locate(folder) is None
    after = _located(folder, start("--bucket=team", "--https-port=0"))
    assert (after.url, after.https_url, after.ca_file) == (before.url, before.https_url, before.ca_file)
    assert _get(after.https_url, "team", "a", ca_file=before.ca_file) == b"acknowledged"


def test_a_folder_has_one_endpoint_and_the_second_says_so(start: Start, tmp_path: Path) -> None:
    with StorageEndpoint(tmp_path / "buckets") as endpoint:
        second = start()
        _, said = second.communicate(timeout=60)
        assert second.returncode == 1
        assert b"serves" in said and b"already" in said and b"Traceback" not in said
        with pytest.raises(EmulatorRunning):
            StorageEndpoint(tmp_path / "buckets").open()
        assert locate(tmp_path / "buckets") == endpoint.address


@pytest.mark.parametrize(
    ("arguments", "named"), [(("--fault=418",), b"--fault=418"), (("--bucket=NOT A BUCKET",), b"NOT A BUCKET")]
)
def test_what_cannot_be_is_refused_in_a_line(start: Start, arguments: tuple[str, ...], named: bytes) -> None:
    process = start(*arguments)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 64
    assert named in said and b"Traceback" not in said


def test_a_port_that_is_taken_is_refused_and_the_folder_is_free_again(tmp_path: Path) -> None:
    with StorageEndpoint(tmp_path / "one") as endpoint:
        port = int(endpoint.url.rpartition(":")[2])
        with pytest.raises(Refused, match=str(port)):
            StorageEndpoint(tmp_path / "two", port=port).open()
        with StorageEndpoint(tmp_path / "two") as other:
            assert other.url != endpoint.url


def test_the_last_port_is_given_up_when_somebody_else_has_it(tmp_path: Path) -> None:
    first = StorageEndpoint(tmp_path / "one")
    first.open()
    port = int(first.url.rpartition(":")[2])
    first.close()
    with StorageEndpoint(tmp_path / "two", port=port), StorageEndpoint(tmp_path / "one") as again:
        assert not again.url.endswith(f":{port}")


def test_what_belongs_to_the_endpoint_is_private_and_in_no_bucket(tmp_path: Path) -> None:
    with StorageEndpoint(tmp_path, buckets=["team"], https_port=0) as endpoint:
        state = state_of(tmp_path)
        assert state.stat().st_mode & 0o777 == 0o700
        with urllib.request.urlopen(f"{endpoint.url}/storage/v1/b?project=p", timeout=10) as answer:
            assert [bucket["name"] for bucket in json.load(answer)["items"]] == ["team"]
        for path in state.iterdir():
            with pytest.raises(urllib.error.HTTPError) as caught:
                _get(endpoint.url, state.name, path.name)
            assert caught.value.code in (400, 404)


def test_faults_and_the_write_limit_reach_clients_of_the_endpoint(tmp_path: Path) -> None:
    faults = Faults([parse_flag("503,method=GET,nth=1")])
    # One change in a thousand seconds: the clock cannot make this test fail.
    with StorageEndpoint(tmp_path, buckets=["team"], faults=faults, writes_per_object_second=0.001) as endpoint:
        _put(endpoint.url, "team", "a", b"1")
        _put(endpoint.url, "team", "b", b"1")
        for attempt, status in (
            (lambda: _put(endpoint.url, "team", "a", b"2"), 429),
            (lambda: _get(endpoint.url, "team", "a"), 503),
        ):
            with pytest.raises(urllib.error.HTTPError) as caught:
                attempt()
            assert caught.value.code == status
        assert _get(endpoint.url, "team", "a") == b"1"


def test_finding_an_endpoint_imports_nothing_heavy() -> None:
    code = "import sys, bastion.emulators.gcs.address; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    heavy = {"cryptography", "pydantic", "google", "grpc", "bastion.net.http1", "bastion.emulators.gcs.buckets"}
    assert heavy & set(done.stdout.split()) == set()


def test_what_other_writers_leave_behind_goes_while_the_endpoint_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bastion.emulators.gcs.server._SWEEP_SECONDS", 0.05)
    with StorageEndpoint(tmp_path, buckets=["lake"]) as endpoint:
        for name in ("a", "b"):
            urllib.request.urlopen(
                urllib.request.Request(f"{endpoint.url}/lake/{name}", data=b"x", method="PUT"), timeout=10
            ).close()
        store = DirectoryStore(tmp_path / "lake")
        present = store.head("a")
        assert present is not None
        store.put("a", b"y", generation=present.generation)
        # Not before: it would take what a writer is about to need.
        monkeypatch.setattr("bastion.emulators.gcs.buckets._ORPHAN_NS", 0)
        attributes = tmp_path / "lake" / ".objects" / "attributes"
        until(lambda: len(list(attributes.iterdir())) == 1)
