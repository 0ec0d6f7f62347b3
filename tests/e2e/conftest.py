"""Real processes for the end-to-end tests, and the certainty that none of them is left."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bastion.core.model import job_spec
from bastion.core.model.job_spec import JobOptions
from bastion.ports import ObjectStore
from bastion.processes import marked
from bastion.wiring.local import LocalHome, down, starter_quota
from bastion.wiring.roots import open_root

USER = "tester"


@dataclass
class LocalRoot:
    """One ROOT in the home, with the daemons that a test starts for it."""

    home: LocalHome
    url: str
    store: ObjectStore
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def start_daemon(self, *script: str) -> subprocess.Popen[bytes]:
        """An ordinary daemon, or `script` with ROOT and HOME as its first arguments."""
        if script:
            command = [sys.executable, script[0], self.url, str(self.home.path), *script[1:]]
        else:
            command = [
                sys.executable,
                "-m",
                "bastion.cli.main",
                "daemon",
                "run",
                f"--root={self.url}",
                "--tick_seconds=0.2",
            ]
        log = (self.home.path / "daemons.log").open("ab")
        environment = {**os.environ, "BASTION_HOME": str(self.home.path)}
        daemon = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
        self.daemons.append(daemon)
        return daemon

    def submit(self, name: str, command: str, *, instance_type: str = "") -> None:
        spec = job_spec.new(
            name=name, bastion="e2e-bastion", command=command, user_id=USER, project_id="default", now=time.time(),
            options=JobOptions(instance_type=instance_type),
        )  # fmt: skip
        self.store.put(f"jobs/active/{name}", spec.to_bytes(), generation=0)


class StorageProcess:
    """The storage endpoint as a program, which a test may kill and start again at the same address.

    Args:
        folder: Its buckets.
        bucket: Made if it is missing.
        options: Of the program.
    """

    def __init__(self, folder: Path, *, bucket: str, options: Sequence[str] = ()) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._folder = folder
        self._command = [
            sys.executable, "-m", "bastion.emulators.gcs", f"--dir={folder}", f"--port={self._port}",
            f"--bucket={bucket}", *options,
        ]  # fmt: skip
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder.parent / "storage.log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        wait_for(self._answers)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def pause(self) -> None:
        """Connections come about and nothing is answered, until `stop`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.send_signal(signal.SIGCONT)
            self._process.wait(60)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder.parent / "storage.log").read_text()[-2000:]
        try:
            with urllib.request.urlopen(f"{self.url}/storage/v1/b?project=test", timeout=1):
                return True
        except (OSError, urllib.error.URLError):
            return False


def wait_for(done: Callable[[], object], seconds: float = 60.0) -> None:
    """Polls until `done`.

    Raises:
        AssertionError: it was not done in time.
    """
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"not done within {seconds} s"
        time.sleep(0.05)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHome]:
    """A BASTION_HOME whose emulator is started with the first slice, and ended with everything it runs."""
    home = LocalHome(tmp_path_factory.mktemp("home"))
    home.run_dir.mkdir()
    yield home
    down(home, say=lambda _: None)


@pytest.fixture
def new_root(home: LocalHome, tmp_path: Path) -> Iterator[Callable[[str], LocalRoot]]:
    """Makes ROOTs; their daemons end with the test."""
    roots: list[LocalRoot] = []

    def make(name: str) -> LocalRoot:
        url = str(tmp_path / name / "e2e-bastion")
        root = LocalRoot(home=home, url=url, store=open_root(url))
        root.store.put("project-quotas/project-quotas.config", starter_quota(USER), generation=0)
        roots.append(root)
        return root

    yield make
    for root in roots:
        for daemon in root.daemons:
            daemon.kill()
            daemon.wait()


@pytest.fixture(scope="module", autouse=True)
def nothing_left() -> Iterator[None]:
    """Every process that carries an emulated host's or agent's marker must be gone when a module is done."""
    yield
    # What is about to end is not left; what stays is.
    deadline = time.monotonic() + 10.0
    while (left := marked("BASTION_E2E", str(os.getpid()))) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


@pytest.fixture(scope="session", autouse=True)
def mark_processes() -> None:
    os.environ["BASTION_E2E"] = str(os.getpid())
