"""Which objects the encrypting proxy encrypts, and under which keys.

The proxy reads it from its environment, job specs hold it as text, and `launch` takes it as a flag:
all in one format, `BUCKET[/PREFIX]:KEY,...`. What is malformed is refused, never guessed at: a proxy that misreads its
mapping would store plaintext.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from bastion.core.encryption.key_names import FORM, check_key_name
from bastion.core.errors import Refused

# The variable that tells the proxy, and so the name of the format.
MAPPING = "GCP_KMS_BUCKET_KEY_MAPPING"

_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class MappedPrefix:
    """Objects that share a key: those of a bucket whose name begins with a prefix.

    Attributes:
        prefix: As Cloud Storage has prefixes: `ckpt` begins `ckpt2/x`, too, `ckpt/` does not. Empty: the whole bucket.
        key: Full name of the key in the key service.
    """

    bucket: str
    prefix: str
    key: str


@dataclass(frozen=True, slots=True)
class KeyMapping:
    """Which key encrypts which object.

    Attributes:
        entries: Longer prefixes first; no two of the same bucket and prefix.
    """

    entries: tuple[MappedPrefix, ...]

    @property
    def keys(self) -> tuple[str, ...]:
        """Every key that is named, once, in order of name."""
        return tuple(sorted({entry.key for entry in self.entries}))

    @property
    def buckets(self) -> tuple[str, ...]:
        """Every bucket of which something is encrypted, in order of name."""
        return tuple(sorted({entry.bucket for entry in self.entries}))

    def covers(self, bucket: str) -> bool:
        """Whether anything in the bucket is encrypted."""
        return any(entry.bucket == bucket for entry in self.entries)

    def overlapping(self, bucket: str, folder: str) -> MappedPrefix | None:
        """An entry that encrypts something below the folder, which ends in a slash; None if there is none."""
        for entry in self.entries:
            if entry.bucket == bucket and (folder.startswith(entry.prefix) or entry.prefix.startswith(folder)):
                return entry
        return None

    def key_for(self, bucket: str, name: str) -> str | None:
        """The key of an object, by the longest prefix that its name begins with; None: it is stored as it is."""
        for entry in self.entries:
            if entry.bucket == bucket and name.startswith(entry.prefix):
                return entry.key
        return None

    @classmethod
    def parse(cls, text: str, *, called: str = MAPPING) -> KeyMapping:
        """From `bucket[/prefix]:KEY,...`; a prefix may hold colons, but no comma.

        Args:
            called: Where the text stands, for the message.

        Raises:
            Refused: an entry is none of that form, or two have one bucket and prefix.
        """
        entries: list[MappedPrefix] = []
        seen: set[tuple[str, str]] = set()
        for part in text.split(","):
            entry = _entry(part.strip(), called)
            if (entry.bucket, entry.prefix) in seen:
                raise Refused(f"{called} names {entry.bucket}/{entry.prefix} twice; leave one of them out")
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
        hint = "; leave out gs://" if place.startswith("gs:") else ""
        raise Refused(f"{called}: {bucket[:300]!r} is not the name of a bucket{hint}")
    try:
        return MappedPrefix(bucket=bucket, prefix=prefix, key=check_key_name(f"projects/{key}"))
    except Refused as error:
        raise Refused(f"{called}, of {bucket}: {error}") from error
