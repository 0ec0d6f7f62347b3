"""Fetch, verify and unpack the user's code.

Invariants:
* The command finds complete code: it is unpacked elsewhere and appears with one rename.
* A bucket that does not answer is retried forever. The bastion's own may refuse the code for a while,
  because the host has just read its order there. Missing or invalid code is the user's problem and is reported once.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TypeAlias

from bastion.agent.backoff import Backoff
from bastion.agent.code import archive
from bastion.agent.download import Download
from bastion.core import limits
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import Order
from bastion.core.errors import AccessDenied, NotFound, Refused, StoreUnavailable

Fetch: TypeAlias = Callable[[str], bytes]
"""Read a URL. Raises `NotFound`, `AccessDenied` or `Refused` (permanent), or another `StoreError` (retry)."""


class CodeProblem(Exception):
    """There is no code to run. `error` is one of `bastion.core.bucket.host_errors`; the text is for users."""

    def __init__(self, error: str, message: str) -> None:
        super().__init__(message)
        self.error = error


class CodeDownload(Download):
    """Downloads and unpacks an order's code into `folder`, which must not exist yet. Its problem is a CodeProblem."""

    def __init__(
        self,
        order: Order,
        folder: Path,
        fetch: Fetch,
        *,
        root: str,
        backoff: Backoff,
        on_done: Callable[[], None],
        files: Callable[[], AbstractContextManager[None]] = nullcontext,
        refused_max_seconds: float = limits.REFUSED_MAX_SECONDS,
    ) -> None:
        """`root`: of the bastion; `files`: gives this thread the rights to write the folder."""
        failure = CodeProblem(host_errors.HOST_FAILED, "the job's code was not unpacked")
        super().__init__("the job's code", failure=failure, expected=CodeProblem, backoff=backoff, on_done=on_done)
        self._order = order
        self._folder = folder
        self._fetch = fetch
        self._files = files
        self._refused_max_seconds = refused_max_seconds if order.code.startswith(f"{root}/") else 0.0
        self._refused_since: float | None = None

    def _download(self) -> None:
        order = self._order
        data = self._retry(self._fetch_once)
        digest = hashlib.sha256(data).hexdigest()
        if order.code_sha256 and digest != order.code_sha256:
            raise CodeProblem(
                host_errors.BUNDLE_INVALID,
                f"{order.code} is damaged: its SHA-256 is {digest}. An administrator may "
                "delete it; the next launch uploads it again",
            )
        with self._files():
            self._unpack(data)

    def _unpack(self, data: bytes) -> None:
        order = self._order
        new = self._folder.with_name(self._folder.name + ".new")
        shutil.rmtree(new, ignore_errors=True)  # of an agent that died meanwhile
        try:
            archive.unpack(data, new, is_cancelled=self._cancelled.is_set)
            new.rename(self._folder)
        except archive.BadArchive as error:
            shutil.rmtree(new, ignore_errors=True)
            raise CodeProblem(host_errors.BUNDLE_INVALID, f"{order.code} cannot be unpacked: {error}") from error
        except OSError as error:
            shutil.rmtree(new, ignore_errors=True)
            raise CodeProblem(
                host_errors.HOST_FAILED, f"cannot write the job's code to the host's disk: {error}"
            ) from error

    def _fetch_once(self) -> bytes:
        url = self._order.code
        try:
            return self._fetch(url)
        except NotFound as error:
            raise CodeProblem(
                host_errors.BUNDLE_MISSING, f"the job's code no longer exists: {url}; launch the job again"
            ) from error
        except AccessDenied as error:
            now = time.monotonic()
            self._refused_since = now if self._refused_since is None else self._refused_since
            if now - self._refused_since >= self._refused_max_seconds:
                raise CodeProblem(host_errors.BUNDLE_MISSING, f"cannot read the job's code: {error}") from error
            raise StoreUnavailable(str(error)) from error
        except Refused as error:
            raise CodeProblem(host_errors.BUNDLE_MISSING, f"cannot read the job's code: {error}") from error
