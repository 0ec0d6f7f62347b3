"""The operator's settings: read when they change; the last good ones stay in force."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bastion.core import limits
from bastion.core.bucket import keys
from bastion.core.errors import NotFound, StoreError
from bastion.core.model import daemon_settings
from bastion.core.model.daemon_settings import SettingsError
from bastion.core.model.provisioning import Provisioning
from bastion.daemon.observe.last_good import NOTHING_LOADED, LastGood, Loaded
from bastion.daemon.observe.listings import LoneObject
from bastion.ports import ObjectStore

_WHAT = f"the settings {keys.DAEMON_SETTINGS}"


@dataclass(frozen=True, slots=True)
class SettingsStatus:
    """The settings in force."""

    # Of the last good file, or the default without one; None: no slice is created, and running jobs go on.
    provisioning: Provisioning | None = None
    problem: str = ""  # why the present object is not in force or is missing; otherwise empty


class SettingsSource:
    """Reads `config/daemon.toml`; a missing or broken one changes nothing and becomes a problem. `loaded`: the file."""

    def __init__(self, store: ObjectStore, listed: LoneObject, *, without_file: Provisioning | None) -> None:
        """Read through `store`. `without_file` has the settings while there never was a file; None: none."""
        self._store = store
        self._listed = listed
        self._without_file = without_file
        self._read_generation = 0
        self._last_good: Provisioning | None = None
        self._copy = LastGood(store, keys.SETTINGS_IN_FORCE, max_bytes=limits.DOCUMENT_MAX_BYTES)
        self._recalled = False
        self.status = SettingsStatus()
        self.loaded = NOTHING_LOADED

    @property
    def copy_problem(self) -> str:
        return self._copy.problem

    def take_over(self) -> None:
        """Forget the settings: those that the predecessor had in force count."""
        self._read_generation, self._recalled, self._last_good = 0, False, None
        self._copy.take_over()

    def refresh(self) -> SettingsStatus:
        try:
            self._recall()
            self._look()
        except StoreError as error:
            self._read_generation = 0  # read it again later
            self.status = self._broken(f"they could not be read: {error}")
        self._copy.settle()
        return self.status

    def _look(self) -> None:
        found = self._listed.meta
        if found is None:
            self._read_generation = 0
            self.status = self._missing()
        elif found.size > limits.DOCUMENT_MAX_BYTES:
            self.status = self._broken(
                f"the file is {found.size} bytes long; the maximum is {limits.DOCUMENT_MAX_BYTES}"
            )
        elif found.generation != self._read_generation:
            self._load()

    def _recall(self) -> None:
        if self._recalled:
            return
        data = self._copy.read()
        try:
            self._last_good = self._completed(daemon_settings.load(data)) if data else None
        except SettingsError:  # written by others
            self._last_good = None
        self._recalled = True

    def _load(self) -> None:
        try:
            stored = self._store.get(keys.DAEMON_SETTINGS, max_bytes=limits.DOCUMENT_MAX_BYTES)
        except NotFound:
            return  # deleted since the listing
        self._read_generation = stored.meta.generation
        try:
            self._last_good = self._completed(daemon_settings.load(stored.data))
            self.status = SettingsStatus(self._last_good)
            self._copy.keep(stored.data)
            self.loaded = Loaded.of(stored)
        except SettingsError as error:
            self.status = self._broken(f"run 'bastion daemon check-config FILE': {error}")

    def _completed(self, settings: Provisioning) -> Provisioning:
        """Return the settings with the slices that there are without a file, if the file says nothing about them."""
        if not settings.without_slices or self._without_file is None:
            return settings
        same = self._without_file
        return replace(settings, resource_types=same.resource_types, tiers=same.tiers)

    def _missing(self) -> SettingsStatus:
        if self._last_good is not None:
            problem = f"{_WHAT} are missing; using the last good ones in {keys.SETTINGS_IN_FORCE}"
            return SettingsStatus(self._last_good, problem)
        if self._without_file is not None:
            return SettingsStatus(self._without_file)
        return SettingsStatus(
            None,
            f"there are no {_WHAT.removeprefix('the ')}, so no slices are created; run 'bastion daemon check-config'",
        )

    def _broken(self, why: str) -> SettingsStatus:
        before = (
            "using the last good ones"
            if self._last_good is not None
            else "there are no earlier ones: no slices are created"
        )
        return SettingsStatus(self._last_good, f"{_WHAT} are not valid, {before}; {why}")
