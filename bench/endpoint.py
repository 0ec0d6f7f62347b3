"""The local storage endpoint in its own process, for the benches on `gs://`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bastion.emulators.gcs.address import locate

BUCKET = "bench"


@dataclass(frozen=True, slots=True)
class Endpoint:
    url: str
    pid: int

    def cpu_seconds(self) -> float:
        """Return the CPU time that it has used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text("ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def endpoint() -> Iterator[Endpoint]:
    """Serve an empty bucket `BUCKET`, and point this process and its children at it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bastion.emulators.gcs", f"--dir={folder}", f"--bucket={BUCKET}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                process.stdout.readline()  # said once it serves
                address = locate(Path(folder))
                assert address is not None, "the endpoint did not start"
                os.environ["STORAGE_EMULATOR_HOST"] = address.url
                yield Endpoint(address.url, process.pid)
            finally:
                os.environ.pop("STORAGE_EMULATOR_HOST", None)
                process.terminate()
                process.stdout.close()
