"""The parts of an input's listing: what is written is read, and nothing else."""

from __future__ import annotations

import gzip
import json

import pytest

from bastion.core.bucket import pinned
from bastion.core.bucket.pinned import Listing, PinnedObject
from bastion.core.errors import InvalidDocument


def _packed(*rows: object) -> bytes:
    return gzip.compress(json.dumps(rows).encode())


def test_a_part_is_read_as_it_was_written() -> None:
    objects = [PinnedObject("a", 0, 1), PinnedObject("deep/ü b", 2**50, 10**40)]
    assert pinned.unpack(pinned.pack(objects)) == objects
    assert [each.disk_bytes for each in objects] == [0, 2**50]


def test_a_listing_is_read_as_it_was_written() -> None:
    listing = Listing(url="gs://data/x", prefix="x/", objects=2, size=5, disk_size=8192, parts=1)
    assert pinned.read_listing(listing.to_bytes()) == listing


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no gzip",
        pinned.pack([PinnedObject("a", 1, 1)])[:-9],
        gzip.compress(b" " * (65 * 1024 * 1024)),
        _packed(["../x", 1, "1"]),
        _packed(["/etc/passwd", 1, "1"]),
        _packed(["a/./b", 1, "1"]),
        _packed([1, 1, "1"]),
        _packed(["a", -1, "1"]),
        _packed(["a", "1", "1"]),
        _packed(["a", 1, "x"]),
        _packed(["a", 1]),
    ],
)
def test_what_is_no_part_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidDocument, match="not a part of an input's listing"):
        pinned.unpack(data)


def test_what_is_no_listing_is_refused() -> None:
    for data in (b"", b"{}", b'{"url": 1}'):
        with pytest.raises(InvalidDocument, match="not a listing of an input"):
            pinned.read_listing(data)
