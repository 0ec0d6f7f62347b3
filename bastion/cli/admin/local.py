"""`bastion local up|down|status`: the bastion on this machine (`bastion.wiring.local`)."""

from __future__ import annotations

from collections.abc import Callable

from bastion.cli.command import Command, Invocation
from bastion.cli.output import emit_json, say
from bastion.cli.user import default_user
from bastion.cli.user_config import bastion_home
from bastion.wiring.local import LocalHome, down, status, up
from bastion.wiring.roots import Root


def ensure_up(notify: Callable[[str], None]) -> Root:
    """Start the local bastion if it is not running; return its ROOT."""
    return up(LocalHome(bastion_home()), user=default_user(), say=notify)


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
        say(f"the local bastion is down; its bucket remains in {home.root.url}")
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


_ABOUT = "All local files are in $BASTION_HOME (default: bastion in the XDG data folder, ~/.local/share/bastion)."

UP = Command(
    summary="Starts the bastion on this machine if it is not running, and waits until it is ready.",
    usage="",
    details=f"`launch` and `submit` do this by themselves. It stops after an hour without jobs. {_ABOUT}",
    examples=("bastion local up",),
    takes_target=False,
    run=_up,
)
DOWN = Command(
    summary="Stops the bastion on this machine, its emulator and everything they run.",
    usage="",
    details=f"The bucket remains. The next `bastion local up` restarts jobs that were running. {_ABOUT}",
    examples=("bastion local down",),
    takes_target=False,
    run=_down,
)
STATUS = Command(
    summary="Shows which parts of the local bastion are running; exits with 1 if its daemon is not.",
    usage="[--output=json]",
    details=_ABOUT,
    examples=("bastion local status",),
    takes_target=False,
    takes_output=True,
    run=_status,
)
