"""`bastion daemon run`: the one process that runs on a bastion's VM.

Layer: cli. Builds the adapters for a ROOT and runs `bastion.daemon` until SIGTERM or SIGINT. Ending the daemon ends no
job: hosts stop on their orders, and the next daemon finds everything in the bucket.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timezone

from absl import flags

from bastion.cli.command import Command, Invocation
from bastion.cli.connect import problem_of_endpoint
from bastion.cli.output import plain
from bastion.cli.target import bastion_home, resolve
from bastion.wiring.daemon import SLICES, build_daemon
from bastion.wiring.local import LocalHome, stop_emulator, stop_storage
from bastion.wiring.roots import parse_root

# After a signal the tick in progress has so long to end. One that waits for a bucket without answers takes minutes;
# leaving it is what `kill -9` does, and harms nothing but that a successor waits for the lease's TTL.
_LEAVE_SECONDS = 10.0
# A message that has not changed is said again after so long.
_SAME_AGAIN_SECONDS = 60.0


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "quota_root",
        None,
        "ROOT under another, private bucket whose project-quotas/project-quotas.config is used instead of this ROOT's.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "slices",
        None,
        SLICES,
        "Where slices come from: the Cloud TPU API as config/daemon.toml says, the emulator on this machine, or "
        "nowhere (default: emulated if the bucket is on this machine, too, else none).",
        flag_values=values,
    )
    flags.DEFINE_float(
        "tick_seconds",
        None,
        "Between two idle ticks (default: 10, and 1 if the bucket is local).",
        0.05,
        flag_values=values,
    )
    flags.DEFINE_float(
        "idle_exit_seconds", 0.0, "End when there was no job for so long; 0 means never.", 0.0, flag_values=values
    )
    flags.DEFINE_bool(
        "stop_emulator_when_idle",
        False,
        "End the emulators of $BASTION_HOME, too, when ending for idleness.",
        flag_values=values,
    )


def _notify(text: str) -> None:
    print(f"{datetime.now(timezone.utc).isoformat(timespec='seconds')} {plain(text)}", file=sys.stderr, flush=True)


class _Narrator:
    """Says what goes on, but the same thing once in a while only: every tick finds that a bucket is missing."""

    def __init__(self, notify: Callable[[str], None], monotonic: Callable[[], float]) -> None:
        self._notify = notify
        self._monotonic = monotonic
        self._last = ""
        self._said_at = 0.0

    def __call__(self, text: str) -> None:
        now = self._monotonic()
        if text != self._last or now - self._said_at >= _SAME_AGAIN_SECONDS:
            self._notify(text)
            self._last, self._said_at = text, now


def _leave_after(signal_pipe: int) -> None:
    """Ends the process some time after the pipe's first byte, if it has not ended by then."""
    os.read(signal_pipe, 1)
    time.sleep(_LEAVE_SECONDS)
    with contextlib.suppress(OSError):
        _notify("ended in the middle of a tick, which took too long to wait for; the lease was not given back")
    os._exit(0)


def _run(call: Invocation) -> int:
    target = resolve(call.flags)
    home = LocalHome(bastion_home())
    stopping: list[int] = []
    receiver, sender = os.pipe()

    def stop(received: int, _frame: object) -> None:
        if not stopping:
            os.write(sender, b"!")  # of all that wakes another thread, the one that a handler may always do
        stopping.append(received)

    threading.Thread(target=_leave_after, args=(receiver,), name="leave", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for root in (target.root, parse_root(call.flags.quota_root) if call.flags.quota_root else target.root):
        # It may come yet, and a daemon waits for its bucket; but not without a word.
        problem = problem_of_endpoint(root, patience_seconds=0.0)
        if problem:
            _notify(problem)
            break
    daemon = build_daemon(
        target.root,
        home=home,
        owner=uuid.uuid4().hex[:12],
        slices=call.flags.slices,
        quota_root=call.flags.quota_root,
        tick_seconds=call.flags.tick_seconds,
        idle_exit_seconds=call.flags.idle_exit_seconds,
        notify=_Narrator(_notify, time.monotonic),
    )
    _notify(f"daemon of {target.root.url}, process {os.getpid()}")
    daemon.run(lambda: bool(stopping))
    if not stopping and call.flags.stop_emulator_when_idle:
        stop_emulator(home.emulator_dir)
        stop_storage(home.buckets_dir)
    _notify("ended" + (f" by signal {stopping[0]}" if stopping else ""))
    return 0


RUN = Command(
    summary="Runs a bastion's daemon in the foreground until SIGTERM or Ctrl-C.",
    usage="--root=URL [--quota_root=URL]",
    details=(
        "Polls the bucket for jobs, applies the quota file, provisions slices and publishes the status. Several "
        "daemons may run for one ROOT: a lease lets one of them act, and another takes over when it dies.\n\n"
        "Emulated slices come from the Cloud TPU emulator of $BASTION_HOME, which is started when needed. A gs:// ROOT "
        "is looked for in the cloud, or where $STORAGE_EMULATOR_HOST points.\n\n"
        "With --slices=cloud the operator's settings config/daemon.toml say in which project and zones slices are "
        "created, and as what; `bastion daemon check-config` checks them. Until there are valid ones no slice is "
        "created, and no job is stopped for it."
    ),
    examples=(
        "bastion daemon run --root=/srv/buckets/team/team-bastion",
        "bastion daemon run --root=gs://my-bucket/team-bastion --slices=none",
        "bastion daemon run --root=gs://my-bucket/team-bastion --slices=cloud",
    ),
    define=_define,
    run=_run,
)
