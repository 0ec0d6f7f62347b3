"""`bastion local up|down|status`: the bastion on this machine.

Layer: cli. What there is to know of its processes is in `bastion.wiring.local`; this is what a user sees of it.
"""

from __future__ import annotations

from collections.abc import Callable

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, say
from bastion.cli.target import bastion_home
from bastion.cli.user import default_user
from bastion.wiring.local import LocalHome, down, status, up
from bastion.wiring.roots import Root


def ensure_up(tell: Callable[[str], None]) -> Root:
    """Starts the local bastion if it is not running; returns its ROOT."""
    return up(LocalHome(bastion_home()), user=default_user(), say=tell)


def _up(_: Invocation) -> int:
    root = ensure_up(say)
    say(f"the local bastion is up; its bucket is {root.url}")
    return 0


def _down(_: Invocation) -> int:
    home = LocalHome(bastion_home())
    before = status(home)
    down(home, say=say)
    if before.daemon is None and before.emulator is None:
        say("the local bastion was not running")
    else:
        say(f"the local bastion is down; the bucket stays in {home.root.url}")
    return 0


def _status(call: Invocation) -> int:
    found = status(LocalHome(bastion_home()))
    if call.json:
        document = {
            "up": found.up,
            "root": found.root,
            "daemon_pid": found.daemon.pid if found.daemon else None,
            "emulator": found.emulator.endpoint if found.emulator else None,
            "emulator_pid": found.emulator.process.pid if found.emulator else None,
            "storage": found.storage.url if found.storage else None,
            "storage_pid": found.storage.process.pid if found.storage else None,
        }
        emit_json(document)
    else:
        print(f"root      {found.root}")
        print(f"daemon    {f'process {found.daemon.pid}' if found.daemon else 'not running'}")
        where = (
            f"process {found.emulator.process.pid} at {found.emulator.endpoint}" if found.emulator else "not running"
        )
        print(f"emulator  {where}")
        where = f"process {found.storage.process.pid} at {found.storage.url}" if found.storage else "not running"
        print(f"storage   {where}")
    return 0 if found.up else 1


_ABOUT = "Everything local lies under $BASTION_HOME (default: the XDG data folder, ~/.local/share/bastion)."

UP = Command(
    summary="Starts the bastion on this machine, unless it runs, and waits until it acts.",
    usage="",
    details=f"`launch` and `submit` do it by themselves. It ends after an hour with nothing to do. {_ABOUT}",
    examples=("bastion local up",),
    takes_target=False,
    run=_up,
)
DOWN = Command(
    summary="Ends the bastion on this machine, its emulator and everything they run.",
    usage="",
    details=f"The bucket stays. Jobs that were running start again with the next `bastion local up`. {_ABOUT}",
    examples=("bastion local down",),
    takes_target=False,
    run=_down,
)
STATUS = Command(
    summary="Shows what of the local bastion runs; exits with 1 if its daemon does not.",
    usage="[--output=json]",
    details=_ABOUT,
    examples=("bastion local status",),
    takes_target=False,
    takes_output=True,
    run=_status,
)
