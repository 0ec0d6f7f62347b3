"""A host's outputs in the bucket.

Invariants:
* A manifest is written after all objects that it names. Older manifests are deleted later, and then objects that only
  they named.
* If a write's result is unknown, the caller continues with a higher number: no name is used twice.
* Manifests that prove no run of this job count for nothing. They and what they name stay: they are not ours to delete.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass

from bastion.core import limits
from bastion.core.bucket import outputs, segment_proofs
from bastion.core.bucket.manifest_proofs import ManifestProofs, UnprovedManifest
from bastion.core.bucket.outputs import Manifest, Part
from bastion.core.errors import AccessDenied, InvalidDocument, NotFound, PreconditionFailed, StoreError
from bastion.core.run_keys import RunKey
from bastion.ports import ObjectStore

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Stored:
    generation: int
    size: int


class OutputStore:
    """A host's outputs in the bucket. `newest` is the newest complete manifest."""

    def __init__(self, store: ObjectStore, folder: str, *, proofs: ManifestProofs, run_key: RunKey) -> None:
        """`proofs`: of this run and of earlier ones; `run_key`: this run's."""
        self._store = store
        self._folder = folder
        self._proofs = proofs
        self._run_key = run_key
        self._foreign: set[str] = set()  # objects that unproved manifests name
        self._seq = 0
        self._objects: dict[str, _Stored] = {}
        self._by_digest: dict[str, str] = {}
        self._manifests: dict[int, tuple[Manifest, int]] = {}
        self.newest: Manifest | None = None

    def open(self) -> None:
        """Find what earlier runs stored, and delete what is obsolete."""
        self._objects.clear()
        self._manifests.clear()
        self._foreign.clear()
        found: dict[int, int] = {}
        for meta in self._store.list(self._folder):
            name = meta.key.removeprefix(self._folder)
            seq = outputs.seq_of_manifest(name)
            if seq is not None:
                found[seq] = meta.generation
            else:
                seq = outputs.seq_of_object(name)
                if seq is None:
                    continue  # written by something else
                self._objects[name] = _Stored(meta.generation, meta.size)
            if seq <= limits.SEQUENCE_NUMBER_BELIEVED_MAX:
                self._seq = max(self._seq, seq)
        sizes = {name: stored.size for name, stored in self._objects.items()}
        for seq, generation in found.items():
            try:
                key = self._folder + outputs.manifest_name(seq)
                data = self._store.get(key, max_bytes=limits.OUTPUT_MANIFEST_MAX_BYTES).data
                manifest = self._proofs.read(seq, data)
            except UnprovedManifest as error:
                _log.warning("ignoring manifest %d of the outputs: %s", seq, error)
                if error.manifest is not None:
                    self._foreign.update(part.object for part in error.manifest.objects())
                continue
            except (InvalidDocument, NotFound) as error:  # too large, or deleted since
                _log.warning("ignoring manifest %d of the outputs: %s", seq, error)
                continue
            self._seq = max(self._seq, seq)
            if outputs.is_complete(manifest, sizes):
                self._manifests[seq] = (manifest, generation)
        self._prune()

    def next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def has(self, part: Part) -> bool:
        return part.object in self._objects

    def put(self, data: bytes, seq: int, path: str, part: int, parts: int) -> Part:
        """Store a part of a file unless it exists. After a StoreError use another number."""
        digest = hashlib.sha256(data).hexdigest()
        name = self._by_digest.get(digest)
        if name is None:
            name = outputs.object_name(self._folder, seq, path, part, parts)
            meta = self._store.put(self._folder + name, data, generation=0)
            self._objects[name] = _Stored(meta.generation, len(data))
            self._by_digest[digest] = name
        return Part(object=name, size=len(data), sha256=digest)

    def commit(self, manifest: Manifest) -> None:
        """Write the manifest. After a StoreError it may or may not exist; use another number."""
        while True:
            key = self._folder + outputs.manifest_name(manifest.seq)
            try:
                meta = self._store.put(key, self._proofs.to_bytes(manifest, self._run_key), generation=0)
                break
            except (PreconditionFailed, AccessDenied) as error:
                if isinstance(error, AccessDenied) and self._store.head(key) is None:
                    raise
                self._seq = self._free_seq(manifest.seq)
                _log.warning("others wrote %s; the outputs go on at number %d", key, self._seq)
                manifest = manifest.model_copy(update={"seq": self._seq})
        self._manifests[manifest.seq] = (manifest, meta.generation)
        self._prune()

    def _free_seq(self, after: int) -> int:
        """The first number that no manifest has: whoever may write here can have taken many."""
        start = self._folder + outputs.manifest_name(after)
        metas = self._store.list(self._folder + outputs.MANIFEST_PREFIX, start_after=start)
        found = (outputs.seq_of_manifest(meta.key.removeprefix(self._folder)) for meta in metas)
        return segment_proofs.free_number((seq for seq in found if seq is not None), after)

    def _prune(self) -> None:
        """Delete obsolete objects; a failure is retried after the next sync."""
        kept = outputs.to_keep([manifest for manifest, _ in self._manifests.values()])
        self.newest = kept[0] if kept else None
        needed: dict[str, Part] = {part.object: part for manifest in kept for part in manifest.objects()}
        self._by_digest = {part.sha256: name for name, part in needed.items()}
        seqs = {manifest.seq for manifest in kept}
        try:
            for seq in sorted(self._manifests.keys() - seqs):
                key = self._folder + outputs.manifest_name(seq)
                self._store.delete(key, generation=self._manifests[seq][1])
                del self._manifests[seq]
            for name in sorted(self._objects.keys() - needed.keys() - self._foreign):
                self._store.delete(self._folder + name, generation=self._objects[name].generation)
                del self._objects[name]
        except StoreError as error:
            _log.warning("old outputs could not be deleted; retrying after the next sync: %s", error)
