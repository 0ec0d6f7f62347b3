"""Processes that outlive the one that starts them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from bastion.processes import ProcessId


def detach(command: Sequence[str], log: Path, environment: Mapping[str, str]) -> ProcessId | None:
    """Start a process with its output in a file; None if it ended at once."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=environment,
            cwd="/",
        )
    return ProcessId.of(process.pid)
