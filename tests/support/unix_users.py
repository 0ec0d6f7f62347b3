"""Unix users of tests that run as root: a forked child becomes one of them and calls something."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

T = TypeVar("T")

# No user of a machine has these numbers.
TEAM = 64_100
DAEMON, ALICE, BOB, MALLORY = 64_110, 64_111, 64_112, 64_113
UIDS = {"daemon": DAEMON, "alice": ALICE, "bob": BOB, "mallory": MALLORY}

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")


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
