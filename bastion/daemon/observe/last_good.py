"""The last good copy of a file that people write; a successor uses it when the file is broken."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from bastion.core.errors import NotFound, PreconditionFailed, StoreError, StoreUnavailable
from bastion.ports import ObjectStore, StoredObject

# In ticks. A forged copy matters only to a successor that finds the file itself broken.
_LOOKED_AT_TICKS = 360


@dataclass(frozen=True, slots=True)
class Loaded:
    """The file that was read last and is in force; generation 0: none yet."""

    generation: int = 0
    sha256: str = ""

    @classmethod
    def of(cls, stored: StoredObject) -> Loaded:
        return cls(stored.meta.generation, hashlib.sha256(stored.data).hexdigest())


NOTHING_LOADED = Loaded()


class LastGood:
    """One copy: `keep` sets its content, `settle` writes it. `problem` says why it is outdated; otherwise empty."""

    def __init__(self, store: ObjectStore, key: str, *, max_bytes: int) -> None:
        self._store = store
        self._key = key
        self._max_bytes = max_bytes
        self._generation: int | None = None  # None: unknown
        self._data = b""
        self._wanted: bytes | None = None
        self._kept: bytes | None = None  # last written or verified; None: nothing yet
        self._settled = 0
        self.problem = ""

    def take_over(self) -> None:
        """Forget the copy: another daemon may have written it."""
        self._generation, self._wanted, self._kept, self.problem = None, None, None, ""

    def read(self) -> bytes:
        """Return the copy, empty if there is none or it is too large to be ours; raises StoreError."""
        if self._generation is None:
            found = self._store.head(self._key)
            self._generation, self._data = found.generation if found else 0, b""
            if found is not None and found.size <= self._max_bytes:
                try:
                    stored = self._store.get(self._key, max_bytes=self._max_bytes)
                except NotFound:
                    self._generation = 0
                else:
                    self._generation, self._data = stored.meta.generation, stored.data
        return self._data

    def keep(self, data: bytes) -> None:
        self._wanted = data

    def settle(self) -> None:
        """Write the copy if it differs, and check it now and then; a failure goes to `problem`."""
        self._settled += 1
        try:
            if self._settled % _LOOKED_AT_TICKS == 0 and self._was_changed():
                self._generation, self._wanted = None, self._wanted or self._kept
            if self._wanted is None:
                return
            if self.read() != self._wanted:
                meta = self._store.put(self._key, self._wanted, generation=self._generation or 0)
                self._generation, self._data = meta.generation, self._wanted
            self._kept, self._wanted, self.problem = self._wanted, None, ""
        except (PreconditionFailed, StoreUnavailable) as error:
            self._generation = None
            self.problem = f"the last good copy {self._key} could not be written: {error}"
        except StoreError as error:
            self._generation, self._wanted, self._kept = None, None, None
            self.problem = (
                f"the last good copy {self._key} cannot be written, so a new daemon cannot recover from "
                f"a broken file: {error}"
            )

    def _was_changed(self) -> bool:
        if self._kept is None:
            return False
        found = self._store.head(self._key)
        return (found.generation if found else 0) != self._generation
