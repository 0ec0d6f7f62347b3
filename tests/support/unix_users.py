"""Unix users of tests that run as root: a forked child becomes one of them and calls something.

Users whose processes a test ends, or counts, are claimed (`claim_users`): another test process, of this run or of
another one on this machine, would end them, or have processes of them.
"""

from __future__ import annotations

import os
import pickle
import shutil
import socket
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

# No user of a machine has these numbers.
TEAM = 64_100
DAEMON, ALICE, BOB, MALLORY = 64_110, 64_111, 64_112, 64_113
# Claimed ones: below 65,536, because namespaces often have no more.
_CLAIMED_FIRST, _CLAIMS_MAX, _CLAIM_SIZE = 62_000, 190, 10
_claims: list[socket.socket] = []
UIDS = {"daemon": DAEMON, "alice": ALICE, "bob": BOB, "mallory": MALLORY}

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


def claim_users() -> int:
    """The first of ten user numbers that no other test process of this machine has, until this process ends."""
    for number in range(_CLAIMS_MAX):
        first = _CLAIMED_FIRST + number * _CLAIM_SIZE
        claim = socket.socket(socket.AF_UNIX)
        try:
            # An abstract name is there once, and goes with its process.
            claim.bind(f"\0bastion-test-users-{first}")
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        # A run that was killed may have left some.
        if not _users_with_processes().intersection(range(first, first + _CLAIM_SIZE)):
            return first
    raise AssertionError(f"all {_CLAIMS_MAX} blocks of test users are in use on this machine")


def _users_with_processes() -> set[int]:
    found = set()
    for each in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            found.add(each.stat().st_uid)
    return found


def call_as(uid: int, call: Callable[[], T], *, umask: int = 0o022) -> T:
    """Return what `call` returns in a process of that user, or raise what it raises. Its modules must be imported."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.close(reading)
            os.setgroups([TEAM])
            os.setgid(TEAM)
            os.setuid(uid)
            os.umask(umask)
            try:
                answer: tuple[bool, object] = True, call()
            except Exception as error:  # noqa: BLE001 - raised again in the parent
                error.add_note(traceback.format_exc()) if hasattr(error, "add_note") else None
                answer = False, error
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(answer))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(child, 0)
    done, answer_ = pickle.loads(data)
    if not done:
        raise answer_
    found: T = answer_
    return found


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder of the daemon's user that the team may enter, as docs/reference/bucket-format.md makes one."""
    above = Path(tempfile.mkdtemp(prefix="bastion-team-"))
    try:
        above.chmod(0o755)
        bucket = above / "bucket"
        bucket.mkdir()
        os.chown(bucket, DAEMON, TEAM)
        bucket.chmod(0o2770)
        yield bucket
    finally:
        shutil.rmtree(above)
