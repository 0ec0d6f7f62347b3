"""The users that commands on the bastion's host run as: who is free, and what an earlier command left (ADR 62).

Invariants:
* A user is one gang's at a time: it is taken while a folder names it, and while a process has it.
* A daemon that ends or clears a gang's user holds the user's lock with others, and one that takes the user holds it
  alone. So one that was frozen meanwhile never ends the next gang of that user.
* Before a command gets a user, what earlier ones left is gone: files in folders for everybody, shared memory, queues.
  What a crash cuts short, the next creation does again.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from bastion import job_user
from bastion.core.errors import Refused
from bastion.job_user import JobUser

# Where Linux lets everybody leave files: the last two are POSIX message queues and locks.
PLACES = ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock")
_CLEAR_SECONDS = 120.0


def taken(directory: Path) -> set[str]:
    """Names of users that gangs hold, those on their way out included."""
    return set(filter(None, map(user_of, directory.glob("*/node.json")))) | set(
        filter(None, map(user_of, directory.glob(".*/node.json")))
    )


def user_of(file: Path) -> str:
    try:
        return str(json.loads(file.read_bytes()).get("user", ""))
    except (OSError, ValueError, AttributeError):
        return ""


def free(users: Sequence[JobUser], held: Collection[str]) -> Iterator[JobUser]:
    """Yield the users that nobody holds and no process has, the lowest first."""
    for user in users:
        if text_of(user) not in held and not user.processes():
            yield user


def locked(directory: Path, user: JobUser, *, alone: bool) -> int | None:
    """Lock a user, and return the descriptor that holds the lock; None if another process holds it. Raises OSError."""
    descriptor = os.open(directory / f".user-{user.uid}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor


def share(descriptor: int) -> None:
    """Let other daemons end the gang: its folder names the user now."""
    fcntl.flock(descriptor, fcntl.LOCK_SH)


@contextlib.contextmanager
def ending(directory: Path, user: JobUser) -> Iterator[bool]:
    """Hold a user's lock while its processes and files are removed; False: a gang is being made with that user."""
    try:
        descriptor = locked(directory, user, alone=False)
    except OSError:
        yield True  # a full disk, and a gang that an older version made
        return
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        os.close(descriptor)


def text_of(user: JobUser) -> str:
    """As an agent's arguments name it."""
    return f"{user.uid}:{user.gid}" if user.name == str(user.uid) else user.name


def find(text: str) -> JobUser | None:
    """The user of a gang; None if it has none, or the user is gone."""
    with contextlib.suppress(Refused):
        return job_user.resolve(text) if text else None
    return None


def open_way(folders: Iterable[Path]) -> None:
    """Let every user pass through these folders, not list them. Raises OSError."""
    for folder in folders:
        mode = stat.S_IMODE(folder.stat().st_mode)
        if not mode & 0o001:
            folder.chmod(mode | 0o001)


def clear(user: JobUser, folders: Iterable[Path] = ()) -> str:
    """End all processes of a user, and remove its `folders` and what it left elsewhere. Return what remains.

    Another process does it, with the user's rights and none of this one's: no path leads it to what is not the user's.
    """
    program = [
        sys.executable,
        "-I",
        "-m",
        "bastion.adapters.bastion_host_remains",
        f"{user.uid}:{user.gid}",
        ",".join(PLACES),
        *map(str, folders),
    ]
    try:
        done = subprocess.run(
            program,
            env={"PATH": os.defpath},
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_CLEAR_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"what user {user.name} left was not removed within {_CLEAR_SECONDS:.0f} s"
    except OSError as error:
        return f"what user {user.name} left was not removed: {error}"
    if done.returncode == 0:
        return ""
    said = done.stdout.decode("utf-8", "replace").strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
    return f"what user {user.name} left was not removed: {said[0][:400]}"


def remove_gangs(folders: Sequence[Path]) -> None:
    """Remove the folders of gangs that have ended, and what their users left."""
    for folder in folders:
        # It names its user until the user's files are gone.
        user = find(user_of(folder / "node.json"))
        with contextlib.nullcontext(True) if user is None else ending(folder.parent, user):
            # Once more under the lock: another daemon may have removed it, and the user may be another gang's.
            if user is not None and user_of(folder / "node.json"):
                clear(user, [*folder.glob("state/*/job"), *folder.glob("state/*/discarded-*")])
            with contextlib.suppress(RecursionError):
                shutil.rmtree(folder, ignore_errors=True)
