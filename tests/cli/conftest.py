"""The command line on a simulated bastion: `main(argv)` in this process, a real daemon on a store in memory.

The one thing replaced is what `bastion.cli.connect` opens: the store, and the clock, whose `sleep` lets the daemon tick
and the hosts act. So `--wait` runs through at once, and what it shows comes from the real formats.
"""

from __future__ import annotations

import os
import pty
import sys
import threading
import tty
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bastion.cli import connect
from bastion.cli.main import main
from bastion.core.instants import to_rfc3339
from bastion.core.model.job_record import JobRecord
from bastion.testing.cluster import Cluster
from tests.cli.quota_files import shares


@dataclass(frozen=True)
class Finished:
    """What a command line did."""

    code: int
    out: str
    err: str


class Bastion(Cluster):
    """A simulated bastion that goes on whenever the command under test sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.on_sleep: list[Callable[[], None]] = []
        self.slept = 0

    def now(self) -> float:
        return self.clock.now()

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def sleep(self, seconds: float) -> None:
        self.slept += 1
        assert self.slept < 500, f"it waits for ever: {self.describe()}"
        for act in self.on_sleep:
            act()
        self.step(max(seconds, 1.0))

    def attempt(self, job: str) -> str:
        """The present run of a job that has one."""
        record = self.record(job)
        assert isinstance(record, JobRecord)
        assert record.attempt is not None
        return f"{record.uid}-{record.attempt.number}"

    def write_log(self, job: str, run: str, worker: int, seq: int, *lines: str) -> None:
        """A segment of lines like `stdout F hello`, with instants that rise with `seq`."""
        text = "".join(f"{to_rfc3339(1000.0 + seq)} {line}\n" for line in lines)
        self.run_keys.write_segment(self.store, job, run, worker, seq, text.encode())


@dataclass
class Terminal:
    """Runs command lines and gives back what they printed."""

    capture: pytest.CaptureFixture[str]
    defaults: tuple[str, ...] = field(default=())

    def __call__(self, *argv: str, code: int | None = None) -> Finished:
        """Runs one; `code` is how it must exit."""
        self.capture.readouterr()
        done = Finished(main(list(argv)), *self.capture.readouterr())
        assert "Traceback" not in done.err
        assert code is None or done.code == code, done
        return done


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user named alice without settings, in a folder of its own."""
    folder = tmp_path / "home"
    monkeypatch.setenv("BASTION_HOME", str(folder))
    monkeypatch.delenv("BASTION_ROOT", raising=False)
    for name in ("LOGNAME", "USER"):
        monkeypatch.setenv(name, "alice")
    monkeypatch.chdir(tmp_path)
    return folder


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


@pytest.fixture
def bastion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bastion]:
    """A simulated bastion, which every command line in this test means."""
    cluster = Bastion()
    (tmp_path / "memory").mkdir()
    monkeypatch.setenv("BASTION_ROOT", "memory/test-bastion")
    monkeypatch.setattr(connect, "open_root", lambda _url: cluster.store)
    monkeypatch.setattr(connect, "SystemClock", lambda: cluster)
    yield cluster
    cluster.daemon.close()


@pytest.fixture
def new(tmp_path: Path) -> Path:
    """A new quota file: half of the pool for each project."""
    path = tmp_path / "new.config"
    path.write_bytes(shares(1, 1))
    return path


@pytest.fixture
def on_terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Runs a command line whose stdout and stderr are one terminal; returns what the terminal got."""

    def run(*argv: str, term: str = "xterm") -> str:
        reader, writer = pty.openpty()
        tty.setraw(writer)
        got: list[bytes] = []

        def read() -> None:
            try:
                while data := os.read(reader, 65536):
                    got.append(data)
            except OSError:  # how a pseudo-terminal says that its other end is closed
                pass

        thread = threading.Thread(target=read)
        thread.start()
        with (
            os.fdopen(writer, "w", encoding="utf-8") as out,
            os.fdopen(os.dup(writer), "w", encoding="utf-8") as err,
            monkeypatch.context() as patched,
        ):
            patched.setenv("TERM", term)
            patched.setattr(sys, "stdout", out)
            patched.setattr(sys, "stderr", err)
            main(list(argv))
        thread.join()
        os.close(reader)
        return b"".join(got).decode()

    return run
