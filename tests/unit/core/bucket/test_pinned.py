"""The parts of an input's listing: what is written is read, and nothing else."""

from __future__ import annotations

import gzip
import json

import pytest

from bastion.core.bucket import pinned
from bastion.core.bucket.pinned import Listing, PinnedObject
from bastion.core.errors import InvalidDocument
from bastion.core.run_keys import RunKey

KEY = RunKey(b"k" * 32)
PLACE = "outputs/job/abcdefghij/inputs/1/0/listing"
LISTING = Listing(url="gs://data/x", prefix="x/", objects=2, size=5, disk_size=8192, parts=1, digests=["0" * 64])


def _packed(*rows: object) -> bytes:
    return gzip.compress(json.dumps(rows).encode())


def test_a_part_is_read_as_it_was_written() -> None:
    objects = [PinnedObject("a", 0, 1), PinnedObject("deep/ü b", 2**50, 10**40)]
    assert pinned.unpack(pinned.pack(objects)) == objects
    assert [each.disk_bytes for each in objects] == [0, 2**50]


def test_a_listing_is_read_as_it_was_written() -> None:
    assert pinned.read_listing(LISTING.to_bytes()) == LISTING


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


def test_a_listings_proof_holds_for_its_run_its_key_and_its_fields_alone() -> None:
    data = pinned.with_proof(PLACE, LISTING, KEY)
    assert pinned.proved(PLACE, data, KEY.public) == LISTING
    with_another_field = json.dumps({**json.loads(data), "later": 1}).encode()
    forged = [
        (PLACE, data, RunKey(b"o" * 32).public),
        (PLACE.replace("/0/", "/1/"), data, KEY.public),
        (PLACE, data.replace(b"x/", b"y/"), KEY.public),
        (PLACE, data.replace(b"0" * 64, b"1" * 64), KEY.public),
        (PLACE, with_another_field, KEY.public),
        (PLACE, LISTING.to_bytes(), KEY.public),
        (PLACE, LISTING.to_bytes().replace(b"{", b'{"proof":1,'), KEY.public),
    ]
    for place, document, public in forged:
        with pytest.raises(InvalidDocument, match="does not prove to be of this run"):
            pinned.proved(place, document, public)


def test_nobody_else_knows_a_listings_name() -> None:
    names = {pinned.listing_name(RunKey(bytes([number]) * 32)) for number in range(3)}
    assert len(names) == 3
    assert not any(KEY.text in name or KEY.claim_tag in name for name in (*names, pinned.listing_name(KEY)))
