"""The objects of one bucket: reading, writing, composing, copying and changing them.

Layer: emulator. On `bastion.directory`, like `bastion.adapters.directory_store`, which may use the folder at the same
time; `sidecars` adds what a file cannot tell.

Invariants:

* Preconditions are checked under the key's lock, in the critical section of the rename or removal.
* A resource describes exactly the bytes that are served with it, sidecar included.
* A mutation either happened, or raised and changed nothing that a reader sees.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from bastion.core.errors import StoreError, StoreUnavailable
from bastion.directory import files, places
from bastion.directory.keys import HIDDEN_FOLDER, stripe, stripes
from bastion.directory.lock import HighWaterMark, locked
from bastion.emulator.gcs import pages, sidecars
from bastion.emulator.gcs.checksums import KnownChecksums
from bastion.emulator.gcs.names import check_object_name
from bastion.emulator.gcs.resources import (
    Attributes,
    ConditionFailed,
    Declared,
    NoSuchBucket,
    NoSuchObject,
    ObjectResource,
    Page,
    Preconditions,
)
from bastion.emulator.gcs.sidecars import Sidecar
from bastion.emulator.gcs.staging import Staging

_NO_PRECONDITIONS = Preconditions()
_NOTHING_DECLARED = Declared()
_DEFAULTS = Attributes()
_LOCK_TIMEOUT_SECONDS = 30.0
# Each look fails only if somebody replaced the object, or was writing into its file, meanwhile.
_LOOKS = 50
_SWEEP_SECONDS = 0.2

_READING = "read permission on it and search permission (x) on its folders"
_WRITING = "write and search permission on its folder and on the bucket's .objects"


BeforeChange = Callable[[str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One piece of a composite object.

    Attributes:
        generation: The one that is meant; None: whichever is live.
        generation_match: What the live one's must be for the call to go on; None: any.
    """

    name: str
    generation: int | None = None
    generation_match: int | None = None


class OpenObject:
    """One generation of an object, open: what is read from it stays the same, whatever happens to its name."""

    __slots__ = ("_file", "resource")

    def __init__(self, resource: ObjectResource, file: int) -> None:
        self.resource = resource
        self._file = file

    def fileno(self) -> int:
        return self._file

    def detach_file(self) -> int:
        """The descriptor, from now on the caller's to close; `resource.size` bytes of it are the object."""
        file, self._file = self._file, -1
        return file

    def close(self) -> None:
        """Closes the file unless it was detached."""
        if self._file >= 0:
            os.close(self.detach_file())

    def __enter__(self) -> OpenObject:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Present(NamedTuple):
    """A live object as a writer sees it; whoever gets it closes the place.

    Attributes:
        sidecar: None if it has none.
    """

    place: places.Place
    sidecar: Sidecar | None

    @property
    def generation(self) -> int:
        return self.place.generation

    @property
    def metageneration(self) -> int:
        return 1 if self.sidecar is None else self.sidecar.metageneration


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    """A writer that holds the lock of a key: open folders of the bucket, and what lies there."""

    root: int
    objects: int
    sidecars: int
    mark: HighWaterMark
    present: _Present | None


