"""All inputs of a job on one host: pinned, compared with the disk, fetched, moved into the working directory.

    <state>/inputs/parts/    files that are not whole yet
    <state>/inputs/<i>/      whole files of input i, until all are there
    <state>/inputs/<i>.moved then it is moved

Invariant: the command finds an input with all its files, or not at all.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bastion.agent.backoff import Backoff
from bastion.agent.download import Download
from bastion.agent.host_parts import HostParts
from bastion.agent.inputs import pinning, room
from bastion.agent.inputs.cache import InputCache
from bastion.agent.inputs.fetch import AT_ONCE, AT_ONCE_EMULATED, InputFetch, Progress, object_name
from bastion.agent.inputs.pinning import PinnedInput
from bastion.agent.inputs.problems import InputProblem, Patience
from bastion.core.bucket import host_errors, keys
from bastion.core.bucket.keys import Run
from bastion.core.bucket.protocol import InputOrder, Order
from bastion.core.disk_limit import shown
from bastion.core.plurals import count
from bastion.ports import ObjectStore

# While host 0 lists, the others ask for its listing fifty times a second at most.
_POLL_SECONDS_PER_HOST = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class _Input:
    """An input with the store that it is in; `staged`: its files before they are moved to `place`."""

    number: int
    url: str
    store: ObjectStore
    pinned: PinnedInput
    staged: Path
    place: Path

    @property
    def moved(self) -> Path:
        """Exists from just before the move on."""
        return self.staged.with_suffix(".moved")

    @property
    def is_there(self) -> bool:
        return self.moved.exists() and not self.staged.exists()


class InputsDownload(Download):
    """Fetches an order's inputs. Its problem is an InputProblem.

    Attributes:
        total: Bytes of all inputs; 0 until they are listed.
    """

    def __init__(self, parts: HostParts, order: Order) -> None:
        last_seconds = max(1.0, min(30.0, parts.identity.arguments.poll_seconds * 6))
        super().__init__(
            "the job's inputs",
            failure=InputProblem(host_errors.HOST_FAILED, "the job's inputs were not fetched"),
            expected=InputProblem,
            backoff=Backoff(parts.rng),
            on_done=parts.wakeup.set,
        )
        self._parts = parts
        self._order = order
        self._folder = parts.state.inputs_dir
        self._files = parts.state.files
        self._stop = threading.Event()
        self._patience = Patience(parts.rng, self._stop, last_seconds=last_seconds)
        self._progress = Progress()
        self._notes: list[str] = []
        self.total = 0

    def cancel(self) -> None:
        super().cancel()
        self._stop.set()

    @property
    def fetched(self) -> int:
        """Bytes that are on this host."""
        return max(0, min(self._progress.done, self.total))

    @property
    def waiting_for(self) -> str:
        """Why a store does not answer now; empty if it does."""
        return self._patience.waiting_for

    def take_notes(self) -> list[str]:
        """New lines for the job's log."""
        notes, self._notes = self._notes, []
        return notes

    def _download(self) -> None:
        try:
            with self._files():
                self._folder.mkdir(exist_ok=True)
            inputs = [self._pinned(number, each) for number, each in enumerate(self._order.inputs)]
            self.total = sum(each.pinned.listing.size for each in inputs)
            cache = self._open_cache()
            try:
                kept = self._check_room(inputs, cache)
                for each in inputs:
                    self._fetch(each, kept)
            finally:
                if cache is not None:
                    cache.close()
            with self._files():
                shutil.rmtree(self._parts_folder, ignore_errors=True)
        except OSError as error:
            raise InputProblem(host_errors.HOST_FAILED, f"disk error on the host: {error}") from error

    @property
    def _parts_folder(self) -> Path:
        return self._folder / "parts"

    def _pinned(self, number: int, order: InputOrder) -> _Input:
        parts = self._parts
        arguments = parts.identity.arguments
        run = Run.parse(arguments.run)
        assert run is not None, "only attempts have inputs"
        place, staged = parts.state.work_dir / order.dir, self._folder / str(number)
        source, key = self._patience.call(order.url, lambda: parts.open_bucket(order.url))
        folder, run_key = keys.pinned_input(arguments.job, run, number), parts.identity.run_key
        if parts.identity.host == 0:
            listing = self._patience.call(
                order.url,
                lambda: pinning.pin(
                    parts.store,
                    folder,
                    source,
                    order.url,
                    key,
                    run_key=run_key,
                    patience=self._patience,
                    note=self._notes.append,
                ),
            )
        else:
            listing = pinning.wait_for(
                parts.store,
                folder,
                run_key=run_key,
                patience=self._patience,
                cancelled=self._stop,
                poll_seconds=max(arguments.poll_seconds, _POLL_SECONDS_PER_HOST * parts.identity.num_hosts),
            )
        if listing.url != order.url:
            raise InputProblem(host_errors.HOST_FAILED, f"the listing in {folder} is of another input, {listing.url}")
        pinned = PinnedInput(parts.store, folder, listing, self._patience)
        found = _Input(number=number, url=order.url, store=source, pinned=pinned, staged=staged, place=place)
        with self._files():
            if not found.is_there:
                _check_place(place, order)
        return found

    def _open_cache(self) -> InputCache | None:
        arguments = self._parts.identity.arguments
        if not arguments.input_cache:
            return None
        try:
            return InputCache(Path(arguments.input_cache), arguments.input_cache_bytes or 0)
        except OSError as error:
            self._notes.append(f"the input cache cannot be used, fetching without it: {error}")
            return None

    def _check_room(self, inputs: list[_Input], cache: InputCache | None) -> InputCache | None:
        """Return the cache if it has room, too. Raises InputProblem if the job's folder has none."""
        with self._files():
            wanted = [each for each in inputs if not each.is_there]
            have, have_files = room.used([self._folder])
            mine = room.Room.of(self._folder)
        needed = max(0, sum(each.pinned.listing.disk_size for each in wanted) - have)
        files = max(0, sum(each.pinned.listing.objects for each in wanted) - have_files)
        room.check(mine, size=needed, files=files)
        if cache is None:
            return None
        try:
            growth = cache.growth(self._names(wanted))
        except OSError as error:
            self._notes.append(f"the input cache failed, fetching without it: {error}")
            return None
        theirs = room.Room.of(cache.folder)
        if growth + (needed if theirs.device == mine.device else 0) <= theirs.free:
            return cache
        self._notes.append(
            f"fetching without the input cache: it would grow by {shown(growth)}, and the disk has no room for that"
        )
        return None

    def _names(self, inputs: list[_Input]) -> Iterator[tuple[str, int]]:
        for each in inputs:
            for found in each.pinned.objects():
                yield object_name(each.pinned.listing, found), found.size

    def _fetch(self, each: _Input, cache: InputCache | None) -> None:
        listing = each.pinned.listing
        with self._files():
            is_there = each.is_there
        if is_there:
            self._progress.add(listing.size, fetched=False)
            return
        began, before = time.monotonic(), self._progress.fetched
        fetch = InputFetch(
            each.store,
            listing,
            each.staged,
            parts_folder=self._parts_folder,
            cache=cache,
            patience=self._patience,
            stop=self._stop,
            progress=self._progress,
            at_once=AT_ONCE_EMULATED if self._parts.emulated else AT_ONCE,
            files=self._files,
        )
        try:
            fetch.run(each.pinned.objects())
        finally:
            if fetch.cache_problem:
                self._notes.append(f"the input cache failed, fetching without it: {fetch.cache_problem}")
        with self._files():
            each.place.parent.mkdir(parents=True, exist_ok=True)
            each.moved.touch()
            each.staged.rename(each.place)
        fetched = self._progress.fetched - before
        self._notes.append(
            f"input {each.url}: {count(listing.objects, 'file')}, {shown(listing.size)} "
            f"({shown(fetched)} fetched in {time.monotonic() - began:.0f} s)"
        )


def _check_place(place: Path, order: InputOrder) -> None:
    """Refuse to mix an input with files of the job's code."""
    problem = ""
    if place.is_symlink() or (place.exists() and not place.is_dir()):
        problem = f"the job's code has a file {order.dir}"
    elif place.is_dir() and (found := next(place.iterdir(), None)) is not None:
        problem = f"the job's code has files there, such as {order.dir}/{found.name}"
    elif any(above.is_file() for above in place.parents):
        problem = f"the job's code has a file in the place of a folder above {order.dir}"
    if problem:
        raise InputProblem(
            host_errors.INPUT_INVALID,
            f"the input {order.url} cannot go into {order.dir}: {problem}; choose another folder: "
            f"--input={order.url}:DIR",
        )
