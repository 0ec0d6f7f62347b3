"""A real daemon with short patience: `hurried_daemon.py ROOT HOME NUMBER`. What takes minutes in a cloud takes seconds.

Only limits differ, and they are changed before anything reads them.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from bastion.core import limits

limits.HEARTBEAT_PERIOD_SECONDS = 2.0
limits.HEARTBEAT_LOST_SECONDS = 12.0
limits.STOP_REPORT_SLACK_SECONDS = 10.0
limits.INFRASTRUCTURE_BACKOFF_SECONDS = 0.5
limits.INFRASTRUCTURE_BACKOFF_MAX_SECONDS = 4.0
limits.CAPACITY_BACKOFF_SECONDS = 0.5
limits.CAPACITY_BACKOFF_MAX_SECONDS = 4.0


def main(root: str, home: str, number: str) -> None:
    from bastion.wiring.daemon import build_daemon
    from bastion.wiring.local_home import LocalHome
    from bastion.wiring.roots import parse_root

    daemon = build_daemon(
        parse_root(root),
        home=LocalHome(Path(home)),
        owner=f"hurried-{number}",
        slices="cloud",
        tick_seconds=0.5,
        bastion_host_jobs="as-daemon",
        notify=lambda text: print(text, file=sys.stderr, flush=True),
    )
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda received, _: stopping.append(received))
    daemon.run(lambda: bool(stopping))


if __name__ == "__main__":
    main(*sys.argv[1:])
