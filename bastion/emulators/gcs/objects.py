"""The objects of one bucket: read, write, compose, copy and change them.

Based on `bastion.folder_format`, like `bastion.adapters.folder.store`, which may use the folder at the same time;
`sidecars` adds what a file cannot store.

Invariants:

* Preconditions are checked under the key's lock, together with the rename or removal.
* A resource describes exactly the bytes that are served with it, sidecar included.
* A mutation takes effect, or raises without a visible change.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bastion.core.errors import StoreUnavailable
from bastion.emulators.gcs import pages, sidecars
from bastion.emulators.gcs.checksums import KnownChecksums
from bastion.emulators.gcs.iam import store as rules_store
from bastion.emulators.gcs.iam.access import Gate
from bastion.emulators.gcs.iam.permissions import Action
from bastion.emulators.gcs.iam.rules import Rules
from bastion.emulators.gcs.names import check_object_name
from bastion.emulators.gcs.one_at_a_time import OneAtATime
from bastion.emulators.gcs.opened_bucket import OpenedBucket, explained
from bastion.emulators.gcs.reading import OpenObject, Present, Reader, default_sidecar
from bastion.emulators.gcs.resources import (
    Attributes,
    ConditionFailed,
    NoSuchObject,
    ObjectResource,
    Page,
    Preconditions,
)
from bastion.emulators.gcs.sidecars import Sidecar
from bastion.emulators.gcs.staging import Staging
from bastion.folder_format import files, listing, places
from bastion.folder_format.keys import stripe, stripes
from bastion.storage_wire.declared_sums import Declared

_NO_PRECONDITIONS = Preconditions()
_NOTHING_DECLARED = Declared()
_SWEEP_SECONDS = 0.2

_READING = "read permission on it and search permission (x) on its folders"
_WRITING = "write and search permission on its folder and on the bucket's .objects"


BeforeChange = Callable[[str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One source of a composite object, with its wanted generation and a precondition; None: any."""

    name: str
    generation: int | None = None
    generation_match: int | None = None


