"""A local copy of the event files that a job's hosts have stored.

Event files only grow, so the copy appends what is new: TensorBoard reads on where it was. A file of a later attempt is
copied once its first step can be read, after a mark that makes TensorBoard drop the steps that the job does again.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bastion.client.tensorboard import event_files, goodput_scalars
from bastion.core import limits
from bastion.core.bucket import keys, outputs
from bastion.core.bucket.manifest_proofs import ManifestProofs, UnprovedManifest
from bastion.core.bucket.outputs import Manifest, Part, StoredFile
from bastion.core.errors import InvalidDocument, NotFound
from bastion.ports import ObjectStore

_BEGIN_MAX_BYTES = 64 * 1024 * 1024
_OWN_FOLDER = re.compile(rf"^(_*{goodput_scalars.FOLDER}/)")
_OWN_FILE = re.compile(rf"({re.escape(event_files.MARK)}_*)$")
_OWNER = ".bastion-job"  # in the folder of the copies: the uid of their job


@dataclass(frozen=True, slots=True)
class _Source:
    """An event file in the bucket. `path` is relative to the job's local folder, `file_path` to the output folder."""

    path: str
    host: int
    folder: str
    file_path: str
    file: StoredFile


class JobMirror:
    """The event files of one job, below `into`.

    Attributes:
        problem: Why the last look was not whole; empty if it was.
    """

    def __init__(
        self, store: ObjectStore, job: str, uid: str, into: Path, *, public_keys: Mapping[str, str] | None = None
    ) -> None:
        """`public_keys`: by run; then only outputs that one of these proves are read. Empty: the run has none."""
        self.public_keys = public_keys
        self._unproved: set[str] = set()
        self._store = store
        self._job = job
        self._uid = uid
        self._into = into
        self._seen: dict[str, tuple[str, Manifest]] = {}  # the newest manifest of each host's outputs
        self._copied: dict[str, tuple[Part, ...]] = {}  # by local path: what its copy is known to begin with
        self._last_part: tuple[str, bytes] = "", b""
        self.problem = ""

    def refresh(self, starts: Sequence[float]) -> int:
        """Copy what is new; return the number of local files.

        Args:
            starts: When the runs of the command began, in seconds since the epoch.
        """
        self.problem = ""
        self._into.mkdir(parents=True, exist_ok=True)
        self._drop_another_jobs()
        sources = self._sources()
        for source in sources:
            self._try_copy(source, starts)
        return len(sources)

    def _drop_another_jobs(self) -> None:
        """Delete the copies of an earlier job of this name: the folder may be from then."""
        owner = self._into / _OWNER
        known = owner.read_text("utf-8") if owner.exists() else self._uid
        if known != self._uid:
            for path in self._into.rglob("*"):
                if path.is_file() and outputs.is_event_file(path.name):
                    path.unlink()
        if not owner.exists() or known != self._uid:
            owner.write_text(self._uid, "utf-8")

    def _try_copy(self, source: _Source, starts: Sequence[float]) -> None:
        try:
            self._copy(source, starts)
        except (NotFound, InvalidDocument) as error:  # deleted since, or damaged
            self.problem = f"{self._job}: host {source.host}: {source.file_path}: {error}"
        except OSError as error:  # such as a full disk, or a path that another host's files make a folder
            self.problem = f"{self._job}: cannot write {self._into / source.path}: {error.strerror}"

    def _sources(self) -> list[_Source]:
        stored: dict[str, list[int]] = {}
        prefix = keys.outputs_of(self._job, self._uid)
        for meta in self._store.list(prefix):
            folder, _, name = meta.key.removeprefix(prefix).partition("/")
            seq = outputs.seq_of_manifest(name)
            if seq is not None and keys.host_of_outputs(folder) is not None:
                stored.setdefault(folder, []).append(seq)
        found: list[_Source] = []
        for folder, seqs in stored.items():
            manifest = self._newest(f"{prefix}{folder}/", seqs)
            host = keys.host_of_outputs(folder)
            if manifest is not None and host is not None:
                events = {path: file for path, file in manifest.files.items() if outputs.is_event_file(path)}
                found += [_Source(path, host, f"{prefix}{folder}/", path, file) for path, file in events.items()]
        several = len({source.host for source in found}) > 1
        local = [
            replace(each, path=_local_path(each, several=several))
            for each in sorted(found, key=lambda each: (each.host, each.path), reverse=True)
        ]
        # Of two with one name, in the output folder and in TENSORBOARD below it, the first one counts.
        return [*{each.path: each for each in local}.values()][::-1]

    @property
    def unproved(self) -> int:
        """Number of manifests that were left out because they prove no run of this job."""
        return len(self._unproved)

    def _newest(self, folder: str, seqs: Iterable[int]) -> Manifest | None:
        """The newest manifest that counts; the one before if that cannot be read."""
        known = self._seen.get(folder)
        for seq in sorted(seqs, reverse=True):
            key = folder + outputs.manifest_name(seq)
            if known is not None and known[0] == key:
                return known[1]
            if key in self._unproved:
                continue
            try:
                data = self._store.get(key, max_bytes=limits.OUTPUT_MANIFEST_MAX_BYTES).data
                manifest = self._manifest(folder, seq, data)
            except UnprovedManifest:
                self._unproved.add(key)
                continue
            except (NotFound, InvalidDocument) as error:
                self.problem = f"{self._job}: {key}: {error}"
                break
            self._seen[folder] = key, manifest
            return manifest
        return known[1] if known is not None else None

    def _manifest(self, folder: str, seq: int, data: bytes) -> Manifest:
        if self.public_keys is None:
            return outputs.read(data)
        return ManifestProofs(place=folder, public_keys=self.public_keys).read_or_older(seq, data)

    def _copy(self, source: _Source, starts: Sequence[float]) -> None:
        target = self._into / source.path
        try:
            have = target.stat().st_size
        except FileNotFoundError:
            have = -1
        if have == source.file.size and self._copied.get(source.path) == source.file.parts:
            return
        if have >= 0 and not self._continues(target, source, have):
            target.unlink()
            have = -1
        target.parent.mkdir(parents=True, exist_ok=True)
        parts = self._read(source, max(0, have))
        if have < 0 and event_files.follows_restart(target, starts):
            begin, step = _begin(parts)
            if step is None:
                return  # next time
            event_files.mark_restart(target, step)
            _append(target, begin)
        target.touch()  # also if it has no parts yet
        for data in parts:
            _append(target, data)
        self._copied[source.path] = source.file.parts

    def _continues(self, target: Path, source: _Source, have: int) -> bool:
        """Whether the stored file begins with the `have` bytes of the copy: it may be another one of this name."""
        if have > source.file.size:
            return False
        known, at = self._copied.get(source.path, ()), 0
        with target.open("rb") as copy:
            for number, part in enumerate(source.file.parts):
                size = min(part.size, have - at)
                if size <= 0:
                    break
                same = number < len(known) and known[number].sha256 == part.sha256
                if not same:
                    copy.seek(at)
                    local = copy.read(size)
                    if size < part.size:
                        same = self._part(source, part)[:size] == local
                    else:
                        same = hashlib.sha256(local).hexdigest() == part.sha256
                if not same:
                    return False
                at += part.size
        return True

    def _read(self, source: _Source, begin: int) -> Iterator[bytes]:
        """The bytes of a stored file from `begin` on, by parts; raises InvalidDocument if a part is damaged."""
        at = 0
        for part in source.file.parts:
            if at + part.size > begin:
                yield self._part(source, part)[max(0, begin - at) :]
            at += part.size

    def _part(self, source: _Source, part: Part) -> bytes:
        """The last one is kept: it is compared, then copied. Raises InvalidDocument if it is damaged."""
        key = source.folder + part.object
        if self._last_part[0] != key:
            data = self._store.get(key, max_bytes=limits.OUTPUT_PART_BYTES).data
            if not part.holds(data):
                raise InvalidDocument("is damaged; its curve is not complete")
            self._last_part = key, data
        return self._last_part[1]


def _begin(parts: Iterator[bytes]) -> tuple[bytes, int | None]:
    """The first parts until a step can be read, and that step. Raises InvalidDocument."""
    begin = bytearray()
    for data in parts:
        begin += data
        step = event_files.first_step(bytes(begin))
        if step is not None:
            return bytes(begin), step
        if len(begin) > _BEGIN_MAX_BYTES:
            raise InvalidDocument("is not an event file: it begins with no value")
    return b"", None


def _append(target: Path, data: bytes) -> None:
    with target.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _local_path(source: _Source, *, several: bool) -> str:
    path = source.path.removeprefix(f"{outputs.TENSORBOARD}/")
    # The mirror's own names are free: a job's become others, each another one.
    path = _OWN_FOLDER.sub(r"_\1", path)
    path = _OWN_FILE.sub(r"\1_", path)
    return f"worker-{source.host}/{path}" if several else path
