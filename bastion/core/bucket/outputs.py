"""A host's stored outputs: manifests, their objects, and which manifests are kept.

Below `keys.outputs(job, uid, host)` are objects `<seq>/<name>` and, for each completed sync, `manifest-<seq>`; numbers
have ten digits and only grow. No object is written twice. A manifest is written after everything it names, and deleted
before any of that.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from bastion.core import documents, limits
from bastion.core.bucket import bundles, keys
from bastion.core.errors import InvalidDocument

MANIFEST_PREFIX = "manifest-"
# Folder for event files below the output folder.
TENSORBOARD = "tensorboard"
_MANIFEST = re.compile(MANIFEST_PREFIX + r"(?P<seq>[0-9]{10})")
_OBJECT = re.compile(r"(?P<seq>[0-9]{10})/[^\0\r\n]+")
# Number of kept manifests: the one before the last stays complete if the last one fails.
_KEPT = 2
# A longer path, or one with characters that no key may have, is stored under its digest.
_NAME_MAX_BYTES = 512


def _check_path(path: str) -> str:
    if not path or bundles.check_path(path) != path:
        raise ValueError("is not a path below the folder")
    return path


def _check_object(name: str) -> str:
    if not _OBJECT.fullmatch(name):
        raise ValueError("is not an object of a sync")
    return name


_Path = Annotated[str, AfterValidator(_check_path)]


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", defer_build=True)


class Part(_Model):
    """Some bytes of a file; `object` is relative to the host's outputs."""

    object: Annotated[str, AfterValidator(_check_object)]
    size: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")

    def holds(self, data: bytes) -> bool:
        """Whether these are its bytes."""
        return len(data) == self.size and hashlib.sha256(data).hexdigest() == self.sha256


class StoredFile(_Model):
    """One file: its parts in order. `mode` has the permission bits; `mtime_ns` is by the host's clock."""

    mode: int = Field(ge=0, le=0o777)
    mtime_ns: int
    parts: tuple[Part, ...] = ()

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


class Manifest(_Model):
    """An output folder at one time. `folders` has all of them; `links` are symbolic links within the folder."""

    format: int = 1
    run: str
    seq: int = Field(ge=1)
    folders: tuple[_Path, ...] = ()
    files: dict[_Path, StoredFile] = Field(default_factory=dict)
    links: dict[_Path, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _fits_into_a_folder(self) -> Manifest:
        for path, target in self.links.items():
            bundles.check_link(path, target)
        names = [*self.folders, *self.files, *self.links]
        taken = set(names)
        if len(taken) != len(names):
            raise ValueError("a path appears twice")
        folders = set(self.folders)
        for path in names:
            parent = path.rpartition("/")[0]
            if parent and parent not in folders:
                raise ValueError(f"{path[:200]!r} is in a folder that is not listed")
        return self

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files.values())

    def objects(self) -> Iterable[Part]:
        for file in self.files.values():
            yield from file.parts

    def same_content(self, other: Manifest) -> bool:
        return (self.files, self.links, sorted(self.folders)) == (other.files, other.links, sorted(other.folders))

    def to_bytes(self) -> bytes:
        return documents.dumps(self.model_dump(mode="json"))


def read(data: bytes) -> Manifest:
    """Parse a manifest; raises InvalidDocument if it is not one."""
    try:
        documents.loads(
            data, max_bytes=limits.OUTPUT_MANIFEST_MAX_BYTES, max_values=limits.OUTPUT_MANIFEST_MAX_VALUES
        )  # then the model parses in JSON mode
        return Manifest.model_validate_json(data)
    except (documents.DocumentError, ValidationError) as error:
        raise InvalidDocument(f"not a manifest of outputs: {str(error)[:500]}") from error


def manifest_name(seq: int) -> str:
    return f"{MANIFEST_PREFIX}{seq:010d}"


def seq_of_manifest(name: str) -> int | None:
    """Return the number in a manifest's name; None if it is not one."""
    found = _MANIFEST.fullmatch(name)
    return int(found["seq"]) if found else None


def seq_of_object(name: str) -> int | None:
    """Return the number of the sync that stored the object; None if no sync did."""
    found = _OBJECT.fullmatch(name)
    return int(found["seq"]) if found else None


def object_name(folder: str, seq: int, path: str, part: int, parts: int) -> str:
    """Return the name of part `part` (from 0) of a file, unique within its sync. `folder` limits its length."""
    fits = len(f"{folder}{path}".encode()) <= _NAME_MAX_BYTES and not re.search(r"[\0\r\n]", path)
    # Files with several parts have their own folder, so that no file name equals a part's name.
    if parts == 1:
        return f"{seq:010d}/files/{path}" if fits else f"{seq:010d}/digests/{_digest(path)}"
    return f"{seq:010d}/parts/{path if fits else _digest(path)}/{part:06d}"


def _digest(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest()


def is_complete(manifest: Manifest, sizes: Mapping[str, int]) -> bool:
    """Whether all objects exist, by the listed sizes."""
    return all(sizes.get(part.object) == part.size for part in manifest.objects())


def is_event_file(path: str) -> bool:
    """Whether it is an event file of TensorBoard, which only grows (tensorboard: event_file_writer.py)."""
    return ".tfevents." in path.rpartition("/")[2]


def to_keep(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Return the newest complete manifests, and the newest of an earlier run, with which every host of a run begins."""
    newest = sorted(manifests, key=lambda manifest: manifest.seq, reverse=True)
    if not newest:
        return []
    earlier = next((manifest for manifest in newest if manifest.run != newest[0].run), None)
    kept = newest[:_KEPT]
    return kept if earlier is None or earlier in kept else [*kept, earlier]


def of_run(run: str, job: str, host: int) -> str:
    """Return the folder of a host's outputs, for any run of the job; raises ValueError if `run` is not a run."""
    parsed = keys.Run.parse(run)
    if parsed is None:
        raise ValueError(f"{run!r} is not a run")
    return keys.outputs(job, parsed.uid, host)
