"""The local storage endpoint, or an S3 server, in its own process, for the benches on `gs://` and `s3://`."""

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

# For `tests.support`.
sys.path.insert(0, str(Path(__file__).parents[1]))

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
def endpoint(*, s3: bool = False) -> Iterator[Endpoint]:
    """Serve an empty bucket `BUCKET`, and point this process and its children at it."""
    if s3:
        with _s3_server() as served:
            yield served
        return
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


@contextlib.contextmanager
def _s3_server() -> Iterator[Endpoint]:
    from tests.support.s3_server import S3Process

    with tempfile.TemporaryDirectory() as folder:
        process = S3Process(Path(folder))
        try:
            process.start()
            process.server.client().create_bucket(Bucket=BUCKET)
            os.environ.update(process.server.env)
            yield Endpoint(process.server.url, process.pid)
        finally:
            process.kill()
