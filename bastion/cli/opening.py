"""From flags to a `Client`: the bastion that is meant, opened, and the local one started where that is wanted.

Layer: cli.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from bastion.adapters.system_clock import SystemClock
from bastion.cli.command import Invocation
from bastion.cli.output import plain, say
from bastion.cli.target import Target, resolve
from bastion.core.errors import Refused
from bastion.wiring import open_root

if TYPE_CHECKING:
    from bastion.client import Client


def open_client(call: Invocation, *, start: bool = False) -> tuple[Client, Target]:
    """The client of the bastion that the invocation means.

    Args:
        start: Start the bastion on this machine if it is the one and does not run.

    Raises:
        Refused: there is no such bastion, or the settings contradict each other.
    """
    from bastion.client import Client

    target = resolve(call.flags)
    if target.is_default and start:
        from bastion.cli.local import ensure_up

        ensure_up(say)
    _check_folder(target)
    return Client(open_root(target.root.url), target.root, SystemClock()), target


def tell_absence(client: Client, target: Target) -> None:
    """Says that no daemon is at work, if one look at the lease tells: what is shown is old, and nothing will start."""
    from bastion.client.daemon_pulse import DaemonPulse

    problem = DaemonPulse(client.store, client.clock, local=target.root.local).look()
    if problem:
        start = "bastion local up" if target.is_default else f"bastion daemon run --root={plain(target.root.url)}"
        say(f"bastion: {problem}; nothing starts until one runs ({start})")


def _check_folder(target: Target) -> None:
    """A mistyped folder must not be created by looking into it."""
    root = target.root
    if not root.local:
        return
    if target.is_default and not Path(root.url).is_dir():
        raise Refused(
            "there is no bastion on this machine yet, and no other one is chosen; "
            "start it with `bastion local up`, or name one with --root=URL"
        )
    if not Path(root.bucket).is_dir():
        raise Refused(
            f"there is no folder {plain(root.bucket)} (from {target.source}); create it, "
            "or correct the root: --root=FOLDER/NAME-bastion"
        )
