"""The key mapping: which objects the encrypting proxy encrypts, and under which keys.

The proxy's environment, job specs and `launch` share one format, `BUCKET[/PREFIX]:KEY,...`. A malformed mapping is
refused, because a proxy that misreads it would store plaintext.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bastion.core.encryption.key_names import FORM, check_key_name
from bastion.core.errors import Refused

# The proxy's variable, which also names the format.
MAPPING = "GCP_KMS_BUCKET_KEY_MAPPING"

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedPrefix:
    """Objects of a bucket whose names share a prefix and a key (its full name in the key service).

    `prefix` works as in Cloud Storage: `ckpt` also matches `ckpt2/x`, `ckpt/` does not. Empty is the whole bucket.
    """

    bucket: str
    prefix: str
    key: str


@dataclass(frozen=True, slots=True)
class KeyMapping:
    """Keys by object; `entries` have longer prefixes first and no duplicates."""

    entries: tuple[MappedPrefix, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(sorted({entry.key for entry in self.entries}))

    @property
    def buckets(self) -> tuple[str, ...]:
        return tuple(sorted({entry.bucket for entry in self.entries}))

    def covers(self, bucket: str) -> bool:
        return any(entry.bucket == bucket for entry in self.entries)

    def overlapping(self, bucket: str, folder: str) -> MappedPrefix | None:
        """Return an entry for objects below the folder, which ends in a slash; None if there is none."""
        for entry in self.entries:
            if entry.bucket == bucket and (folder.startswith(entry.prefix) or entry.prefix.startswith(folder)):
                return entry
        return None

    def key_for(self, bucket: str, name: str) -> str | None:
        """Return the key of an object, by its longest prefix; None: stored unencrypted."""
        for entry in self.entries:
            if entry.bucket == bucket and name.startswith(entry.prefix):
                return entry.key
        return None

    @classmethod
    def parse(cls, text: str, *, called: str = MAPPING) -> KeyMapping:
        """Parse `bucket[/prefix]:KEY,...`; a prefix may contain colons, but no comma.

        `called` is the text's origin, for the message. Raises Refused if an entry is malformed, or a bucket and prefix
        appear twice.
        """
        entries: list[MappedPrefix] = []
        seen: set[tuple[str, str]] = set()
        for part in text.split(","):
            entry = _entry(part.strip(), called)
            if (entry.bucket, entry.prefix) in seen:
                raise Refused(f"{called} has {entry.bucket}/{entry.prefix} twice; remove one of them")
            seen.add((entry.bucket, entry.prefix))
            entries.append(entry)
        return cls(tuple(sorted(entries, key=lambda entry: -len(entry.prefix))))


def _entry(text: str, called: str) -> MappedPrefix:
    # The last `:projects/` begins the key: a prefix may hold anything, a key's name cannot hold a second one.
    place, colon, key = text.rpartition(":projects/")
    if not colon:
        raise Refused(f"{called}: {text[:300]!r} is not BUCKET[/PREFIX]:KEY with a KEY like {FORM}")
    bucket, _, prefix = place.partition("/")
    if not _BUCKET.fullmatch(bucket):
        hint = "; remove gs://" if place.startswith("gs:") else ""
        raise Refused(f"{called}: {bucket[:300]!r} is not a valid bucket name{hint}")
    try:
        return MappedPrefix(bucket=bucket, prefix=prefix, key=check_key_name(f"projects/{key}"))
    except Refused as error:
        raise Refused(f"{called}, of {bucket}: {error}") from error