class Bucket:
    """One bucket; thread-safe and process-safe.

    Args:
        checksums: Of files without a sidecar; shared by all buckets.
        fsync: Whether a mutation survives a power cut.
        before_change: As in `Buckets`.
        writers: Serializes writers; shared by all buckets.
        gate: What the caller may do; None: everything.
    """

    def __init__(
        self,
        path: Path,
        name: str,
        *,
        checksums: KnownChecksums,
        fsync: bool,
        before_change: BeforeChange,
        writers: OneAtATime,
        gate: Gate | None,
    ) -> None:
        self.name = name
        self.path = path
        self.gate = gate
        self.fsync = fsync
        self._reader = Reader(name, checksums)
        self._before_change = before_change
        self._writers = writers

    def __repr__(self) -> str:
        return f"Bucket({str(self.path)!r})"

    def opened(self) -> OpenedBucket:
        """Open the folder. Raises NoSuchBucket."""
        return OpenedBucket(self.path, fsync=self.fsync)

    # Rights

    def need(self, action: Action, name: str = "") -> None:
        """Raise NotPermitted unless the caller may do that; every method below that takes a request's part asks."""
        if self.gate is not None:
            self.gate.check(action, self.name, name, self.rules())

    def rules(self) -> Rules:
        with self._explained("reading the policies of", "", _READING), self.opened() as opened:
            return rules_store.read(opened)

    def change_rules(self, change: Callable[[Rules], Rules]) -> Rules:
        """Replace the rules, one change at a time."""
        with self.locked(""), self.opened() as opened:
            rules = change(rules_store.read(opened))
            rules_store.write(opened, rules, sync=self.fsync)
            return rules

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        self.need(Action.GET_OBJECT, name)
        try:
            yield
        except NoSuchObject:
            self.need(Action.MISS_OBJECT, name)
            raise

    # Reading

    def stat(self, name: str, *, generation: int | None = None) -> ObjectResource:
        """Describe the object. Raises NoSuchObject, also if its live generation differs."""
        check_object_name(name)
        with self._reading(name), self._explained("looking up", name, _READING), self.opened() as opened:
            return self._reader.stat(opened, name, generation)

    def open(self, name: str, *, generation: int | None = None) -> OpenObject:
        """Open the object's bytes, pinned. Raises like `stat`."""
        check_object_name(name)
        with self._reading(name), self._explained("reading", name, _READING), self.opened() as opened:
            return self._reader.open(opened, name, generation)

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
        """One page of the objects, in the order of their names' UTF-8 bytes. Raises InvalidRequest for a bad token or
        glob.

        Args:
            delimiter: Names that contain it after the prefix are folded to one prefix that ends with it.
            start_offset: The first name that may be listed.
            end_offset: Upper bound (exclusive) of names; empty: none.
            page_size: Limit of objects plus prefixes; a shorter page need not be the last.
            include_trailing_delimiter: Also list objects that end with the first delimiter.
            match_glob: What listed names and prefixes must match.
        """
        self.need(Action.LIST_OBJECTS, prefix)
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
        with self._explained("listing", prefix, _READING), self.opened() as opened:
            return pages.page(str(self.path), wanted, lambda name, status: self._reader.listed(opened, name, status))

    def is_empty_below(self, prefix: str) -> bool:
        """Whether no object's name begins with the prefix; for nobody in particular."""
        with self._explained("listing", prefix, _READING):
            return next(iter(listing.entries(str(self.path), prefix, "", "", "")), None) is None

    def check(self, name: str, preconditions: Preconditions) -> None:
        """Raise what an upload to this object would: NotPermitted, or ConditionFailed if a precondition fails now."""
        check_object_name(name)
        with self._explained("looking up", name, _READING), self.opened() as opened, _present(opened, name) as present:
            self.need(Action.CREATE_OBJECT if present is None else Action.OVERWRITE_OBJECT, name)
            preconditions.check(present)

    def generation_of_content(self, name: str, content: str) -> int | None:
        """The object's generation, if its content has the sidecar named `content`."""
        with self._explained("looking up", name, _READING), self.opened() as opened:
            place = places.find(opened.root, name)
            with place or contextlib.nullcontext():
                if place is None or sidecars.sidecar_name(name, place.status) != content:
                    return None
                return place.generation

    # Writing

    def stage(self) -> Staging:
        """An empty file for the bytes of a new object."""
        with self._explained("writing into", "", _WRITING), self._writers.one(), contextlib.ExitStack() as stack:
            opened = stack.enter_context(self.opened())
            content = places.new_temporary(opened.hidden)
            stack.pop_all()
            return Staging(opened, content)

    def commit(
        self,
        name: str,
        staging: Staging,
        attributes: Attributes,
        preconditions: Preconditions,
        *,
        declared: Declared = _NOTHING_DECLARED,
    ) -> ObjectResource:
        """Make an object of staged bytes, replacing the current one.

        Raises:
            ChecksumMismatch: The bytes do not match the declared checksums.
            ConditionFailed: A precondition does not hold.
            InvalidRequest: The name or the attributes are not valid.
        """
        staging.check(declared)
        return self.fill(name, staging, self.new_sidecar(name, staging, attributes), preconditions)

    @staticmethod
    def new_sidecar(name: str, staging: Staging, attributes: Attributes) -> Sidecar:
        """The sidecar of a new generation with staged bytes."""
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
        about_to: Callable[[os.stat_result], None] | None = None,
        done: Callable[[ObjectResource], None] | None = None,
    ) -> ObjectResource:
        """Move staged bytes to the object's place, with that sidecar.

        Args:
            about_to: Called with the file's status just before the move; may raise to prevent it.
            done: Called with the object while it is still locked.
        """
        check_object_name(name)
        document = sidecar.encoded()
        file, opened = staging.content.file, staging.opened
        with self._explained("writing", name, _WRITING):
            if self.fsync:
                os.fsync(file)
            with self._writers.one(), opened.locked(stripe(name)) as mark, _present(opened, name) as present:
                self.need(Action.CREATE_OBJECT if present is None else Action.OVERWRITE_OBJECT, name)
                preconditions.check(present)
                self._before_change(self.name, name)
                place = None if present is None else present.place
                stamp = files.next_stamp(time.time_ns(), mark.stamp, 0 if place is None else place.generation)
                status = files.set_stamp(file, stamp, path=str(self.path))
                mark.raise_to(stamp)
                # No content has this name before the rename; if that fails, a sweep removes the sidecar.
                sidecars.write_new(opened.sidecars, sidecars.sidecar_name(name, status), document, sync=self.fsync)
                if about_to is not None:
                    about_to(status)
                places.fill(opened.root, opened.hidden, name, staging.content, place, sync=self.fsync)
                if present is not None and present.sidecar is not None:
                    sidecars.remove(opened.sidecars, name, present.place.status)
                resource = self._reader.resource(os.fstat(file), sidecar)
                if done is not None:
                    done(resource)
                return resource

    def compose(
        self, name: str, sources: Sequence[Source], attributes: Attributes, preconditions: Preconditions
    ) -> ObjectResource:
        """Concatenate objects into one, which may be among them.

        Raises NoSuchObject if a source or its wanted generation does not exist, ConditionFailed.
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
                            f"the required {source.generation_match}"
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
        """Make an object of another one's bytes. Raises like `compose`.

        `attributes` None: the source's.
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
        with self._explained("copying", opened.resource.name, _WRITING):
            staging.add_file(opened.fileno(), opened.resource.size, opened.resource.crc32c)

    def patch(
        self,
        name: str,
        change: Callable[[Attributes], Attributes],
        preconditions: Preconditions,
        *,
        generation: int | None = None,
    ) -> ObjectResource:
        """Change the attributes by `change`: the metageneration increases by one, the generation stays.

        Raises NoSuchObject if it does not exist or its live generation differs, ConditionFailed.
        """
        check_object_name(name)
        self.need(Action.UPDATE_OBJECT, name)
        with self._explained("changing", name, _WRITING), self.opened() as opened:
            # Compute the checksum of a file without a sidecar before taking the lock.
            self._reader.stat(opened, name, generation)
            with opened.locked(stripe(name)), _present(opened, name) as found:
                present = self._checked(found, name, preconditions, generation)
                former = present.sidecar or self._default_sidecar(opened, present, name)
                sidecar = replace(
                    former,
                    attributes=change(former.attributes),
                    metageneration=former.metageneration + 1,
                    updated=time.time(),
                )
                status = present.place.status
                sidecars.replace(
                    opened.hidden,
                    opened.sidecars,
                    sidecars.sidecar_name(name, status),
                    sidecar.encoded(),
                    sync=self.fsync,
                )
                return self._reader.resource(status, sidecar)

    def _default_sidecar(self, opened: OpenedBucket, present: Present, name: str) -> Sidecar:
        described = self._reader.described(opened, present.place, name)
        if described is None:
            raise StoreUnavailable(f"the object {name!r} was being changed by hand; try again")
        return default_sidecar(name, present.place.status, described.crc32c)

    def delete(self, name: str, preconditions: Preconditions, *, generation: int | None = None) -> None:
        """Delete the object. Raises like `patch`."""
        check_object_name(name)
        self.need(Action.DELETE_OBJECT, name)
        with (
            self._explained("deleting", name, _WRITING),
            self._writers.one(),
            self.opened() as opened,
            opened.locked(stripe(name)) as mark,
            _present(opened, name) as found,
        ):
            present = self._checked(found, name, preconditions, generation)
            place = present.place
            mark.raise_to(files.stamp(place.generation))
            places.empty(opened.hidden, name, place, sync=self.fsync)
            if present.sidecar is not None:
                sidecars.remove(opened.sidecars, name, place.status)
            if place.natural:
                places.remove_empty_folders(opened.root, name)

    def _checked(
        self, present: Present | None, name: str, preconditions: Preconditions, generation: int | None
    ) -> Present:
        if present is None or generation not in (None, present.generation):
            raise self._reader.no_such(name, generation)
        preconditions.check(present)
        self._before_change(self.name, name)
        return present

    # The folder

    @contextlib.contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Lock out all writers of an object."""
        with self._explained("locking", name, _WRITING), self.opened() as opened, opened.locked(stripe(name)):
            yield

    @contextlib.contextmanager
    def locked_wholly(self) -> Iterator[None]:
        """Lock out all writers of the bucket."""
        with self._explained("locking", "", _WRITING), self.opened() as opened, contextlib.ExitStack() as stack:
            for name in stripes():
                stack.enter_context(opened.locked(name))
            yield

    def sweep(self, *, before_ns: int) -> None:
        """Remove temporary files of writers that died before that time; takes a fraction of a second at most."""
        with self._explained("sweeping", "", _WRITING), self.opened() as opened:
            folder = opened.sidecars_if_any
            if folder is not None:
                places.remove_orphans(opened.hidden, before_ns=before_ns)
                sidecars.sweep(opened.root, folder, before_ns=before_ns, until=time.monotonic() + _SWEEP_SECONDS)

    def _explained(self, doing: str, name: str, needs: str) -> contextlib.AbstractContextManager[None]:
        return explained(doing, f"{self.path}/{name}", needs)


@contextlib.contextmanager
def _present(opened: OpenedBucket, name: str) -> Iterator[Present | None]:
    place = places.find(opened.root, name)
    if place is None:
        yield None
        return
    with place:
        yield Present(place, sidecars.read(opened.sidecars_if_any, name, place.status))
