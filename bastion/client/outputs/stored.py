"""What a job has stored: the newest complete manifest of each host, and what programs wrote beside them.

Invariants:
* Only manifests that an attempt of the job proves count. Others are left out and counted, unless they are asked for.
* Nothing of another job of the same name is listed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial

from bastion.client.concurrently import concurrently
from bastion.client.jobs.job_info import JobInfo
from bastion.core import limits
from bastion.core.bucket import bundles, keys, outputs
from bastion.core.bucket.keys import Run
from bastion.core.bucket.manifest_proofs import ManifestProofs, UnprovedManifest
from bastion.core.bucket.objects import ObjectMeta
from bastion.core.bucket.outputs import Manifest
from bastion.core.errors import NotFound, ObjectTooLarge, StoreError
from bastion.core.model.run_public_keys import RunPublicKeys
from bastion.ports import ObjectStore

CONNECTIONS = 8
# What hosts write together, below `keys.output_shared`: its folder when it is fetched.
SHARED = "shared"
# Reasons that are kept; whoever may write to the folder can put thousands of manifests there.
_PROBLEMS_MAX = 5


class FileType(str, Enum):
    FILE = "file"
    LINK = "link"
    FOLDER = "folder"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Consecutive bytes of a file: an object, or a range of one.

    Attributes:
        sha256: Empty if no manifest says what the bytes are; then `generation` is the object's.
    """

    key: str
    size: int
    start: int = 0
    sha256: str = ""
    generation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """One file, link or folder that a job has stored.

    Attributes:
        path: Relative to the output folder, with `/`.
        worker: The host that stored it; None: a program wrote it below BASTION_OUTPUT_URL.
        attempt: The attempt that stored it; None if that is not known.
        size: Bytes; 0 of links and folders.
        modified: When the file was changed, by the host's clock; None of links and folders.
        proved: Whether a manifest that an attempt of the job proves names it, with its SHA-256.
        mode: Permission bits.
        target: Of a link.
    """

    path: str
    worker: int | None
    attempt: int | None = None
    file_type: FileType = FileType.FILE
    size: int = 0
    modified: float | None = None
    proved: bool = True
    mode: int = 0o644
    target: str = ""
    pieces: tuple[Piece, ...] = ()

    @property
    def source(self) -> str:
        """The folder for this host's files if there are several hosts."""
        return SHARED if self.worker is None else f"worker-{self.worker}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outputs:
    """What a job has stored.

    Attributes:
        place: The bucket or folder, if it is the user's own; else empty.
        files: In order of host and path.
        sources: Everyone who stored something, whatever was selected: several get folders of their own.
        left_out: Number of manifests that prove nothing and were left out.
        problems: Why newer manifests were passed over, of the first ones.
        attempts: Attempts that manifests name, whatever was selected.
    """

    job: str
    uid: str
    place: str = ""
    files: tuple[OutputFile, ...] = ()
    sources: tuple[str, ...] = ()
    left_out: int = 0
    problems: tuple[str, ...] = ()
    attempts: tuple[int, ...] = ()

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    def selected(self, patterns: Sequence[str]) -> Outputs:
        """Only what the patterns match; all if there are none. They are those of `bundles.matches`."""
        if not patterns:
            return self
        return replace(self, files=tuple(file for file in self.files if bundles.matches(file.path, patterns)))

    def proved_only(self) -> Outputs:
        """Without files that no attempt of the job proves."""
        return replace(self, files=tuple(file for file in self.files if file.proved))


@dataclass(slots=True, kw_only=True)
class _Host:
    """A host's folder in a listing, and the manifest found in it."""

    number: int
    folder: str
    seqs: list[int] = field(default_factory=list)
    sizes: dict[str, int] = field(default_factory=dict)
    manifest: Manifest | None = None
    proved: bool = True
    left_out: int = 0
    problems: list[str] = field(default_factory=list)
    attempts: set[int] = field(default_factory=set)


