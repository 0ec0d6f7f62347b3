"""Puts objects that are stored already under a key's primary version: metadata changes, contents stay.

Layer: proxy. After a rotation in the key service, what was stored before stays readable through the old version; once
everything was rewrapped, that version can be disabled. An object that changes meanwhile is left to whoever changed it.
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
    """What was found and done, in objects.

    Attributes:
        done: Put under the primary version (with `dry_run`: would be).
        current: Under it already.
        plaintext: Not encrypted at all, although the mapping covers them.
        changed: Changed by somebody else in that moment; run it again.
        failed: Could not be opened or changed.
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
    """Goes through a bucket, or what lies below a prefix.

    Args:
        say: Told each object that fails, and why.

    Raises:
        KmsUnavailable: the key service does not answer; what was done stays done.
        StoreError: the bucket cannot be listed.
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
