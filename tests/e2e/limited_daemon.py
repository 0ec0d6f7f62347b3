"""An ordinary daemon with 2 GB of address space: `limited_daemon.py ROOT HOME`."""

from __future__ import annotations

import os
import resource
import sys

LIMIT_BYTES = 2 * 10**9


def main(root: str, _home: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (LIMIT_BYTES, LIMIT_BYTES))
    command = [
        "-m",
        "bastion.cli.main",
        "daemon",
        "run",
        f"--root={root}",
        "--tick_seconds=0.5",
        "--bastion_host_jobs=as-daemon",
    ]
    os.execv(sys.executable, [sys.executable, *command])


if __name__ == "__main__":
    main(*sys.argv[1:])
