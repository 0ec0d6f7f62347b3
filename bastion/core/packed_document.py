"""A JSON object kept in few bytes, for jobs that wait: what a spec holds is needed when the job starts, not before.

A parsed document takes up to 40 times its size in memory; this takes at most the size of its JSON.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from bastion.core import documents

# Below this, which is nearly every spec, compression saves less than it costs.
_COMPRESS_FROM_BYTES = 2048
# The header of a zlib stream; JSON objects begin with a brace.
_ZLIB = 0x78


class PackedDocument:
    """An immutable JSON object. Equal objects are equal, whatever the order of their keys."""

    __slots__ = ("_data",)

    def __init__(self, document: Mapping[str, Any], data: bytes | None = None) -> None:
        """The document, and the JSON that it was parsed from, if that is to be kept as it is."""
        data = documents.dumps(document) if data is None else data.strip()
        if len(data) >= _COMPRESS_FROM_BYTES:
            data = min(data, zlib.compress(data, 1), key=len)
        self._data = data

    @classmethod
    def of(cls, document: object) -> PackedDocument:
        """The document itself if it is packed already.

        Raises:
            ValueError: it is not a JSON object.
        """
        if isinstance(document, PackedDocument):
            return document
        if not isinstance(document, Mapping):
            raise ValueError("must be a JSON object")
        return cls(document)

    def unpack(self) -> dict[str, Any]:
        """A new dictionary with the whole content."""
        data = zlib.decompress(self._data) if self._data[0] == _ZLIB else self._data
        document: dict[str, Any] = json.loads(data)  # `documents` has checked and written it
        return document

    @property
    def size(self) -> int:
        """Bytes that it takes."""
        return len(self._data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackedDocument):
            return NotImplemented
        return self._data == other._data or self.unpack() == other.unpack()

    def __repr__(self) -> str:
        return f"PackedDocument({self.size} bytes)"
