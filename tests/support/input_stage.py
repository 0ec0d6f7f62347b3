"""Inputs in a store in memory, fetched by several agents."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random

from bastion.agent.inputs import pinning
from bastion.agent.inputs.cache import InputCache
from bastion.agent.inputs.fetch import InputFetch, Progress
from bastion.agent.inputs.pinning import PinnedInput
from bastion.agent.inputs.problems import Patience
from bastion.core.run_keys import RunKey
from bastion.ports import ObjectStore
from bastion.testing.counting_store import CountingStore
from bastion.testing.faulty_store import FaultyStore
from bastion.testing.memory_store import MemoryStore

URL = "gs://data/tokens"
FOLDER = "inputs/job/abcdefghij/1/0/"
RUN_KEY = RunKey(b"r" * 32)


class Agent:
    """One agent that fetches the input."""

    def __init__(self, stage: Stage, name: str, cache: InputCache | None) -> None:
        self._stage = stage
        self._folder = stage.folder / name
        self.into = self._folder / "data"
        self.cache = cache
        self.stop = threading.Event()
        self.progress = Progress()
        self.notes: list[str] = []

    def run(self) -> None:
        patience = Patience(
            Random(1), self.stop, last_seconds=0.02, refused_max_seconds=self._stage.refused_max_seconds
        )
        listing = pinning.pin(
            self._stage.own,
            FOLDER,
            self._stage.store,
            URL,
            "tokens",
            run_key=RUN_KEY,
            patience=patience,
            note=self.notes.append,
        )
        fetch = InputFetch(
            self._stage.store,
            listing,
            self.into,
            parts_folder=self._folder / "parts",
            cache=self.cache,
            patience=patience,
            stop=self.stop,
            progress=self.progress,
            at_once=4,
        )
        fetch.run(PinnedInput(self._stage.own, FOLDER, listing, patience).objects())

    def files(self) -> dict[str, bytes]:
        return {str(path.relative_to(self.into)): path.read_bytes() for path in self.into.rglob("*") if path.is_file()}


class Stage:
    """A bucket with the input, and the bastion's own (`own`)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.memory = MemoryStore()
        self.counting = CountingStore(self.memory)
        self.store: ObjectStore = FaultyStore(self.counting)
        self.own: ObjectStore = MemoryStore()
        self.refused_max_seconds = 0.05

    def put(self, path: str, data: bytes) -> None:
        key = f"tokens/{path}"
        meta = self.memory.head(key)
        self.memory.put(key, data, generation=meta.generation if meta else 0)

    def cache(self, limit: int = 1 << 30) -> InputCache:
        return InputCache(self.folder / "cache", limit)

    def agent(self, name: str = "a", *, cache: InputCache | None = None) -> Agent:
        return Agent(self, name, cache)

    def gets(self) -> int:
        return self.counting.calls["get"]
