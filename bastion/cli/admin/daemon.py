"""`bastion daemon run`: the one process that runs on a bastion's VM.

Jobs go on without the daemon: hosts follow their orders, and the next daemon finds everything in the bucket.
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
from bastion.cli.target import resolve
from bastion.core.model.bastion_host_jobs import SETTING, HostJobsMode
from bastion.user_config.user_file import bastion_home
from bastion.wiring.daemon import SLICES, build_daemon
from bastion.wiring.local_emulators import stop_emulator, stop_kubernetes, stop_storage
from bastion.wiring.local_home import LocalHome
from bastion.wiring.roots import parse_root

# Time for the present tick to end after a signal; with an unresponsive bucket it would take minutes. Exiting earlier is
# as harmless as `kill -9`: a successor waits for the lease's TTL.
_LEAVE_SECONDS = 10.0
# An unchanged message is repeated after this time.
_SAME_AGAIN_SECONDS = 60.0


def _define(values: flags.FlagValues) -> None:
    flags.DEFINE_string(
        "quota_root",
        None,
        "ROOT of a quota file in a private bucket; replaces this ROOT's project-quotas/project-quotas.config.",
        flag_values=values,
    )
    flags.DEFINE_enum(
        "slices",
        None,
        SLICES,
        "Source of slices: the Cloud TPU API with the operator settings (config/daemon.toml), the emulator on this "
        "machine, or none (default: emulated if the bucket is on this machine, else none).",
        flag_values=values,
    )
    flags.DEFINE_float(
        "tick_seconds",
        None,
        "Time between two idle ticks (default: 10, or 1 if the bucket is local).",
        0.05,
        flag_values=values,
    )
    flags.DEFINE_float(
        "idle_exit_seconds", 0.0, "Exit after this time without jobs; 0: never.", 0.0, flag_values=values
    )
    flags.DEFINE_enum(
        SETTING,
        None,
        [mode.value for mode in HostJobsMode],
        "Whether jobs without a slice and cleanup commands run on this machine, and as whom, while config/daemon.toml "
        "does not say it (default: own-user if this daemon can run them as users of their own, else off).",
        flag_values=values,
    )
    flags.DEFINE_bool(
        "stop_emulator_when_idle",
        False,
        "On an idle exit, also stop the emulators in $BASTION_HOME.",
        flag_values=values,
    )


def _notify(text: str) -> None:
    print(f"{datetime.now(timezone.utc).isoformat(timespec='seconds')} {plain(text)}", file=sys.stderr, flush=True)


class _Repeats:
    """Passes messages on, but repeats an unchanged one only once a minute: every tick may report the same problem."""

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
    """Exit some time after the pipe's first byte."""
    os.read(signal_pipe, 1)
    time.sleep(_LEAVE_SECONDS)
    with contextlib.suppress(OSError):
        _notify("exited during a tick that took too long; the lease was not released")
    os._exit(0)


def _run(call: Invocation) -> int:
    target = resolve(call.flags)
    home = LocalHome(bastion_home())
    stopping: list[int] = []
    receiver, sender = os.pipe()

    def stop(received: int, _frame: object) -> None:
        if not stopping:
            os.write(sender, b"!")  # a signal handler may always do this
        stopping.append(received)

    threading.Thread(target=_leave_after, args=(receiver,), name="leave", daemon=True).start()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    for root in (target.root, parse_root(call.flags.quota_root) if call.flags.quota_root else target.root):
        # A daemon waits for its bucket, but says so.
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
        bastion_host_jobs=call.flags.bastion_host_jobs,
        notify=_Repeats(_notify, time.monotonic),
    )
    _notify(f"daemon of {target.root.url}, process {os.getpid()}")
    daemon.run(lambda: bool(stopping))
    if not stopping and call.flags.stop_emulator_when_idle:
        stop_emulator(home.emulator_dir)
        stop_kubernetes(home.kubernetes_dir)
        stop_storage(home.buckets_dir)
    _notify("ended" + (f" by signal {stopping[0]}" if stopping else ""))
    return 0


RUN = Command(
    summary="Runs a bastion's daemon in the foreground until SIGTERM or Ctrl-C.",
    usage="--root=URL [--quota_root=URL]",
    details=(
        "Polls the bucket for jobs, applies the quota file, provisions slices and publishes the status. Several "
        "daemons may run for one ROOT: the one with the lease acts, and another takes over when it dies.\n\n"
        "Emulated slices come from the Cloud TPU emulator in $BASTION_HOME, which starts when needed. A gs:// ROOT is "
        "in the cloud, or at $STORAGE_EMULATOR_HOST. An s3:// ROOT requires the extra s3; its slices come from "
        "clusters (--slices=cloud).\n\n"
        "With --slices=cloud the operator settings config/daemon.toml name the project, the zones and the network of "
        "slices; `bastion daemon check-config` checks them. Without valid settings no slice is created; running jobs "
        "continue."
    ),
    examples=(
        "bastion daemon run --root=/srv/buckets/team/team-bastion",
        "bastion daemon run --root=gs://my-bucket/team-bastion --slices=none",
        "bastion daemon run --root=gs://my-bucket/team-bastion --slices=cloud",
    ),
    define=_define,
    run=_run,
)
