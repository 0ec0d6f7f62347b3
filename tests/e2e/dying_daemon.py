"""A real daemon that kills itself with SIGKILL at its Nth write: `dying_daemon.py ROOT HOME N`.

The lease does not count: its renewals come with time, not with a job's life. Even N die before the write, odd ones
after it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

from bastion.core.bucket import keys
from bastion.core.bucket.objects import ObjectMeta
from bastion.ports import ObjectStore
from bastion.wiring.daemon import build_daemon
from bastion.wiring.local_home import LocalHome
from bastion.wiring.roots import parse_root


class DyingStore:
    def __init__(self, store: ObjectStore, countdown: int, *, after: bool) -> None:
        self._store = store
        self._left = countdown
        self._after = after
        self._lock = threading.Lock()
        self.get, self.head, self.list = store.get, store.head, store.list

    def _strikes(self, key: str) -> bool:
        with self._lock:
            self._left -= key != keys.LEASE
            strikes = self._left == 0 and key != keys.LEASE
        if strikes and not self._after:
            os.kill(os.getpid(), signal.SIGKILL)
        return strikes

    def put(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        strikes = self._strikes(key)
        meta = self._store.put(key, data, generation=generation)
        if strikes:
            os.kill(os.getpid(), signal.SIGKILL)
        return meta

    def append(self, key: str, data: bytes, *, generation: int) -> ObjectMeta:
        strikes = self._strikes(key)
        meta = self._store.append(key, data, generation=generation)
        if strikes:
            os.kill(os.getpid(), signal.SIGKILL)
        return meta

    def delete(self, key: str, *, generation: int) -> None:
        strikes = self._strikes(key)
        self._store.delete(key, generation=generation)
        if strikes:
            os.kill(os.getpid(), signal.SIGKILL)


def main(root: str, home: str, number: str) -> None:
    daemon = build_daemon(
        parse_root(root),
        home=LocalHome(Path(home)),
        owner=f"dying-{number}",
        tick_seconds=0.2,
        bastion_host_jobs="as-daemon",
        notify=lambda text: print(text, file=sys.stderr),
        wrap=lambda store: DyingStore(store, int(number), after=int(number) % 2 == 1),
    )
    daemon.run(lambda: False)


if __name__ == "__main__":
    main(*sys.argv[1:])
