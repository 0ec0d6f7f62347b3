"""The quota file and the runtime options: read when they change; the last good ones stay in force.

After a takeover, what the predecessor had in force counts, from the bucket.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from pydantic import BaseModel, ConfigDict, ValidationError

from bastion.core import documents, limits
from bastion.core.bucket import keys
from bastion.core.documents import DocumentError
from bastion.core.errors import NotFound, StoreError
from bastion.daemon.observe.last_good import LastGood
from bastion.daemon.observe.listings import LoneObject
from bastion.ports import ObjectMeta, ObjectStore
from quota import Policy, QuotaFileError, load

_NONE_YET = f"there is no quota file {keys.PROJECT_QUOTAS} yet"
# First line of the copy: the generation of the copied file.
_COPY_OF = b"# the last good quota file, kept by the daemon; generation "
_COPY = re.compile(re.escape(_COPY_OF) + rb"([0-9]{1,20})\n")


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """The quota file in force."""

    # Of the last good file. None if there never was one: then no job starts or is stopped.
    policy: Policy | None = None
    generation: int = 0  # of the object that `policy` was read from
    problem: str = ""  # why the present object is not in force; empty if it is
    data: bytes = field(default=b"", repr=False)  # the file that `policy` was read from


class PolicySource:
    """Reads the quota file; a missing or broken one changes nothing and becomes a problem."""

    def __init__(self, store: ObjectStore, listed: LoneObject | None) -> None:
        """Read through `store`. `listed` None: the file is under another ROOT, is listed here, and gets no copy."""
        self._store = store
        self._listed = listed
        self._read_generation = 0
        self._recalled = False
        self._published_generation = 0
        self._copy = (
            LastGood(store, keys.QUOTAS_IN_FORCE, max_bytes=limits.QUOTA_FILE_MAX_BYTES + 1024) if listed else None
        )
        self.status = PolicyStatus(problem=_NONE_YET)

    @property
    def copy_problem(self) -> str:
        """Why there is no last good copy; empty if there is one or none is needed."""
        return self._copy.problem if self._copy else ""

    def take_over(self, published_generation: int) -> None:
        """Forget a policy that the predecessor did not have in force; `published_generation` is of that, or 0."""
        known = self.status
        self._read_generation, self._recalled, self._published_generation = 0, False, published_generation
        if known.policy is None or not published_generation or known.generation != published_generation:
            self.status = PolicyStatus(problem=_NONE_YET)
        if self._copy is not None:
            self._copy.take_over()

    def refresh(self) -> PolicyStatus:
        """Read the file if its generation is new. A failure becomes a problem, because it may be another bucket."""
        try:
            self._look()
        except StoreError as error:
            self._read_generation = 0  # read it again later
            problem = f"the quota file could not be read: {error}"
            self.status = replace(self.status, problem=problem)
        if self._copy is not None:
            self._copy.settle()
        return self.status

    def _look(self) -> None:
        found = self._listed.meta if self._listed else self._list()
        if found is None:
            self._read_generation = 0
            self._keep_to_the_last_good(f"there is no quota file {keys.PROJECT_QUOTAS}")
        elif found.generation != self._read_generation:
            self._load(found.size)

    def _list(self) -> ObjectMeta | None:
        return next((m for m in self._store.list(keys.PROJECT_QUOTAS) if m.key == keys.PROJECT_QUOTAS), None)

    def _load(self, size: int) -> None:
        if size > limits.QUOTA_FILE_MAX_BYTES:
            problem = f"the quota file is {size} bytes long; the maximum is {limits.QUOTA_FILE_MAX_BYTES}"
            self._keep_to_the_last_good(problem)
            return
        try:
            stored = self._store.get(keys.PROJECT_QUOTAS, max_bytes=limits.QUOTA_FILE_MAX_BYTES)
        except NotFound:
            return  # deleted since the listing
        self._read_generation = stored.meta.generation
        try:
            self.status = PolicyStatus(load(stored.data), stored.meta.generation, data=stored.data)
            if self._copy is not None:
                self._copy.keep(_COPY_OF + b"%d\n" % stored.meta.generation + stored.data)
        except QuotaFileError as error:
            self._recall()
            before = "using the last good one" if self.status.policy else "there is no earlier one: no job starts"
            problem = (
                f"the quota file {keys.PROJECT_QUOTAS} is not valid, {before}; "
                f"run 'bastion quota check FILE': {'; '.join(str(problem) for problem in error.problems)}"
            )
            self.status = replace(self.status, problem=problem)

    def _keep_to_the_last_good(self, problem: str) -> None:
        self._recall()
        self.status = replace(self.status, problem=problem)

    def _recall(self) -> None:
        """Restore the predecessor's policy if this daemon has not read a good file yet."""
        if self.status.policy is not None or self._recalled:
            return
        self._read_generation = 0  # until it is known
        if self._copy is not None and (copy := _COPY.match(data := self._copy.read())):
            found, generation = data, int(copy[1])
        else:
            found, generation = self._former(), self._published_generation
        try:
            policy = load(found) if found else None
        except QuotaFileError:  # written by others
            policy = None
        self._recalled = True
        if policy is not None:
            self.status = PolicyStatus(policy, generation, data=found)

    def _former(self) -> bytes:
        """The former quota file of the generation in force, if `bastion quota upload` kept it."""
        if not self._published_generation:
            return b""
        ending = f"-{self._published_generation}.config"
        for meta in self._store.list(keys.FORMER_QUOTAS):
            if meta.key.endswith(ending) and meta.size <= limits.QUOTA_FILE_MAX_BYTES:
                return self._store.get(meta.key, max_bytes=limits.QUOTA_FILE_MAX_BYTES).data
        return b""