def find_outputs(
    store: ObjectStore,
    info: JobInfo,
    *,
    worker: int | None = None,
    attempt: int | None = None,
    unproved: bool = False,
    connections: int = CONNECTIONS,
) -> Outputs:
    """List the outputs of a job: one listing, and a read for each host.

    Args:
        store: The bastion's, or the one of `info.output_to`.
        worker: Only this host's.
        attempt: What this attempt stored, if that is still there; None: the newest.
        unproved: Also manifests that no attempt of the job proves. Files outside of manifests are always listed.
        connections: Maximum number of requests under way.

    Raises:
        StoreError: the bucket does not answer, or may not be read.
    """
    if not info.uid:
        return Outputs(job=info.name, uid="", place=info.output_to)
    prefix = keys.outputs_of(info.name, info.uid)
    hosts: dict[int, _Host] = {}
    shared: list[ObjectMeta] = []
    shared_prefix = f"{keys.output_shared(info.name, info.uid)}/"
    for meta in store.list(prefix):
        if meta.key.startswith(shared_prefix):
            shared.append(meta)
            continue
        folder, _, name = meta.key.removeprefix(prefix).partition("/")
        number = keys.host_of_outputs(folder)
        if number is None or keys.outputs(info.name, info.uid, number) != f"{prefix}{folder}/":
            continue
        host = hosts.setdefault(number, _Host(number=number, folder=f"{prefix}{folder}/"))
        seq = outputs.seq_of_manifest(name)
        if seq is None:
            host.sizes[name] = meta.size
        else:
            host.seqs.append(seq)
    public_keys = info.public_keys or RunPublicKeys(uid=info.uid)
    wanted = [hosts[number] for number in sorted(hosts) if worker in (None, number)]
    calls = [partial(_read_newest, store, host, public_keys.by_run, attempt, unproved=unproved) for host in wanted]
    for answer in concurrently(calls, connections=connections):
        if isinstance(answer, StoreError):
            raise answer
    files = [file for host in wanted for file in _files_of(host)]
    beside = _shared_files(shared, shared_prefix) if worker is None and attempt is None else []
    left_out = sum(host.left_out for host in wanted)
    stored = [f"worker-{host.number}" for host in hosts.values() if host.seqs]
    return Outputs(
        job=info.name,
        uid=info.uid,
        place=info.output_to,
        files=tuple(files + beside),
        sources=(*sorted(stored), *([SHARED] if shared and unproved else [])),
        left_out=left_out,
        problems=tuple([problem for host in wanted for problem in host.problems][:_PROBLEMS_MAX]),
        attempts=tuple(sorted(set().union(*(host.attempts for host in wanted)))) if wanted else (),
    )


def _read_newest(
    store: ObjectStore, host: _Host, public_keys: Mapping[str, str], attempt: int | None, *, unproved: bool
) -> None:
    """Find the host's newest manifest that counts. Raises StoreError."""
    proofs = ManifestProofs(place=host.folder, public_keys=public_keys)
    for seq in sorted(host.seqs, reverse=True):
        name = outputs.manifest_name(seq)
        proved = True
        try:
            data = store.get(host.folder + name, max_bytes=limits.OUTPUT_MANIFEST_MAX_BYTES).data
            manifest = proofs.read_or_older(seq, data)
        except UnprovedManifest as error:
            if not unproved or error.manifest is None:
                host.left_out += 1
                continue
            manifest, proved = error.manifest, False
        except (NotFound, ObjectTooLarge) as error:
            _note(host, name, str(error))
            continue
        number = _attempt_of(manifest)
        if number is not None:
            host.attempts.add(number)
        if attempt is not None and number != attempt:
            continue
        if not outputs.is_complete(manifest, host.sizes):
            _note(host, name, "something that it names is missing or has another size")
            continue
        host.manifest, host.proved = manifest, proved
        return


def _note(host: _Host, name: str, problem: str) -> None:
    if len(host.problems) < _PROBLEMS_MAX:
        host.problems.append(f"worker {host.number}: {name}: {problem}")


def _attempt_of(manifest: Manifest) -> int | None:
    run = Run.parse(manifest.run)
    return run.attempt if run is not None else None


def _files_of(host: _Host) -> list[OutputFile]:
    manifest = host.manifest
    if manifest is None:
        return []
    make: Callable[..., OutputFile] = partial(
        OutputFile, worker=host.number, attempt=_attempt_of(manifest), proved=host.proved
    )
    found = [make(path=path, file_type=FileType.FOLDER, mode=0o755) for path in manifest.folders]
    found += [make(path=path, file_type=FileType.LINK, target=target) for path, target in manifest.links.items()]
    found += [
        make(
            path=path,
            size=file.size,
            modified=file.mtime_ns / 1e9,
            mode=file.mode,
            pieces=tuple(
                Piece(key=host.folder + part.object, size=part.size, sha256=part.sha256) for part in file.parts
            ),
        )
        for path, file in manifest.files.items()
    ]
    return sorted(found, key=lambda file: file.path)


def _shared_files(metas: Sequence[ObjectMeta], prefix: str) -> list[OutputFile]:
    """What programs wrote. A key that is no path below a folder is shown, and refused when it is fetched."""
    return [
        OutputFile(
            path=meta.key.removeprefix(prefix),
            worker=None,
            size=meta.size,
            modified=meta.updated,
            proved=False,
            pieces=tuple(
                Piece(
                    key=meta.key,
                    start=start,
                    size=min(limits.OUTPUT_PART_BYTES, meta.size - start),
                    generation=meta.generation,
                )
                for start in range(0, meta.size, limits.OUTPUT_PART_BYTES)
            ),
        )
        for meta in metas
    ]
