"""`python -m bastion.emulators.tpu --state-dir=DIR`: the emulator as the local bastion starts it.

`bastion emulator tpu` has all options. SIGTERM and SIGINT end every VM and then the emulator. After SIGKILL the VMs
stay alive for `--orphan-seconds`, and a new emulator on the same folder adopts them.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from bastion.core.errors import BastionError
from bastion.emulators.tpu.server import EmulatorSettings
from bastion.emulators.tpu.serving import serve


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bastion.emulators.tpu", description="A Cloud TPU API on this machine; its VMs are processes."
    )
    parser.add_argument("--state-dir", type=Path, required=True, help="folder for the emulator's state; made private")
    parser.add_argument("--port", type=int, default=0, help="gRPC port on 127.0.0.1 (default: the last one, or any)")
    parser.add_argument(
        "--hosts-max",
        type=int,
        default=os.environ.get("BASTION_EMULATOR_HOSTS_MAX") or "16",
        help="maximum hosts of one node (default: $BASTION_EMULATOR_HOSTS_MAX, or 16)",
    )
    parser.add_argument(
        "--grace-seconds",
        type=float,
        default=5.0,
        help="time between SIGTERM and SIGKILL of a VM (default: %(default)s)",
    )
    parser.add_argument(
        "--orphan-seconds",
        type=float,
        default=60.0,
        help="how long VMs wait for a new emulator (default: %(default)s)",
    )
    arguments = parser.parse_args(argv)
    try:
        serve(EmulatorSettings(**vars(arguments)), say=lambda _line: None)
    except BastionError as error:
        sys.stderr.write(f"bastion.emulators.tpu: {error}\n")
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