class _SchedulerOptions(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    dry_run: bool = False
    verbosity: int = 0


class RuntimeOptions(BaseModel):
    """The object `runtime_options`; all keys are optional, unknown ones are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    scheduler: _SchedulerOptions = _SchedulerOptions()


class OptionsSource:
    """Reads `runtime_options`; a broken object leaves the last good one in force, a missing one means the defaults."""

    def __init__(self, store: ObjectStore, listed: LoneObject) -> None:
        self._store = store
        self._listed = listed
        self._read_generation = 0
        self._known = False
        self._copy = LastGood(store, keys.OPTIONS_IN_FORCE, max_bytes=limits.DOCUMENT_MAX_BYTES)
        self.options = RuntimeOptions()
        self.problem = ""

    @property
    def copy_problem(self) -> str:
        return self._copy.problem

    def take_over(self) -> None:
        self._read_generation, self._known = 0, False
        self._copy.take_over()

    def refresh(self) -> RuntimeOptions:
        """Read the options if their generation is new; raises StoreError if it is unknown whether this is a dry run."""
        try:
            if not self._known:
                self._recall()
            self._look()
            self._known = True
        except StoreError as error:
            if not self._known:
                raise
            self._read_generation = 0  # read them again later
            self.problem = f"{keys.RUNTIME_OPTIONS} could not be read: {error}"
        self._copy.settle()
        return self.options

    def _recall(self) -> None:
        try:
            self.options = RuntimeOptions.model_validate(documents.loads(self._copy.read() or b"{}"))
        except (DocumentError, ValidationError):  # written by others
            self.options = RuntimeOptions()

    def _look(self) -> None:
        found = self._listed.meta
        if found is None:
            self._read_generation, self.options, self.problem = 0, RuntimeOptions(), ""
            if self._copy.read():
                self._copy.keep(b"")
        elif found.size > limits.DOCUMENT_MAX_BYTES:
            self.problem = (
                f"{keys.RUNTIME_OPTIONS} is {found.size} bytes long; the maximum is {limits.DOCUMENT_MAX_BYTES}"
            )
        elif found.generation != self._read_generation:
            try:
                stored = self._store.get(keys.RUNTIME_OPTIONS, max_bytes=limits.DOCUMENT_MAX_BYTES)
                self._read_generation = stored.meta.generation
                self.options = RuntimeOptions.model_validate(documents.loads(stored.data))
                self.problem = ""
                self._copy.keep(stored.data)
            except NotFound:
                return  # deleted since the listing
            except (DocumentError, ValidationError) as error:
                self.problem = f"{keys.RUNTIME_OPTIONS} is not valid; using the last good one: {error}"
