"""The operator's settings, read when they change; the last good ones are kept."""

from __future__ import annotations

from dataclasses import dataclass

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import NotFound, StoreError
from bastion.core.model import daemon_settings
from bastion.core.model.daemon_settings import SettingsError
from bastion.core.model.provisioning import Provisioning
from bastion.daemon.observe.last_good import LastGood
from bastion.daemon.observe.listings import LoneObject
from bastion.ports import ObjectStore

_WHAT = f"the settings {keys.DAEMON_SETTINGS}"


@dataclass(frozen=True, slots=True)
class SettingsStatus:
    """What is in force.

    Attributes:
        provisioning: The last good file's, or what holds without one; None: no slice is created, none is deleted for
            it, and whatever runs goes on.
        problem: Why the present object is not in force, or that there is none; empty if all is well.
    """

    provisioning: Provisioning | None = None
    problem: str = ""


class SettingsSource:
    """Reads `config/daemon.toml`; a missing or broken one changes nothing and is told as a problem."""

    def __init__(self, store: ObjectStore, listed: LoneObject, *, without_file: Provisioning | None) -> None:
        """
        Args:
            listed: Where the tick's listings leave the object.
            without_file: What holds as long as there was never a file; None: nothing does.
        """
        self._store = store
        self._listed = listed
        self._without_file = without_file
        self._read_generation = 0
        self._last_good: Provisioning | None = None
        self._copy = LastGood(store, keys.SETTINGS_IN_FORCE, max_bytes=limits.DOCUMENT_MAX_BYTES)
        self._recalled = False
        self.status = SettingsStatus()

    @property
    def copy_problem(self) -> str:
        """Why there is no copy of what is in force; empty if there is one."""
        return self._copy.problem

    def take_over(self) -> None:
        """This daemon has just taken the lease: what its predecessor had in force counts, found in the bucket."""
        self._read_generation, self._recalled, self._last_good = 0, False, None
        self._copy.take_over()

    def refresh(self) -> SettingsStatus:
        """Looks at the listing, and reads the file only if its generation is new."""
        try:
            self._recall()
            self._look()
        except StoreError as error:
            self._read_generation = 0  # read it again, so that this problem ends
            self.status = self._broken(f"they could not be read: {error}")
        self._copy.settle()
        return self.status

    def _look(self) -> None:
        found = self._listed.meta
        if found is None:
            self._read_generation = 0
            self.status = self._missing()
        elif found.size > limits.DOCUMENT_MAX_BYTES:
            self.status = self._broken(f"it has {found.size} bytes; {limits.DOCUMENT_MAX_BYTES} are the most")
        elif found.generation != self._read_generation:
            self._load()

    def _recall(self) -> None:
        if self._recalled:
            return
        data = self._copy.recall()
        try:
            self._last_good = daemon_settings.load(data) if data else None
        except SettingsError:  # somebody else wrote it
            self._last_good = None
        self._recalled = True

    def _load(self) -> None:
        try:
            stored = self._store.get(keys.DAEMON_SETTINGS, max_bytes=limits.DOCUMENT_MAX_BYTES)
        except NotFound:
            return  # removed since the listing; the next tick says so
        self._read_generation = stored.meta.generation
        try:
            self._last_good = daemon_settings.load(stored.data)
            self.status = SettingsStatus(self._last_good)
            self._copy.keep(stored.data)
        except SettingsError as error:
            self.status = self._broken(f"'bastion daemon check-config FILE' tells more: {error}")

    def _missing(self) -> SettingsStatus:
        if self._last_good is not None:
            problem = f"{_WHAT} are gone; the last good ones stay, and lie in {keys.SETTINGS_IN_FORCE}"
            return SettingsStatus(self._last_good, problem)
        if self._without_file is not None:
            return SettingsStatus(self._without_file)
        return SettingsStatus(
            None, f"there are no {_WHAT.removeprefix('the ')}: no slice is created; 'bastion daemon check-config' helps"
        )

    def _broken(self, why: str) -> SettingsStatus:
        before = (
            "the last good ones stay"
            if self._last_good is not None
            else "there were no good ones before: no slice is created"
        )
        return SettingsStatus(self._last_good, f"{_WHAT} are not in force, {before}; {why}")
