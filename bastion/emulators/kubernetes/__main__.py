"""`python -m bastion.emulators.kubernetes --state-dir=DIR`: the emulated cluster as a program.

`bastion emulator kubernetes` has all options. SIGTERM and SIGINT end every pod and then the emulator. After SIGKILL the
pods stay alive for `--orphan-seconds`, and a new emulator on the same folder adopts them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bastion.core.errors import BastionError
from bastion.emulators.kubernetes.controllers.nodes import Pool
from bastion.emulators.kubernetes.serving import serve
from bastion.emulators.kubernetes.settings import EmulatorSettings


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bastion.emulators.kubernetes",
        description="A Kubernetes API on this machine; its pods are processes.",
    )
    parser.add_argument("--state-dir", type=Path, required=True, help="folder for the emulator's state; made private")
    parser.add_argument("--port", type=int, default=0, help="HTTPS port on 127.0.0.1 (default: the last one, or any)")
    parser.add_argument(
        "--pool",
        action="append",
        default=[],
        help="node pools of one slice each: TYPE=COUNT or TYPE=COUNT:spot, v5litepod-16=2; repeatable",
    )
    parser.add_argument("--kueue", action="store_true", help="have Kueue on the cluster")
    parser.add_argument(
        "--grace-seconds",
        type=float,
        default=5.0,
        help="time between SIGTERM and SIGKILL of all pods at the end (default: %(default)s)",
    )
    parser.add_argument(
        "--orphan-seconds",
        type=float,
        default=60.0,
        help="how long pods wait for a new emulator (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)
    try:
        settings = EmulatorSettings(
            state_dir=arguments.state_dir,
            port=arguments.port,
            pools=tuple(Pool.parse(text) for text in arguments.pool),
            close_grace_seconds=arguments.grace_seconds,
            orphan_seconds=arguments.orphan_seconds,
            kueue=arguments.kueue,
        )
        serve(settings, say=lambda _line: None)
    except BastionError as error:
        sys.stderr.write(f"bastion.emulators.kubernetes: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
