"""`python -m bastion.emulators.gcs --dir=DIR`: the storage endpoint as a program.

SIGTERM and SIGINT end it in order. After SIGKILL the next one has everything that was acknowledged.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bastion.core.errors import BastionError
from bastion.emulators.gcs.fault_rules import parse_flag
from bastion.emulators.gcs.faults import Faults
from bastion.emulators.gcs.iam import identities
from bastion.emulators.gcs.server import StorageEndpoint
from bastion.emulators.gcs.serving import serve


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bastion.emulators.gcs", description="Cloud Storage on this machine; its buckets are folders."
    )
    parser.add_argument("--dir", type=Path, required=True, help="every direct subfolder is a bucket")
    parser.add_argument("--port", type=int, default=0, help="HTTP port on 127.0.0.1 (default: the last one, or any)")
    parser.add_argument("--https-port", "--https_port", type=int, help="serve HTTPS, too; 0: the last one, or any")
    parser.add_argument("--bucket", action="append", default=[], help="make this bucket if it is missing; repeatable")
    parser.add_argument("--fault", action="append", default=[], help="like 503,method=POST,percent=5; repeatable")
    parser.add_argument("--fault-seed", "--fault_seed", type=int, default=0, help="seed of the faults with percent")
    parser.add_argument(
        "--writes-per-object-second",
        "--writes_per_object_second",
        type=float,
        default=0.0,
        help="answer 429 to more changes of one object per second (default: no limit)",
    )
    parser.add_argument("--fsync", action="store_true", help="acknowledged data survives a power cut")
    parser.add_argument(
        "--allowed-host",
        "--allowed_host",
        action="append",
        default=[],
        help="answer requests for this host name, too; repeatable",
    )
    parser.add_argument("--identities", type=Path, help="enforce policies; who has which token (a TOML file)")
    arguments = parser.parse_args(argv)
    try:
        endpoint = StorageEndpoint(
            arguments.dir,
            port=arguments.port,
            https_port=arguments.https_port,
            buckets=arguments.bucket,
            faults=Faults([parse_flag(text) for text in arguments.fault], seed=arguments.fault_seed),
            writes_per_object_second=arguments.writes_per_object_second,
            fsync=arguments.fsync,
            allowed_hosts=arguments.allowed_host,
            identities=identities.read(arguments.identities) if arguments.identities else None,
        )
        serve(endpoint, say=_say)
    except BastionError as error:
        sys.stderr.write(f"bastion.emulators.gcs: {error}\n")
        return error.exit_code
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
