"""Rewrap stored objects with a key's primary version: metadata changes, contents stay.

Once all objects are rewrapped, the old version can be disabled. An object that changes meanwhile is skipped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from bastion.core.errors import BastionError, EnvelopeBroken, KmsRefused, PreconditionFailed, StoreError
from bastion.ports import ObjectMetadata
from bastion.proxy.sealed.envelope import Envelope
from bastion.proxy.sealed.envelopes import Envelopes
from bastion.proxy.settings import KeyMapping


@dataclass(slots=True, kw_only=True)
class Rewrapped:
    """Counts of objects.

    Attributes:
        done: Rewrapped, or to be rewrapped (`dry_run`).
        current: Already under the primary version.
        plaintext: Not encrypted, although mapped.
        changed: Changed concurrently; run it again.
        failed: Not openable or not changeable.
    """

    done: int = 0
    current: int = 0
    plaintext: int = 0
    changed: int = 0
    failed: int = 0


def rewrap(
    objects: ObjectMetadata,
    envelopes: Envelopes,
    mapping: KeyMapping,
    *,
    bucket: str,
    prefix: str = "",
    dry_run: bool = False,
    say: Callable[[str], None],
) -> Rewrapped:
    """Rewrap a bucket, or the objects below a prefix. Call `say` with each object that fails, and why.

    Raises KmsUnavailable if the key service does not answer (finished objects stay rewrapped), and StoreError if the
    bucket cannot be listed.
    """
    counts = Rewrapped()
    for found in objects.list(bucket, prefix):
        kek = mapping.key_for(bucket, found.name)
        if kek is None:
            continue
        try:
            envelope = Envelope.from_metadata(found.metadata)
            if envelope is None:
                counts.plaintext += 1
                continue
            fresh = envelopes.rewrapped(envelope, bucket, found.name, kek)
            if fresh is None:
                counts.current += 1
                continue
            if not dry_run:
                objects.patch(bucket, found, fresh.to_metadata())
            counts.done += 1
        except PreconditionFailed:
            counts.changed += 1
        except (EnvelopeBroken, KmsRefused, StoreError) as error:
            counts.failed += 1
            say(f"{found.name}: {_one_line(error)}")
    return counts


def _one_line(error: BastionError) -> str:
    return " ".join(str(error).split())
