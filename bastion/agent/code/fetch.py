"""The user's code on its way to a host: fetched, verified, unpacked, in a thread of its own.

Layer: worker. Meanwhile the host's loop sees stop orders; it gives up by `give_up`.

Invariants:

* What the command finds is whole: it is unpacked beside its folder, which appears in one rename.
* A bucket that does not answer is asked for ever. That something is not there, or not what it should be, is the user's
  to mend, and is said once.
"""

from __future__ import annotations

import hashlib
import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from bastion.agent.backoff import Backoff
from bastion.agent.code import archive as code_archive
from bastion.agent.code.archive import BadArchive, GivenUp
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import Order
from bastion.core.errors import AccessDenied, NotFound, Refused, StoreError

_log = logging.getLogger(__name__)

Fetch: TypeAlias = Callable[[str], bytes]
"""The bytes at a URL. Raises `NotFound`, `AccessDenied`, `Refused` (never) or another `StoreError` (try again)."""


class CodeProblem(Exception):
    """There is no code to run: `error` is one of `bastion.core.bucket.host_errors`, the text is for people."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error = error


def prepare_code(
    order: Order,
    folder: Path,
    fetch: Fetch,
    *,
    backoff: Backoff,
    wait: Callable[[float], object],
    is_given_up: Callable[[], bool],
) -> int:
    """Fetches and unpacks the order's code into `folder`, which does not exist before.

    Args:
        wait: Waits for so many seconds, or less if it is given up.

    Returns:
        How many files it has.

    Raises:
        CodeProblem: that cannot be done, and why.
        GivenUp: `is_given_up` said so.
    """
    data = _fetched(order.code, fetch, backoff=backoff, wait=wait, is_given_up=is_given_up)
    digest = hashlib.sha256(data).hexdigest()
    if order.code_sha256 and digest != order.code_sha256:
        raise CodeProblem(
            host_errors.BUNDLE_INVALID,
            f"{order.code} is not the file that its name promises (its SHA-256 is {digest}); an administrator may "
            "delete it, and the next launch stores it again",
        )
    new = folder.with_name(folder.name + ".new")
    try:
        files = code_archive.unpack(data, new, is_given_up=is_given_up)
        new.rename(folder)
    except BadArchive as error:
        shutil.rmtree(new, ignore_errors=True)
        raise CodeProblem(host_errors.BUNDLE_INVALID, f"{order.code} cannot be unpacked: {error}") from error
    except OSError as error:
        shutil.rmtree(new, ignore_errors=True)
        raise CodeProblem(host_errors.HOST_FAILED, f"the host's disk refused the job's code: {error}") from error
    return files


def _fetched(
    url: str,
    fetch: Fetch,
    *,
    backoff: Backoff,
    wait: Callable[[float], object],
    is_given_up: Callable[[], bool],
) -> bytes:
    while not is_given_up():
        try:
            return fetch(url)
        except NotFound as error:  # noqa: PERF203 - repeating is what the loop is for
            raise CodeProblem(
                host_errors.BUNDLE_MISSING, f"the job's code is not there any more: {url}; launch it again"
            ) from error
        except (AccessDenied, Refused) as error:
            raise CodeProblem(host_errors.BUNDLE_MISSING, f"the job's code cannot be had: {error}") from error
        except StoreError as error:
            delay = backoff.next()
            _log.warning("the job's code could not be fetched, again in %.1f s: %s", delay, error)
            wait(delay)
    raise GivenUp


class CodeArrival:
    """`prepare_code` in a thread."""

    def __init__(
        self, order: Order, folder: Path, fetch: Fetch, *, backoff: Backoff, on_done: Callable[[], None]
    ) -> None:
        """`on_done` is called from the thread once `done` is true."""
        self._order = order
        self._folder = folder
        self._fetch = fetch
        self._backoff = backoff
        self._on_done = on_done
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._work, name="code-arrival", daemon=True)
        self.done = False
        self.files = 0
        # Replaced in the end, whatever happens in between.
        self.problem: CodeProblem | None = CodeProblem(host_errors.HOST_FAILED, "the job's code was not unpacked")

    def start(self) -> None:
        self._thread.start()

    def give_up(self) -> None:
        """Nobody waits for it any more; what is being read or written is finished first, within a piece."""
        self._given_up.set()

    def _work(self) -> None:
        try:
            self.files = prepare_code(
                self._order,
                self._folder,
                self._fetch,
                backoff=self._backoff,
                wait=self._given_up.wait,
                is_given_up=self._given_up.is_set,
            )
            self.problem = None
        except CodeProblem as problem:
            self.problem = problem
        except GivenUp:
            _log.info("the job's code is not needed any more")
        finally:
            self.done = True
            self._on_done()
