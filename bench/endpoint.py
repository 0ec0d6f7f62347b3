"""The local storage endpoint as a process of its own, for the benches on `gs://`."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bastion.emulator.gcs.address import locate

BUCKET = "bench"


@contextlib.contextmanager
def endpoint() -> Iterator[str]:
    """Serves an empty bucket `BUCKET`, and points this process and its children at it.

    Yields:
        The endpoint's URL.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "bastion.emulator.gcs", f"--dir={folder}", f"--bucket={BUCKET}"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                process.stdout.readline()  # said once it serves
                address = locate(Path(folder))
                assert address is not None, "the endpoint did not start"
                os.environ["STORAGE_EMULATOR_HOST"] = address.url
                yield address.url
            finally:
                os.environ.pop("STORAGE_EMULATOR_HOST", None)
                process.terminate()
                process.stdout.close()
