"""The text of log segments as they are in the bucket, without proofs."""

from __future__ import annotations

from bastion.core.bucket import segment_proofs
from bastion.ports import ObjectStore


def stored_text(store: ObjectStore, folder: str) -> str:
    """What the segments of a folder hold, one after another."""
    segments = [store.get(meta.key).data for meta in store.list(folder)]
    return b"".join(map(segment_proofs.without_proof, segments)).decode()
