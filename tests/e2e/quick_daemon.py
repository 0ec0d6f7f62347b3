"""An ordinary daemon with short pauses, for clusters that break: `quick_daemon.py ROOT HOME STALE_SECONDS SLICES`.

Without an answer for so long, a cluster is silent.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from bastion.adapters.kubernetes import failures, list_watch, refused_pods
from bastion.adapters.kubernetes.list_watch import Pace
from bastion.core import limits
from bastion.wiring.daemon import build_daemon
from bastion.wiring.local_home import LocalHome
from bastion.wiring.roots import parse_root

IMAGE_DENIED_SECONDS = 1.0


def main(root: str, home: str, stale_seconds: str, slices: str) -> None:
    stale = float(stale_seconds)
    pace = functools.partial(
        Pace, stale=stale, silence=stale * 0.8, watch=stale * 0.4, backoff=0.1, backoff_max=0.3, short_watch=0.5
    )
    list_watch.Pace = pace  # type: ignore[misc,assignment]
    failures.IMAGE_DENIED_SECONDS = IMAGE_DENIED_SECONDS
    refused_pods.PATIENCE_SECONDS = 0.5
    limits.INFRASTRUCTURE_BACKOFF_SECONDS = 0.2
    limits.CAPACITY_BACKOFF_SECONDS = 0.5
    daemon = build_daemon(
        parse_root(root),
        home=LocalHome(Path(home)),
        owner="quick",
        slices=slices,
        tick_seconds=0.2,
        bastion_host_jobs="as-daemon",
        notify=lambda text: print(text, file=sys.stderr, flush=True),
    )
    daemon.run(lambda: False)


if __name__ == "__main__":
    main(*sys.argv[1:])
