"""Where a job's outputs are, and how much the newest proved manifest of worker 0 has."""

from __future__ import annotations

from dataclasses import dataclass

from bastion.client.jobs.client import Client
from bastion.client.jobs.job_info import JobInfo
from bastion.core import limits
from bastion.core.bucket import keys, outputs
from bastion.core.bucket.manifest_proofs import ManifestProofs, UnprovedManifest
from bastion.core.errors import NotFound, ObjectTooLarge


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredOutputs:
    """A job's outputs. `files` and `size_bytes` are of worker 0's newest sync; None if it has none, or none is read."""

    url: str
    files: int | None = None
    size_bytes: int | None = None


def stored_outputs(client: Client, info: JobInfo, output_dir: str) -> StoredOutputs | None:
    """Look at the outputs, in two requests; None if the job stores none.

    Those in a place of the user's own are not read: this client may have no right to it.

    Raises:
        StoreError: the bucket does not answer.
    """
    if not output_dir or not info.uid:
        return None
    if info.output_to:
        return StoredOutputs(url=info.output_to)
    url = f"{client.root.url}/{keys.outputs_of(info.name, info.uid)}"
    place = keys.outputs(info.name, info.uid, 0)
    found = [
        number
        for meta in client.store.list(f"{place}{outputs.MANIFEST_PREFIX}")
        if (number := outputs.seq_of_manifest(meta.key.removeprefix(place))) is not None
    ]
    known = info.public_keys
    if not found or known is None:
        return StoredOutputs(url=url)
    newest = max(found)
    try:
        key = f"{place}{outputs.manifest_name(newest)}"
        data = client.store.get(key, max_bytes=limits.OUTPUT_MANIFEST_MAX_BYTES).data
        manifest = ManifestProofs(place=place, public_keys=known.by_run).read(newest, data)
    except (NotFound, ObjectTooLarge, UnprovedManifest):
        return StoredOutputs(url=url)
    return StoredOutputs(url=url, files=len(manifest.files), size_bytes=manifest.size)
