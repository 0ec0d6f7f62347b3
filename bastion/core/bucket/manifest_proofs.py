"""The proof of a manifest of outputs: a signature in it, by which restoring hosts know which run of the job wrote it.

Who loads a checkpoint often runs what it holds (pickle), so nothing of another job may pass as an earlier attempt's.
A manifest has a digest of every object that it names: its proof covers these, too. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bastion.core import documents, limits
from bastion.core.bucket import outputs
from bastion.core.bucket.outputs import Manifest
from bastion.core.errors import InvalidDocument
from bastion.core.run_keys import RunKey, is_signed

_PURPOSE: Final = "outputs"
_PROOF: Final = "proof"


class UnprovedManifest(InvalidDocument):
    """No run of the job proves to have written this manifest here. `manifest`: what it says, if it can be read."""

    def __init__(self, message: str, manifest: Manifest | None = None) -> None:
        super().__init__(message)
        self.manifest = manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestProofs:
    """Whose manifests count in one host's outputs.

    Attributes:
        place: The `keys.outputs` of that host, wherever the job stores them.
        public_keys: By run, of this job only.
    """

    place: str
    public_keys: Mapping[str, str] = field(default_factory=dict)

    def read(self, seq: int, data: bytes) -> Manifest:
        """Parse the manifest with that number; raises UnprovedManifest."""
        try:
            manifest = outputs.read(data)
        except InvalidDocument as error:
            raise UnprovedManifest(str(error)) from error
        signature, signed = self._split(data)
        public = self.public_keys.get(manifest.run, "")
        if manifest.seq != seq or not public or not is_signed(public, _PURPOSE, self._signed(seq, signed), signature):
            message = f"it does not prove to be of {manifest.run}; someone else may have written it"
            raise UnprovedManifest(message, manifest)
        return manifest

    def read_or_older(self, seq: int, data: bytes) -> Manifest:
        """As `read`, for readers: also one of a run of an older version, which has an empty key and proves nothing."""
        try:
            return self.read(seq, data)
        except UnprovedManifest as error:
            if error.manifest is not None and self.public_keys.get(error.manifest.run) == "":
                return error.manifest
            raise

    def to_bytes(self, manifest: Manifest, run_key: RunKey) -> bytes:
        """The manifest with its proof."""
        data = manifest.to_bytes()
        signature = run_key.sign(_PURPOSE, self._signed(manifest.seq, data))
        return documents.dumps({**documents.loads(data, **_BOUNDS), _PROOF: signature})

    def _signed(self, seq: int, data: bytes) -> bytes:
        return f"{self.place}{outputs.manifest_name(seq)}".encode() + b"\0" + data

    @staticmethod
    def _split(data: bytes) -> tuple[str, bytes]:
        """The signature, and the rest in canonical form: with the fields that only a newer agent knows."""
        document = documents.loads(data, **_BOUNDS)
        signature = document.pop(_PROOF, "")
        return signature if isinstance(signature, str) else "", documents.dumps(document)


_BOUNDS: Final = {"max_bytes": limits.OUTPUT_MANIFEST_MAX_BYTES, "max_values": limits.OUTPUT_MANIFEST_MAX_VALUES}
