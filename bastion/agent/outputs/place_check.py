"""Whether outputs can be stored where the job wants them, before its command begins."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from random import Random

from bastion.agent.backoff import Backoff
from bastion.agent.download import Cancelled, Download
from bastion.core.errors import PreconditionFailed, Refused, StoreError, StoreUnavailable
from bastion.ports import ObjectStore

# Beside the manifests; no name of theirs.
PROBE = "probe"


class PlaceRefused(Exception):
    """Nothing can be stored there; the text is for users."""


class OutputPlaceCheck(Download):
    """Opens the place of a job's outputs and proves that it can be listed, written and read. Its problem is a
    PlaceRefused.
    """

    def __init__(
        self,
        url: str,
        open_place: Callable[[], tuple[ObjectStore, str]],
        *,
        rng: Random,
        last_seconds: float,
        on_done: Callable[[], None],
    ) -> None:
        """`open_place`: opens the store of this host's outputs, and returns their folder in it."""
        failure = PlaceRefused(f"--output_to={url} was not checked")
        backoff = Backoff(rng, last_seconds=last_seconds)
        super().__init__(
            "the place of the outputs", failure=failure, expected=PlaceRefused, backoff=backoff, on_done=on_done
        )
        self._url = url
        self._open_place = open_place

    def _download(self) -> None:
        while not self._cancelled.is_set():
            try:
                self._probe()
            except StoreUnavailable as error:  # noqa: PERF203 - the loop is a retry
                self._waiting_for = f"--output_to={self._url}: {error}"
                self._cancelled.wait(self._backoff.next())
            except (StoreError, Refused, ValueError) as error:
                raise PlaceRefused(
                    f"the outputs cannot be stored at --output_to={self._url}: {error}; the command was not started"
                ) from error
            else:
                return
        raise Cancelled

    def _probe(self) -> None:
        store, folder = self._open_place()
        next(iter(store.list(folder)), None)
        key = folder + PROBE
        present = store.head(key)
        generation = present.generation if present is not None else 0
        try:
            written = store.put(key, b"", generation=generation)
        except PreconditionFailed:  # an earlier agent's write
            return
        store.get(key)
        # Without this permission, or on a service without conditional deletions, earlier syncs stay.
        with contextlib.suppress(StoreError):
            store.delete(key, generation=written.generation)