class Bucket:
    """One bucket; safe to use from many threads, and beside other processes.

    Args:
        path: Its folder.
        name: Its name.
        checksums: Of files without a sidecar; shared by all buckets.
        fsync: Whether a mutation returns only when it would survive a power cut.
        before_change: Told bucket and object of each change whose preconditions hold; what it raises prevents that.
    """

    def __init__(
        self, path: str, name: str, *, checksums: KnownChecksums, fsync: bool, before_change: BeforeChange
    ) -> None:
        self.name = name
        self.path = path
        self.fsync = fsync
        self._checksums = checksums
        self._before_change = before_change

    def __repr__(self) -> str:
        return f"Bucket({self.path!r})"

    # Reading

    def stat(self, name: str, *, generation: int | None = None) -> ObjectResource:
        """What the object is.

        Raises:
            NoSuchObject: there is none, or its live generation is another.
        """
        check_object_name(name)
        with (
            self.explained("looking up", name, _READING),
            self.root() as root,
            sidecars.opened_for_reading(root) as folder,
        ):
            for _ in range(_LOOKS):
                place = places.find(root, name)
                if place is None:
                    raise self._no_such(name)
                with place:
                    resource = self._described(place, folder, name)
                if resource is not None:
                    return self._meant(resource, generation)
        raise self._restless(name)

    def open(self, name: str, *, generation: int | None = None) -> OpenObject:
        """The object's bytes, pinned.

        Raises:
            NoSuchObject: there is none, or its live generation is another.
        """
        check_object_name(name)
        with self.explained("reading", name, _READING), self.root() as root:
            for _ in range(_LOOKS):
                place = places.find(root, name)
                if place is None:
                    raise self._no_such(name)
                with place:
                    opened = self._opened(root, place, name)
                if opened is not None:
                    try:
                        self._meant(opened.resource, generation)
                    except NoSuchObject:
                        opened.close()
                        raise
                    return opened
        raise self._restless(name)

    def list(
        self,
        *,
        prefix: str = "",
        delimiter: str = "",
        start_offset: str = "",
        end_offset: str = "",
        page_token: str = "",
        page_size: int = 1000,
        include_trailing_delimiter: bool = False,
        match_glob: str = "",
    ) -> Page:
        """One page of the objects, in the order of their names' UTF-8 bytes.

        Args:
            prefix: Of the wanted names.
            delimiter: Names that hold it after the prefix are folded to one prefix, up to and with it.
            start_offset: The first name that may be listed.
            end_offset: All listed names are less, unless it is empty.
            page_token: Of the former page.
            page_size: Objects and prefixes at most, together; a page may be shorter and yet not the last.
            include_trailing_delimiter: Lists objects that end with the first delimiter, beside the prefix.
            match_glob: What listed names and prefixes must match.

        Raises:
            InvalidRequest: the token or the glob is none.
        """
        wanted = pages.Wanted(
            prefix=prefix,
            delimiter=delimiter,
            start_offset=start_offset,
            end_offset=end_offset,
            page_token=page_token,
            page_size=page_size,
            include_trailing_delimiter=include_trailing_delimiter,
            match_glob=match_glob,
        )
        with (
            self.explained("listing", prefix, _READING),
            self.root() as root,
            sidecars.opened_for_reading(root) as folder,
        ):
            return pages.page(self.path, wanted, lambda name, status: self._listed(folder, name, status))

    def _listed(self, folder: int | None, name: str, status: os.stat_result) -> pages.Listed | None:
        """An object that a listing found; None if it is gone by now."""
        sidecar = sidecars.read(folder, name, status)
        if sidecar is not None:
            return pages.Listed(self._resource(name, status, sidecar), 0)
        known = self._checksums.get(status) is not None
        try:
            resource = self.stat(name)
        except NoSuchObject:
            return None
        return pages.Listed(resource, 0 if known else resource.size)

    def _described(self, place: places.Place, folder: int | None, name: str) -> ObjectResource | None:
        """The object that lies at a place; None if it was changed meanwhile."""
        sidecar = sidecars.read(folder, name, place.status)
        if sidecar is not None:
            return self._resource(name, place.status, sidecar)
        file = _open_file(place)
        if file is None:
            return None
        try:
            return self._without_sidecar(file, place, name)
        finally:
            os.close(file)

    def _opened(self, root: int, place: places.Place, name: str) -> OpenObject | None:
        """As `_described`, with the file."""
        file = _open_file(place)
        if file is None:
            return None
        resource = None
        try:
            with sidecars.opened_for_reading(root) as folder:
                sidecar = sidecars.read(folder, name, place.status)
            if sidecar is None:
                resource = self._without_sidecar(file, place, name)
            elif files.is_same_content(os.fstat(file), place.status):
                resource = self._resource(name, place.status, sidecar)
        finally:
            if resource is None:
                os.close(file)
        return None if resource is None else OpenObject(resource, file)

    def _without_sidecar(self, file: int, place: places.Place, name: str) -> ObjectResource | None:
        """An object whose sidecar we did not find; None if that may be because it was replaced meanwhile."""
        crc32c = self._checksums.of_file(file, place.status)
        return None if crc32c is None else self._resource(name, place.status, self._default(name, place.status, crc32c))

    def _default(self, name: str, status: os.stat_result, crc32c: int) -> Sidecar:
        # The change time, as in a `DirectoryStore`: nobody can set it.
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

    def _resource(self, name: str, status: os.stat_result, sidecar: Sidecar) -> ObjectResource:
        return ObjectResource(
            bucket=self.name,
            name=name,
            generation=files.generation_of(status),
            metageneration=sidecar.metageneration,
            size=status.st_size,
            crc32c=sidecar.crc32c,
            md5=sidecar.md5,
            component_count=sidecar.component_count,
            time_created=sidecar.created,
            updated=sidecar.updated,
            attributes=sidecar.attributes,
        )

    def _meant(self, resource: ObjectResource, generation: int | None) -> ObjectResource:
        if generation is not None and generation != resource.generation:
            raise self._no_such(resource.name, generation)
        return resource

    # Writing

    def stage(self) -> Staging:
        """An empty file for the bytes of an object to be."""
        with self.explained("writing into", "", _WRITING), self.root() as root, self.hidden(root) as objects:
            return Staging(places.new_temporary(objects))

    def commit(
        self,
        name: str,
        staging: Staging,
        attributes: Attributes,
        preconditions: Preconditions,
        *,
        declared: Declared = _NOTHING_DECLARED,
    ) -> ObjectResource:
        """Makes an object of what was staged, over the present one.

        Raises:
            ChecksumMismatch: the bytes are not those that were declared.
            ConditionFailed: a precondition does not hold.
            InvalidRequest: no object can have that name or those attributes.
        """
        staging.check(declared)
        return self.fill(name, staging, self.new_sidecar(name, staging, attributes), preconditions)

    def new_sidecar(self, name: str, staging: Staging, attributes: Attributes) -> Sidecar:
        """Of a new generation, whose bytes are staged."""
        now = time.time()
        return Sidecar(
            name=name,
            crc32c=staging.crc32c,
            md5=staging.md5,
            component_count=None,
            metageneration=1,
            created=now,
            updated=now,
            attributes=attributes,
        )

    def fill(
        self,
        name: str,
        staging: Staging,
        sidecar: Sidecar,
        preconditions: Preconditions,
        *,
        about_to: Callable[[os.stat_result], None] = lambda _: None,
    ) -> ObjectResource:
        """Gives staged bytes the object's place, with that sidecar.

        Args:
            about_to: Told the status of the file just before it gets its place; what it raises prevents that.
        """
        check_object_name(name)
        document = sidecar.encoded()
        file = staging.content.file
        with self.explained("writing", name, _WRITING):
            if self.fsync:
                os.fsync(file)
            with self._writing(name) as writing:
                preconditions.check(writing.present)
                self._before_change(self.name, name)
                present = None if writing.present is None else writing.present.place
                generation = 0 if present is None else present.generation
                stamp = files.next_stamp(time.time_ns(), writing.mark.stamp, generation)
                status = files.set_stamp(file, stamp, path=self.path)
                writing.mark.raise_to(stamp)
                # No content has this name before the rename; should it fail, a sweep takes the sidecar.
                sidecars.write_new(writing.sidecars, sidecars.sidecar_name(name, status), document, sync=self.fsync)
                about_to(status)
                places.fill(writing.root, writing.objects, name, staging.content, present, sync=self.fsync)
                if present is not None:
                    sidecars.remove(writing.sidecars, name, present.status)
                return self._resource(name, os.fstat(file), sidecar)

    def compose(
        self, name: str, sources: Sequence[Source], attributes: Attributes, preconditions: Preconditions
    ) -> ObjectResource:
        """Makes an object of others, one after the other; it may be one of them.

        Raises:
            NoSuchObject: a source is not there, or not in the generation that is meant.
            ConditionFailed: a precondition does not hold, of a source or of the object.
        """
        check_object_name(name)
        with self.stage() as staging:
            count = 0
            for source in sources:
                with self.open(source.name, generation=source.generation) as opened:
                    resource = opened.resource
                    if source.generation_match not in (None, resource.generation):
                        raise ConditionFailed(
                            f"the generation of {source.name!r} is {resource.generation}, not "
                            f"{source.generation_match} as demanded"
                        )
                    self._add(staging, opened)
                count += resource.component_count or 1
            sidecar = replace(self.new_sidecar(name, staging, attributes), md5=None, component_count=count)
            return self.fill(name, staging, sidecar, preconditions)

    def copy(
        self,
        source_bucket: Bucket,
        source_name: str,
        name: str,
        attributes: Attributes | None,
        preconditions: Preconditions,
        *,
        source_generation: int | None = None,
        source_preconditions: Preconditions = _NO_PRECONDITIONS,
    ) -> ObjectResource:
        """Makes an object of another one's bytes.

        Args:
            attributes: Of the new object; None: the source's.

        Raises:
            NoSuchObject: the source is not there, or not in the generation that is meant.
            ConditionFailed: a precondition does not hold, of the source or of the object.
        """
        check_object_name(name)
        with source_bucket.open(source_name, generation=source_generation) as opened, self.stage() as staging:
            resource = opened.resource
            source_preconditions.check(resource)
            self._add(staging, opened)
            sidecar = replace(
                self.new_sidecar(name, staging, resource.attributes if attributes is None else attributes),
                md5=resource.md5,
                component_count=resource.component_count,
            )
            return self.fill(name, staging, sidecar, preconditions)

    def _add(self, staging: Staging, opened: OpenObject) -> None:
        with self.explained("copying", opened.resource.name, _WRITING):
            staging.add_file(opened.fileno(), opened.resource.size, opened.resource.crc32c)

    def patch(
        self,
        name: str,
        change: Callable[[Attributes], Attributes],
        preconditions: Preconditions,
        *,
        generation: int | None = None,
    ) -> ObjectResource:
        """Changes the attributes: the metageneration goes up by one, the generation stays.

        Args:
            change: Makes the new attributes of the present ones.

        Raises:
            NoSuchObject: there is none, or its live generation is another.
            ConditionFailed: a precondition does not hold.
        """
        check_object_name(name)
        # Of a file without a sidecar the checksum is needed: computed before others have to wait for it.
        self.stat(name, generation=generation)
        with self.explained("changing", name, _WRITING), self._writing(name) as writing:
            present = self._checked(writing, name, preconditions, generation)
            former = present.sidecar
            if former is None:
                described = self._described(present.place, writing.sidecars, name)
                if described is None:
                    raise self._restless(name)
                former = self._default(name, present.place.status, described.crc32c)
            sidecar = replace(
                former,
                attributes=change(former.attributes),
                metageneration=former.metageneration + 1,
                updated=time.time(),
            )
            sidecars.replace(
                writing.objects,
                writing.sidecars,
                sidecars.sidecar_name(name, present.place.status),
                sidecar.encoded(),
                sync=self.fsync,
            )
            return self._resource(name, present.place.status, sidecar)

    def delete(self, name: str, preconditions: Preconditions, *, generation: int | None = None) -> None:
        """Deletes the object.

        Raises:
            NoSuchObject: there is none, or its live generation is another.
            ConditionFailed: a precondition does not hold.
        """
        check_object_name(name)
        with self.explained("deleting", name, _WRITING), self._writing(name) as writing:
            place = self._checked(writing, name, preconditions, generation).place
            writing.mark.raise_to(files.stamp(place.generation))
            places.empty(writing.objects, name, place, sync=self.fsync)
            sidecars.remove(writing.sidecars, name, place.status)
            if place.natural:
                places.remove_empty_folders(writing.root, name)

    def _checked(self, writing: _Writing, name: str, preconditions: Preconditions, generation: int | None) -> _Present:
        present = writing.present
        if present is None or generation not in (None, present.generation):
            raise self._no_such(name, generation)
        preconditions.check(present)
        self._before_change(self.name, name)
        return present

    @contextlib.contextmanager
    def _writing(self, name: str) -> Iterator[_Writing]:
        """Holds the lock of a key, and looks up what lies there."""
        with (
            self.root() as root,
            self.hidden(root) as objects,
            sidecars.opened_for_writing(objects, sync=self.fsync) as folder,
            self._locked(objects, stripe(name)) as mark,
        ):
            self._check_not_deleted(root)
            place = places.find(root, name)
            with place or contextlib.nullcontext():
                present = None if place is None else _Present(place, sidecars.read(folder, name, place.status))
                yield _Writing(root=root, objects=objects, sidecars=folder, mark=mark, present=present)

    def check(self, name: str, preconditions: Preconditions) -> None:
        """Holds preconditions against the object as it is now.

        Raises:
            ConditionFailed: one of them does not hold.
        """
        check_object_name(name)
        with (
            self.explained("looking up", name, _READING),
            self.root() as root,
            sidecars.opened_for_reading(root) as folder,
        ):
            place = places.find(root, name)
            with place or contextlib.nullcontext():
                preconditions.check(
                    None if place is None else _Present(place, sidecars.read(folder, name, place.status))
                )

    def generation_of_content(self, name: str, content: str) -> int | None:
        """The generation of the object, if its content is the one whose sidecar is called `content`."""
        with self.explained("looking up", name, _READING), self.root() as root:
            place = places.find(root, name)
            with place or contextlib.nullcontext():
                if place is None or sidecars.sidecar_name(name, place.status) != content:
                    return None
                return place.generation

    @contextlib.contextmanager
    def locked_wholly(self) -> Iterator[None]:
        """Holds off all writers of the bucket."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.explained("locking", "", _WRITING))
            root = stack.enter_context(self.root())
            objects = stack.enter_context(self.hidden(root))
            for name in stripes():
                stack.enter_context(self._locked(objects, name))
            self._check_not_deleted(root)
            yield

    def sweep(self, *, before_ns: int) -> None:
        """Removes what writers that died before an instant left behind; takes a fraction of a second at most."""
        with self.explained("sweeping", "", _WRITING), self.root() as root:
            objects = files.open_folder(root, (HIDDEN_FOLDER,))
            try:
                places.remove_leftovers(objects, before_ns=before_ns)
            finally:
                os.close(objects)
            with sidecars.opened_for_reading(root) as folder:
                if folder is not None:
                    sidecars.sweep(root, folder, before_ns=before_ns, until=time.monotonic() + _SWEEP_SECONDS)

    def _locked(self, objects: int, name: str) -> contextlib.AbstractContextManager[HighWaterMark]:
        return locked(objects, name, path=f"{self.path}/{HIDDEN_FOLDER}", timeout_seconds=_LOCK_TIMEOUT_SECONDS)

    def _check_not_deleted(self, root: int) -> None:
        """Under a lock: whoever deletes the bucket holds all of them, and moves the folder away meanwhile."""
        deleted = NoSuchBucket(f"the bucket {self.name} was deleted meanwhile")
        try:
            there = Path(self.path).lstat()
        except FileNotFoundError as error:
            raise deleted from error
        if not os.path.samestat(there, os.fstat(root)):
            raise deleted

    # The folder

    @contextlib.contextmanager
    def root(self) -> Iterator[int]:
        try:
            root = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NoSuchBucket(f"there is no folder {self.path}") from error
        try:
            yield root
        finally:
            os.close(root)

    @contextlib.contextmanager
    def hidden(self, root: int) -> Iterator[int]:
        try:
            objects = files.open_folder(root, (HIDDEN_FOLDER,), create=True, sync=self.fsync)
        except OSError as error:
            if error.errno not in files.BARRED:
                raise
            raise StoreError(
                f"{self.path}/{HIDDEN_FOLDER} is not a folder; move it away, the bucket needs that name"
            ) from error
        try:
            yield objects
        finally:
            os.close(objects)

    @contextlib.contextmanager
    def explained(self, doing: str, name: str, needs: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            path = f"{self.path}/{name}"
            shown = path if path.isprintable() else ascii(path)
            raise files.explain(error, doing=doing, path=shown, needs=needs) from error

    def _no_such(self, name: str, generation: int | None = None) -> NoSuchObject:
        of = "" if generation is None else f" of generation {generation}"
        return NoSuchObject(f"No such object: {self.name}/{name}{of}")

    def _restless(self, name: str) -> StoreUnavailable:
        return StoreUnavailable(f"the object {name!r} changed during each of {_LOOKS} looks at it; try again")


def _open_file(place: places.Place) -> int | None:
    """The file at a place, open; None if it is gone. It may be another one by now."""
    try:
        return os.open(place.name, os.O_RDONLY | files.FILE, dir_fd=place.folder)
    except OSError as error:
        if error.errno in files.ABSENT:
            return None
        raise
