"""A JSON object in few bytes, for waiting jobs: at most the size of its JSON, a fortieth of the parsed document."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from bastion.core import documents

# Compression does not pay below this size, which covers nearly every spec.
_COMPRESS_FROM_BYTES = 2048
# The header of a zlib stream; JSON objects begin with a brace.
_ZLIB = 0x78


class PackedDocument:
    """An immutable JSON object; equality ignores the order of keys."""

    __slots__ = ("_data",)

    def __init__(self, document: Mapping[str, Any], data: bytes | None = None) -> None:
        """Pack a document. `data` is the JSON that it was parsed from, kept unchanged."""
        data = documents.dumps(document) if data is None else data.strip()
        if len(data) >= _COMPRESS_FROM_BYTES:
            data = min(data, zlib.compress(data, 1), key=len)
        self._data = data

    @classmethod
    def of(cls, document: object) -> PackedDocument:
        """Pack a document unless it is packed already; raises ValueError if it is not a JSON object."""
        if isinstance(document, PackedDocument):
            return document
        if not isinstance(document, Mapping):
            raise ValueError("must be a JSON object")
        return cls(document)

    def unpack(self) -> dict[str, Any]:
        data = zlib.decompress(self._data) if self._data[0] == _ZLIB else self._data
        document: dict[str, Any] = json.loads(data)  # checked and written by `documents`
        return document

    @property
    def size(self) -> int:
        return len(self._data)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PackedDocument):
            return NotImplemented
        return self._data == other._data or self.unpack() == other.unpack()

    def __repr__(self) -> str:
        return f"PackedDocument({self.size} bytes)"
