"""Fetch, verify and unpack the user's code.

Invariants:
* The command finds complete code: it is unpacked elsewhere and appears with one rename.
* A bucket that does not answer is retried forever. Missing or invalid code is the user's problem and is reported once.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from bastion.agent.backoff import Backoff
from bastion.agent.code import archive
from bastion.agent.download import Download
from bastion.core.bucket import host_errors
from bastion.core.bucket.protocol import Order
from bastion.core.errors import AccessDenied, NotFound, Refused

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
        self, order: Order, folder: Path, fetch: Fetch, *, backoff: Backoff, on_done: Callable[[], None]
    ) -> None:
        failure = CodeProblem(host_errors.HOST_FAILED, "the job's code was not unpacked")
        super().__init__("the job's code", failure=failure, expected=CodeProblem, backoff=backoff, on_done=on_done)
        self._order = order
        self._folder = folder
        self._fetch = fetch

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
        new = self._folder.with_name(self._folder.name + ".new")
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
        except (AccessDenied, Refused) as error:
            raise CodeProblem(host_errors.BUNDLE_MISSING, f"cannot read the job's code: {error}") from error
