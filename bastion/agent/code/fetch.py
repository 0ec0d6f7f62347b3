"""Fetch, verify and unpack the user's code, in a thread, so that the host's loop still sees stop orders.

Invariants:

* The command finds complete code: it is unpacked elsewhere and appears with one rename.
* A bucket that does not answer is retried forever. Missing or wrong code is the user's problem and is reported once.
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
"""Read a URL. Raises `NotFound`, `AccessDenied` or `Refused` (permanent), or another `StoreError` (retry)."""


class CodeProblem(Exception):
    """There is no code to run. `error` is one of `bastion.core.bucket.host_errors`; the text is for users."""

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
    """Fetch and unpack the order's code into `folder`, which must not exist yet.

    Args:
        wait: Waits for that many seconds, or until the caller gives up.

    Returns:
        The number of files.

    Raises:
        CodeProblem: The code cannot be had, with the reason.
        GivenUp: `is_given_up` returned true.
    """
    data = _fetched(order.code, fetch, backoff=backoff, wait=wait, is_given_up=is_given_up)
    digest = hashlib.sha256(data).hexdigest()
    if order.code_sha256 and digest != order.code_sha256:
        raise CodeProblem(
            host_errors.BUNDLE_INVALID,
            f"{order.code} is damaged: its SHA-256 is {digest}. An administrator may "
            "delete it; the next launch uploads it again",
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
        raise CodeProblem(
            host_errors.HOST_FAILED, f"cannot write the job's code to the host's disk: {error}"
        ) from error
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
                host_errors.BUNDLE_MISSING, f"the job's code no longer exists: {url}; launch the job again"
            ) from error
        except (AccessDenied, Refused) as error:
            raise CodeProblem(host_errors.BUNDLE_MISSING, f"cannot read the job's code: {error}") from error
        except StoreError as error:
            delay = backoff.next()
            _log.warning("the job's code could not be fetched; retrying in %.1f s: %s", delay, error)
            wait(delay)
    raise GivenUp


class CodeArrival:
    """Runs `prepare_code` in a thread."""

    def __init__(
        self, order: Order, folder: Path, fetch: Fetch, *, backoff: Backoff, on_done: Callable[[], None]
    ) -> None:
        """`on_done`: called in the thread once `done` is true."""
        self._order = order
        self._folder = folder
        self._fetch = fetch
        self._backoff = backoff
        self._on_done = on_done
        self._given_up = threading.Event()
        self._thread = threading.Thread(target=self._work, name="code-arrival", daemon=True)
        self.done = False
        self.files = 0
        # Replaced by the result.
        self.problem: CodeProblem | None = CodeProblem(host_errors.HOST_FAILED, "the job's code was not unpacked")

    def start(self) -> None:
        self._thread.start()

    def give_up(self) -> None:
        """Cancel; takes effect after the current piece."""
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
            _log.info("the job's code is no longer needed")
        finally:
            self.done = True
            self._on_done()
