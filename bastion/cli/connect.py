"""Open a `Client` from flags: find the bastion, check that it can be reached, start the local one if asked to."""

from __future__ import annotations

import logging
import os
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bastion.adapters.system_clock import SystemClock
from bastion.cli.command import Invocation
from bastion.cli.output import plain, say
from bastion.cli.target import resolve
from bastion.core.errors import Refused, StoreUnavailable
from bastion.user_config.settings import settings
from bastion.user_config.target import Target
from bastion.user_config.user import default_user
from bastion.wiring.buckets import open_place, storage_emulator
from bastion.wiring.roots import Root, open_root, s3_endpoint

if TYPE_CHECKING:
    from bastion.client import Client, JobInfo
    from bastion.ports import ObjectStore

# Long enough for an endpoint that is restarting. The store itself would retry silently for a minute.
_ENDPOINT_PATIENCE_SECONDS = 4.0
_ENDPOINT_PAUSE_SECONDS = 0.2


def open_client(call: Invocation, *, start: bool = False) -> tuple[Client, Target]:
    """Open the bastion that the invocation names. `start`: start the bastion on this machine if it is the one.

    Raises:
        Refused: There is no such bastion, or the flags contradict each other.
        StoreUnavailable: Nothing listens at $STORAGE_EMULATOR_HOST, or at $AWS_ENDPOINT_URL.
    """
    from bastion.client import Client

    target = resolve(call.flags)
    if target.is_default and start:
        from bastion.cli.admin.local import ensure_up

        ensure_up(say)
    _check_folder(target)
    check_endpoint(target.root)
    _show_waits()
    store, inbox = open_root(target.root.url), settings().get("inbox")
    return Client(store, target.root, SystemClock(), user=_user(), inbox=inbox), target


def store_of_outputs(client: Client, info: JobInfo) -> ObjectStore:
    """The store of a job's outputs: the bastion's bucket, or the user's own."""
    return open_place(info.output_to) if info.output_to else client.store


def _user() -> str:
    """Who runs this command, or whose job does; empty if that is not known."""
    try:
        return os.environ.get("BASTION_USER_ID", "") or default_user()
    except Refused:
        return ""


class _Shown(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(f"bastion: {plain(record.getMessage())}")


def _show_waits() -> None:
    """Show what an adapter says when a bucket takes long to answer."""
    adapters = logging.getLogger("bastion.adapters.bucket_requests")
    if not adapters.handlers:
        adapters.addHandler(_Shown(level=logging.INFO))
        adapters.setLevel(logging.INFO)


def warn_if_no_daemon(client: Client, target: Target) -> bool:
    """Warn if the lease shows that no daemon is running; return whether that is so."""
    from bastion.client.daemon_health import CANNOT_ACT, DaemonHealth

    problem = DaemonHealth(client.store, client.clock, local=target.root.local).look()
    if problem:
        until = "it can" if problem.startswith(CANNOT_ACT) else f"one runs ({start_command(target)})"
        say(f"bastion: {problem}; jobs do not start or end until {until}")
    return bool(problem)


def start_command(target: Target) -> str:
    return "bastion local up" if target.is_default else f"bastion daemon run --root={plain(target.root.url)}"


def check_endpoint(root: Root) -> None:
    """Raise StoreUnavailable if nothing listens at $STORAGE_EMULATOR_HOST, or for S3 at $AWS_ENDPOINT_URL, for some
    seconds and the root is there.

    Only a refused connection counts; the store's own connection reports other problems better.
    """
    where = problem_of_endpoint(root, patience_seconds=_ENDPOINT_PATIENCE_SECONDS)
    if where:
        raise StoreUnavailable(where)


def problem_of_endpoint(root: Root, *, patience_seconds: float) -> str:
    """What is wrong with the root's endpoint, and what to do about it; empty if something listens."""
    url = {"gs": storage_emulator, "s3": s3_endpoint}.get(root.scheme, str)()
    try:
        place = urlsplit(url)
        host, port = place.hostname, place.port or (443 if place.scheme == "https" else 80)
    except ValueError:  # the store reports it
        return ""
    if not host:
        return ""
    gives_up = time.monotonic() + patience_seconds
    while _refuses(host, port):
        if time.monotonic() >= gives_up and root.scheme == "s3":
            return (
                f"nothing listens at {plain(url)}, which AWS_ENDPOINT_URL names for {root.bucket}; start the server, "
                "correct the variable, or unset it to use Amazon S3"
            )
        if time.monotonic() >= gives_up:
            return (
                f"nothing listens at {plain(url)}, which STORAGE_EMULATOR_HOST names for {root.bucket}; start the "
                f"endpoint (bastion emulator gcs --port={port}), correct the variable, or unset it to use the cloud"
            )
        time.sleep(_ENDPOINT_PAUSE_SECONDS)
    return ""


def _refuses(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1.0) as connection:
            # The endpoint identifies the process behind each open connection: wait until it has closed its side.
            connection.shutdown(socket.SHUT_WR)
            connection.recv(1)
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False


def _check_folder(target: Target) -> None:
    """Refuse a folder that does not exist, so that a typo does not create it."""
    root = target.root
    if not root.local:
        return
    if target.is_default and not Path(root.url).is_dir():
        raise Refused(
            "there is no bastion on this machine, and no other one is configured; "
            "start it with `bastion local up`, or name one with --root=URL"
        )
    if not Path(root.bucket).is_dir():
        raise Refused(
            f"no such folder: {plain(root.bucket)} (from {target.source}); create it, "
            "or correct the root: --root=FOLDER/NAME-bastion"
        )
