"""`bastion list --watch`: the list again on every change, on a screen of its own."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable

from bastion.cli.command import Invocation
from bastion.cli.output import say
from bastion.client.jobs.client import Client
from bastion.core.errors import EXIT_DETACHED, Refused, StoreUnavailable

_ENTER, _LEAVE, _CLEAR = "\x1b[?1049h", "\x1b[?1049l", "\x1b[H\x1b[2J"
# Lines for the header, the totals and a note or two.
_OTHER_LINES = 6
# Ages change without the jobs.
_AGAIN_SECONDS = 10.0


def watch(call: Invocation, client: Client, show: Callable[[int], int]) -> int:
    """Show the list until Ctrl-C. `show`: prints at most so many rows.

    Raises:
        Refused: stdout is no terminal, or the output is none for people.
    """
    if call.flags.output not in ("table", "wide"):
        raise Refused(f"--watch shows a table; leave it out for --output={call.flags.output}")
    if not sys.stdout.isatty():
        raise Refused("--watch needs a terminal; to wait for the end of jobs in a script, use bastion wait JOB")
    clock = client.clock
    print(_ENTER, end="")
    try:
        while True:
            print(_CLEAR, end="", flush=True)
            try:
                show(max(1, shutil.get_terminal_size().lines - _OTHER_LINES))
            except StoreUnavailable as error:
                say(f"bastion: the bucket does not answer; retrying: {error}")
            seen, until = client.status_generation, clock.monotonic() + _AGAIN_SECONDS
            while clock.monotonic() < until and client.status_generation == seen:
                clock.sleep(client.pace.pause(1))
                try:
                    client.status()
                except StoreUnavailable:
                    break
    except KeyboardInterrupt:
        return EXIT_DETACHED
    finally:
        print(_LEAVE, end="", flush=True)
