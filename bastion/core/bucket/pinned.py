"""The pinned listing of an input: which generation of which object all hosts of an attempt fetch.

Below `keys.pinned_input(job, run, number)` are `part-<n>` (ten digits, in order of the paths, gzip JSON) and, written
last, `listing-<tag>`. Other jobs' hosts may write there, too: the listing has a digest of each part and a signature
with the run's key, and nobody else knows its name before it is there.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bastion.core import documents, limits
from bastion.core.errors import InvalidDocument
from bastion.core.run_keys import RunKey, is_signed

_PURPOSE: Final = "inputs"
_PROOF: Final = "proof"
_UNPACKED_MAX_BYTES = 64 * 1024 * 1024
# zlib's number for the gzip format.
_GZIP = 31
# Disks store whole blocks.
_BLOCK_BYTES = 4096


class PinnedObject(NamedTuple):
    """One object; `path` is relative to the input's folder."""

    path: str
    size: int
    generation: int

    @property
    def disk_bytes(self) -> int:
        return -(-self.size // _BLOCK_BYTES) * _BLOCK_BYTES


class Listing(BaseModel):
    """What the parts have together.

    Attributes:
        prefix: What an object's key has before its path.
        size: Bytes of all objects; `disk_size`: the same in whole blocks.
        digests: The SHA-256 of each part.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore", defer_build=True)

    format: int = 1
    url: str
    prefix: str
    objects: int = Field(ge=0)
    size: int = Field(ge=0)
    disk_size: int = Field(ge=0)
    parts: int = Field(ge=0)
    digests: list[str] = Field(default_factory=list)

    def to_bytes(self) -> bytes:
        return documents.dumps(self.model_dump(mode="json"))


def read_listing(data: bytes) -> Listing:
    """Parse a listing; raises InvalidDocument if it is not one."""
    try:
        documents.loads(data)
        return Listing.model_validate_json(data)
    except (documents.DocumentError, ValidationError) as error:
        raise InvalidDocument(f"not a listing of an input: {str(error)[:500]}") from error


def listing_name(run_key: RunKey) -> str:
    return f"listing-{run_key.inputs_tag}"


def with_proof(key: str, listing: Listing, run_key: RunKey) -> bytes:
    """Return the listing to store at this key."""
    data = listing.to_bytes()
    return documents.dumps({**documents.loads(data), _PROOF: run_key.sign(_PURPOSE, _signed(key, data))})


def proved(key: str, data: bytes, public: str) -> Listing:
    """Parse a listing; raises InvalidDocument if the run with this public key did not write it at this key."""
    listing = read_listing(data)
    document = documents.loads(data)
    signature = document.pop(_PROOF, None)
    signed = _signed(key, documents.dumps(document))
    if not isinstance(signature, str) or not is_signed(public, _PURPOSE, signed, signature):
        raise InvalidDocument("it does not prove to be of this run; someone else may have written it")
    return listing


def _signed(key: str, data: bytes) -> bytes:
    return key.encode() + b"\0" + data


def digest(part: bytes) -> str:
    return hashlib.sha256(part).hexdigest()


def part_name(number: int) -> str:
    return f"part-{number:010d}"


def pack(objects: Sequence[PinnedObject]) -> bytes:
    """Return the bytes of a part."""
    # A generation may have more digits than every JSON parser reads.
    rows = [[each.path, each.size, str(each.generation)] for each in objects]
    packer = zlib.compressobj(wbits=_GZIP)
    return packer.compress(json.dumps(rows, ensure_ascii=False, separators=(",", ":")).encode()) + packer.flush()


def unpack(data: bytes) -> list[PinnedObject]:
    """Read a part; raises InvalidDocument if it is not one."""
    unpacker = zlib.decompressobj(wbits=_GZIP)
    try:
        text = unpacker.decompress(data, _UNPACKED_MAX_BYTES)
        if not unpacker.eof:
            raise ValueError("it is truncated or too large")
        rows = documents.loads(text, max_bytes=_UNPACKED_MAX_BYTES, max_values=8 * limits.INPUT_PART_OBJECTS)
        return [PinnedObject(_path(path), _count(size), int(generation)) for path, size, generation in rows]
    except (zlib.error, ValueError, TypeError) as error:
        raise InvalidDocument(f"not a part of an input's listing: {str(error)[:500]}") from error


def _path(value: object) -> str:
    """Other jobs' hosts may write there, too: no path leaves the input's folder."""
    if not isinstance(value, str) or any(name in ("", ".", "..") for name in value.split("/")):
        raise ValueError("a path is not below the input's folder")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError("a size is not a number")
    return value
