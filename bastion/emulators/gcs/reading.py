"""Read a bucket's folder as resources: bytes, sidecar and generation that belong together. Lock-free, with retries."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from bastion.core.errors import StoreUnavailable
from bastion.emulators.gcs import sidecars
from bastion.emulators.gcs.checksums import KnownChecksums
from bastion.emulators.gcs.opened_bucket import OpenedBucket
from bastion.emulators.gcs.resources import Attributes, NoSuchObject, ObjectResource
from bastion.emulators.gcs.sidecars import Sidecar
from bastion.folder_format import files, places
from bastion.folder_format.places import Place

_DEFAULTS = Attributes()
# A read fails only if the object was replaced, or its file written, meanwhile.
_LOOKS = 50
_T = TypeVar("_T")


class OpenObject:
    """One open generation of an object: its content stays the same, even if the object is replaced."""

    __slots__ = ("_file", "resource")

    def __init__(self, resource: ObjectResource, file: int) -> None:
        self.resource = resource
        self._file = file

    def fileno(self) -> int:
        return self._file

    def detach_file(self) -> int:
        """Return the descriptor, which the caller now owns; the object is its first `resource.size` bytes."""
        file, self._file = self._file, -1
        return file

    def close(self) -> None:
        """Close the file unless it was detached."""
        if self._file >= 0:
            os.close(self.detach_file())

    def __enter__(self) -> OpenObject:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Present(NamedTuple):
    """A live object as a writer sees it. The caller closes `place`."""

    place: Place
    sidecar: Sidecar | None

    @property
    def generation(self) -> int:
        return self.place.generation

    @property
    def metageneration(self) -> int:
        return 1 if self.sidecar is None else self.sidecar.metageneration


class Reader:
    def __init__(self, bucket: str, checksums: KnownChecksums) -> None:
        self._bucket = bucket
        self._checksums = checksums

    def stat(self, opened: OpenedBucket, name: str, generation: int | None) -> ObjectResource:
        """See `Bucket.stat`."""
        resource = self._undisturbed(opened, name, lambda place: self.described(opened, place, name))
        self._check_meant(resource, generation)
        return resource

    def open(self, opened: OpenedBucket, name: str, generation: int | None) -> OpenObject:
        """See `Bucket.open`."""
        found = self._undisturbed(opened, name, lambda place: self._opened(opened, place, name))
        try:
            self._check_meant(found.resource, generation)
        except NoSuchObject:
            found.close()
            raise
        return found

    def listed(self, opened: OpenedBucket, name: str, status: os.stat_result) -> tuple[ObjectResource, int] | None:
        """A listed object and the bytes that were read for it; None if it was deleted."""
        sidecar = sidecars.read(opened.sidecars_if_any, name, status)
        if sidecar is not None:
            return self.resource(status, sidecar), 0
        known = self._checksums.get(status) is not None
        try:
            resource = self.stat(opened, name, None)
        except NoSuchObject:
            return None
        return resource, 0 if known else resource.size

    def _undisturbed(self, opened: OpenedBucket, name: str, look: Callable[[Place], _T | None]) -> _T:
        for _ in range(_LOOKS):
            place = places.find(opened.root, name)
            if place is None:
                raise self.no_such(name)
            with place:
                found = look(place)
            if found is not None:
                return found
        raise StoreUnavailable(f"the object {name!r} changed during {_LOOKS} reads; try again")

    def described(self, opened: OpenedBucket, place: Place, name: str) -> ObjectResource | None:
        """The object at a place; None if it changed meanwhile."""
        sidecar = sidecars.read(opened.sidecars_if_any, name, place.status)
        if sidecar is not None:
            return self.resource(place.status, sidecar)
        file = _open_file(place)
        if file is None:
            return None
        try:
            return self._without_sidecar(file, place, name)
        finally:
            os.close(file)

    def _opened(self, opened: OpenedBucket, place: Place, name: str) -> OpenObject | None:
        """Like `described`, with the file."""
        file = _open_file(place)
        if file is None:
            return None
        resource = None
        try:
            sidecar = sidecars.read(opened.sidecars_if_any, name, place.status)
            if sidecar is None:
                resource = self._without_sidecar(file, place, name)
            elif files.is_same_content(os.fstat(file), place.status):
                resource = self.resource(place.status, sidecar)
        finally:
            if resource is None:
                os.close(file)
        return None if resource is None else OpenObject(resource, file)

    def _without_sidecar(self, file: int, place: Place, name: str) -> ObjectResource | None:
        """An object without a sidecar; None if it may have been replaced meanwhile."""
        crc32c = self._checksums.of_file(file, place.status)
        if crc32c is None:
            return None
        return self.resource(place.status, default_sidecar(name, place.status, crc32c))

    def resource(self, status: os.stat_result, sidecar: Sidecar) -> ObjectResource:
        return sidecar.resource(self._bucket, generation=files.generation_of(status), size=status.st_size)

    def no_such(self, name: str, generation: int | None = None) -> NoSuchObject:
        of = "" if generation is None else f" of generation {generation}"
        return NoSuchObject(f"No such object: {self._bucket}/{name}{of}")

    def _check_meant(self, resource: ObjectResource, generation: int | None) -> None:
        if generation is not None and generation != resource.generation:
            raise self.no_such(resource.name, generation)


def default_sidecar(name: str, status: os.stat_result, crc32c: int) -> Sidecar:
    """The attributes of an object without a sidecar. Its time is the ctime, which nobody can set."""
    changed = status.st_ctime_ns / 1_000_000_000
    return Sidecar(
        name=name,
        crc32c=crc32c,
        md5=None,
        component_count=None,
        metageneration=1,
        created=changed,
        updated=changed,
        attributes=_DEFAULTS,
    )


def _open_file(place: Place) -> int | None:
    """Open the file at a place, by now perhaps another one; None if it was deleted."""
    try:
        return os.open(place.name, os.O_RDONLY | files.FILE, dir_fd=place.folder)
    except OSError as error:
        if error.errno in files.ABSENT:
            return None
        raise
