"""The storage endpoint as a program."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from tests.support.waiting import until


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
        until(self._answers)

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
