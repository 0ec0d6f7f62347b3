"""Whether specs and requests come from inboxes: `config/identity.json`, read when it changes.

A bastion whose inboxes are its source never falls back to `jobs/active/` because the file is missing or broken: the
last good one stays in force, over restarts too. Both are listed with the settings, so a bastion without them pays
nothing.
"""

from __future__ import annotations

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import InvalidDocument, NotFound, StoreError
from bastion.core.model import identity
from bastion.core.model.identity import Identity
from bastion.core.model.mode import Mode
from bastion.daemon.observe.last_good import NOTHING_LOADED, LastGood, Loaded
from bastion.daemon.observe.listings import LoneObject
from bastion.ports import ObjectStore

_WHAT = f"the identities {keys.IDENTITY}"


class IdentitySource:
    """Reads the document; `problem` says why the present one is not in force, and `loaded` which one was read last."""

    def __init__(self, store: ObjectStore, listed: LoneObject, copy: LoneObject) -> None:
        self._store = store
        self._listed = listed
        self._listed_copy = copy
        self._copy = LastGood(store, keys.IDENTITY_IN_FORCE, max_bytes=limits.DOCUMENT_MAX_BYTES)
        self._read_generation = 0
        self._known = False
        self.identity = identity.OPEN
        self.problem = ""
        self.loaded = NOTHING_LOADED

    @property
    def copy_problem(self) -> str:
        return self._copy.problem

    def take_over(self) -> None:
        """Forget it: what the predecessor had in force counts."""
        self._read_generation, self._known = 0, False
        self._copy.take_over()

    def refresh(self) -> Identity:
        """Read it if its generation is new. Raises StoreError while it is unknown what is in force."""
        try:
            if not self._known:
                self.identity = self._recall()
            self._look()
            self._known = True
        except StoreError as error:
            if not self._known:
                raise
            self._read_generation = 0  # read it again later
            self.problem = f"{_WHAT} could not be read: {error}"
        self._copy.settle()
        return self.identity

    def _recall(self) -> Identity:
        if self._listed_copy.meta is None:
            return identity.OPEN
        data = self._copy.read()
        try:
            return identity.read(data) if data else identity.OPEN
        except InvalidDocument:  # a damaged copy: only a good file opens the bastion
            return Identity(mode=Mode.INBOX)

    def _look(self) -> None:
        found = self._listed.meta
        if found is None:
            self._read_generation = 0
            self.problem = self._kept("are missing") if self.identity.inbox else ""
        elif found.size > limits.DOCUMENT_MAX_BYTES:
            self.problem = self._kept(f"are {found.size} bytes long; the maximum is {limits.DOCUMENT_MAX_BYTES}")
        elif found.generation != self._read_generation:
            self._load()

    def _load(self) -> None:
        try:
            stored = self._store.get(keys.IDENTITY, max_bytes=limits.DOCUMENT_MAX_BYTES)
        except NotFound:
            return  # deleted since the listing
        self._read_generation = stored.meta.generation
        try:
            self.identity = identity.read(stored.data)
        except InvalidDocument as error:
            self.problem = self._kept(f"are not valid: {error}")
            return
        self.problem = ""
        self._copy.keep(stored.data)
        self.loaded = Loaded.of(stored)

    def _kept(self, why: str) -> str:
        source = "inbox/" if self.identity.inbox else keys.JOBS_ACTIVE
        return f"{_WHAT} {why}; using the last good ones: jobs come from {source}; run 'bastion admin inbox status'"
