"""From flags to a `Client`: the bastion that is meant, opened, and the local one started where that is wanted.

Layer: cli.
"""

from __future__ import annotations

import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bastion.adapters.system_clock import SystemClock
from bastion.cli.command import Invocation
from bastion.cli.output import plain, say
from bastion.cli.target import Target, resolve
from bastion.core.errors import Refused, StoreUnavailable
from bastion.wiring.roots import Root, open_root, storage_emulator

if TYPE_CHECKING:
    from bastion.client import Client

# As long as an endpoint takes that is just being started again. The store itself would go on trying for a minute, which
# is right for an outage, and a minute of silence for whoever forgot to start it.
_ENDPOINT_PATIENCE_SECONDS = 4.0
_ENDPOINT_PAUSE_SECONDS = 0.2


def open_client(call: Invocation, *, start: bool = False) -> tuple[Client, Target]:
    """The client of the bastion that the invocation means.

    Args:
        start: Start the bastion on this machine if it is the one and does not run.

    Raises:
        Refused: there is no such bastion, or the settings contradict each other.
        StoreUnavailable: no storage endpoint listens where $STORAGE_EMULATOR_HOST points.
    """
    from bastion.client import Client

    target = resolve(call.flags)
    if target.is_default and start:
        from bastion.cli.admin.local import ensure_up

        ensure_up(say)
    _check_folder(target)
    check_endpoint(target.root)
    return Client(open_root(target.root.url), target.root, SystemClock()), target


def tell_absence(client: Client, target: Target) -> bool:
    """Say that no daemon is at work, if one look at the lease tells: what is shown is old, and nothing will start.

    Returns:
        Whether that is so.
    """
    from bastion.client.daemon_health import DaemonPulse

    problem = DaemonPulse(client.store, client.clock, local=target.root.local).look()
    if problem:
        say(f"bastion: {problem}; nothing starts or ends until one runs ({start_command(target)})")
    return bool(problem)


def start_command(target: Target) -> str:
    """What starts a daemon of this bastion."""
    return "bastion local up" if target.is_default else f"bastion daemon run --root={plain(target.root.url)}"


def check_endpoint(root: Root) -> None:
    """Finds out whether anybody listens at $STORAGE_EMULATOR_HOST, if that is where the root is looked for.

    Only a refused connection counts: everything else may be a matter of proxies and names, which the store's own
    connection tells better.

    Raises:
        StoreUnavailable: nobody does, for some seconds.
    """
    where = problem_of_endpoint(root, patience_seconds=_ENDPOINT_PATIENCE_SECONDS)
    if where:
        raise StoreUnavailable(where)


def problem_of_endpoint(root: Root, *, patience_seconds: float) -> str:
    """What is wrong with the endpoint of a root, and what to do about it; empty if somebody listens."""
    url = "" if root.local else storage_emulator()
    try:
        place = urlsplit(url)
        host, port = place.hostname, place.port or (443 if place.scheme == "https" else 80)
    except ValueError:  # the store says what is wrong with it
        return ""
    if not host:
        return ""
    gives_up = time.monotonic() + patience_seconds
    while _refuses(host, port):
        if time.monotonic() >= gives_up:
            return (
                f"nothing listens at {plain(url)}, where STORAGE_EMULATOR_HOST says that {root.bucket} is; start the "
                f"endpoint (bastion emulator gcs --port={port}), correct the variable, or unset it for the cloud"
            )
        time.sleep(_ENDPOINT_PAUSE_SECONDS)
    return ""


def _refuses(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1.0) as connection:
            # The endpoint looks up whose connection this is, and cannot tell of one that is closed already: wait until
            # it has ended its side.
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


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
