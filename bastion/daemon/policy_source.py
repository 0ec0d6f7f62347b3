"""The quota file and the runtime options, read when they change; the last good ones are kept."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import BaseModel, ConfigDict, ValidationError

from bastion.core import documents, keys, limits
from bastion.core.documents import DocumentError
from bastion.core.errors import NotFound, StoreError
from bastion.daemon.listings import LoneObject
from bastion.ports import ObjectMeta, ObjectStore
from quota import Policy, QuotaFileError, load


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """What is in force.

    Attributes:
        policy: The last good file's; None if there never was one: then nothing is admitted and nothing is stopped.
        generation: Of the object that `policy` was read from.
        problem: Why the present object is not in force; empty if it is.
    """

    policy: Policy | None = None
    generation: int = 0
    problem: str = ""


class PolicySource:
    """Reads the quota file; a missing or broken one changes nothing and is told as a problem."""

    def __init__(self, store: ObjectStore, listed: LoneObject | None) -> None:
        """`listed`: where the tick's listings leave the file; None: it lies elsewhere and is listed here."""
        self._store = store
        self._listed = listed
        self._read_generation = 0
        self.status = PolicyStatus(problem=f"there is no quota file {keys.PROJECT_QUOTAS} yet")

    def refresh(self) -> PolicyStatus:
        """Looks at the listing, and reads the file only if its generation is new.

        A store that does not answer is a problem as well: the file may lie under another bucket than everything else.
        """
        try:
            self._look()
        except StoreError as error:
            self._read_generation = 0  # read it again, so that this problem ends
            problem = f"the quota file could not be read: {error}"
            self.status = PolicyStatus(self.status.policy, self.status.generation, problem)
        return self.status

    def _look(self) -> None:
        found = self._listed.meta if self._listed else self._list()
        if found is None:
            self._read_generation = 0
            self.status = PolicyStatus(
                self.status.policy, self.status.generation, f"there is no quota file {keys.PROJECT_QUOTAS}"
            )
        elif found.generation != self._read_generation:
            self._load(found.size)

    def _list(self) -> ObjectMeta | None:
        return next((m for m in self._store.list(keys.PROJECT_QUOTAS) if m.key == keys.PROJECT_QUOTAS), None)

    def _load(self, size: int) -> None:
        if size > limits.QUOTA_FILE_MAX_BYTES:
            problem = f"the quota file has {size} bytes; {limits.QUOTA_FILE_MAX_BYTES} are the most"
            self.status = PolicyStatus(self.status.policy, self.status.generation, problem)
            return
        try:
            stored = self._store.get(keys.PROJECT_QUOTAS, max_bytes=limits.QUOTA_FILE_MAX_BYTES)
        except NotFound:
            return  # removed since the listing; the next tick says so
        self._read_generation = stored.meta.generation
        try:
            self.status = PolicyStatus(load(stored.data), stored.meta.generation)
        except QuotaFileError as error:
            before = "the last good one stays" if self.status.policy else "there was no good one before: nothing starts"
            problem = (
                f"the quota file {keys.PROJECT_QUOTAS} is not in force, {before}; "
                f"'bastion quota check FILE' tells more: {'; '.join(str(problem) for problem in error.problems)}"
            )
            self.status = PolicyStatus(self.status.policy, self.status.generation, problem)


class _SchedulerOptions(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    dry_run: bool = False
    verbosity: int = 0


class RuntimeOptions(BaseModel):
    """The object `runtime_options`; every key is optional, and unknown ones are ignored."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    scheduler: _SchedulerOptions = _SchedulerOptions()


class OptionsSource:
    """Reads `runtime_options`; a broken one leaves the last good in force, a missing one means the defaults."""

    def __init__(self, store: ObjectStore, listed: LoneObject) -> None:
        """`listed`: where the tick's listings leave the object."""
        self._store = store
        self._listed = listed
        self._read_generation = 0
        self._known = False
        self.options = RuntimeOptions()
        self.problem = ""

    def refresh(self) -> RuntimeOptions:
        """Looks at the listing, and reads the options only if their generation is new.

        Raises:
            StoreError: it was never known whether this is a dry run.
        """
        try:
            self._look()
            self._known = True
        except StoreError as error:
            if not self._known:
                raise
            self._read_generation = 0  # read them again, so that this problem ends
            self.problem = f"{keys.RUNTIME_OPTIONS} could not be read: {error}"
        return self.options

    def _look(self) -> None:
        found = self._listed.meta
        if found is None:
            self._read_generation, self.options, self.problem = 0, RuntimeOptions(), ""
        elif found.size > limits.DOCUMENT_MAX_BYTES:
            self.problem = f"{keys.RUNTIME_OPTIONS} has {found.size} bytes; {limits.DOCUMENT_MAX_BYTES} are the most"
        elif found.generation != self._read_generation:
            try:
                stored = self._store.get(keys.RUNTIME_OPTIONS, max_bytes=limits.DOCUMENT_MAX_BYTES)
                self._read_generation = stored.meta.generation
                self.options = RuntimeOptions.model_validate(documents.loads(stored.data))
                self.problem = ""
            except NotFound:
                return  # removed since the listing; the next tick says so
            except (DocumentError, ValidationError) as error:
                self.problem = f"{keys.RUNTIME_OPTIONS} is not in force: {error}"
