"""The sealed form against Tink in both directions, at the sizes where segments begin and end; and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import tink

from bastion.core.errors import SealBroken
from bastion.proxy.sealed import segments
from bastion.proxy.sealed.sealing import ASSOCIATED, Sealing, is_header, new_header
from tests.support import sealed_objects, tink_streaming

KEY = bytes(range(32))
FIRST = segments.plain_capacity(0)
LATER = segments.plain_capacity(1)
EDGES = [
    0,
    1,
    FIRST - 1,
    FIRST,
    FIRST + 1,
    FIRST + LATER - 1,
    FIRST + LATER,
    FIRST + LATER + 1,
    FIRST + 2 * LATER,
]
THREE = FIRST + LATER + 1000


def content(size: int) -> bytes:
    return os.urandom(size)


@pytest.mark.parametrize("size", EDGES)
def test_tink_opens_what_we_sealed(size: int) -> None:
    plain = content(size)
    sealed = sealed_objects.seal(Sealing(KEY), plain)
    assert len(sealed) == segments.sealed_size(size)
    assert tink_streaming.open_(KEY, sealed) == plain


@pytest.mark.parametrize("size", EDGES)
def test_we_open_what_tink_sealed(size: int) -> None:
    plain = content(size)
    sealed = tink_streaming.seal(KEY, plain)
    assert segments.plain_size(len(sealed)) == size
    assert sealed_objects.open_(KEY, sealed) == plain


def test_what_tink_sealed_with_other_associated_data_is_refused() -> None:
    sealed = tink_streaming.seal(KEY, b"plaintext", ASSOCIATED + b"!")
    with pytest.raises(SealBroken):
        sealed_objects.open_(KEY, sealed)


def test_tink_refuses_ours_with_other_associated_data() -> None:
    sealed = sealed_objects.seal(Sealing(KEY), b"plaintext")
    with pytest.raises(tink.TinkError):
        tink_streaming.open_(KEY, sealed, b"")


def _flip(at: int) -> Callable[[bytes], bytes]:
    def flipped(sealed: bytes) -> bytes:
        place = at % len(sealed)
        return sealed[:place] + bytes([sealed[place] ^ 1]) + sealed[place + 1 :]

    return flipped


def _parts(sealed: bytes) -> list[bytes]:
    step = segments.SEGMENT_BYTES
    return [sealed[at : at + step] for at in range(0, len(sealed), step)]


# Of an object of three segments, the last one short.
BREAKS: dict[str, Callable[[bytes], bytes]] = {
    "salt": _flip(1),
    "nonce-prefix": _flip(39),
    "first-byte": _flip(40),
    "tag-of-the-first": _flip(segments.SEGMENT_BYTES - 1),
    "second-segment": _flip(segments.SEGMENT_BYTES),
    "last-byte": _flip(-1),
    "last-segment-cut-off": lambda sealed: sealed[: 2 * segments.SEGMENT_BYTES],
    "all-but-the-first-cut-off": lambda sealed: sealed[: segments.SEGMENT_BYTES],
    "last-byte-cut-off": lambda sealed: sealed[:-1],
    "byte-added": lambda sealed: sealed + b"\0",
    "second-twice": lambda sealed: b"".join(_parts(sealed)[index] for index in (0, 1, 1, 2)),
    "second-left-out": lambda sealed: b"".join(_parts(sealed)[index] for index in (0, 2)),
}


@pytest.mark.parametrize("broken", BREAKS.values(), ids=BREAKS)
def test_what_was_changed_cut_or_put_together_is_refused_as_tink_refuses_it(
    broken: Callable[[bytes], bytes],
) -> None:
    sealed = sealed_objects.seal(Sealing(KEY), content(THREE))
    changed = broken(sealed)
    assert changed != sealed
    with pytest.raises(SealBroken):
        sealed_objects.open_(KEY, changed)
    with pytest.raises(tink.TinkError):
        tink_streaming.open_(KEY, changed)


def test_segments_in_another_order_are_refused() -> None:
    plain = content(FIRST + 3 * LATER)
    parts = _parts(sealed_objects.seal(Sealing(KEY), plain))
    changed = b"".join(parts[index] for index in (0, 2, 1, 3))
    with pytest.raises(SealBroken, match="segment 1 "):
        sealed_objects.open_(KEY, changed)


def test_another_key_is_refused() -> None:
    sealed = sealed_objects.seal(Sealing(KEY), b"plaintext")
    with pytest.raises(SealBroken):
        sealed_objects.open_(bytes(32), sealed)


@pytest.mark.parametrize("last", [True, False])
def test_a_segment_opens_only_with_the_last_flag_it_was_sealed_with(last: bool) -> None:
    sealing = Sealing(KEY)
    plain = content(LATER)
    sealed = sealing.seal(1, plain, last=last)
    assert sealing.open(1, sealed, last=last) == plain
    with pytest.raises(SealBroken):
        sealing.open(1, sealed, last=not last)


@pytest.mark.parametrize(
    ("index", "size", "last"),
    [
        (0, FIRST - 1, False),
        (0, FIRST + 1, False),
        (0, FIRST + 1, True),
        (1, LATER - 1, False),
        (1, LATER + 1, True),
        (1, 0, True),
        (1, FIRST, False),
        (-1, LATER, False),
        (1 << 32, LATER, False),
    ],
)
def test_sizes_that_no_segment_has_are_neither_sealed_nor_opened(index: int, size: int, last: bool) -> None:
    sealing = Sealing(KEY)
    with pytest.raises(ValueError, match="do not fit segment"):
        sealing.seal(index, bytes(size), last=last)
    with pytest.raises(ValueError, match="do not fit segment"):
        sealing.seal_into(index, bytes(size), bytearray(size + segments.TAG_BYTES), last=last)
    with pytest.raises(SealBroken):
        sealing.open(index, bytes(size + segments.TAG_BYTES), last=last)
    with pytest.raises(SealBroken):
        sealing.open_into(index, bytes(size + segments.TAG_BYTES), bytearray(size), last=last)


@pytest.mark.parametrize("size", [0, 1, segments.TAG_BYTES - 1])
def test_less_than_a_tag_is_refused(size: int) -> None:
    with pytest.raises(SealBroken):
        Sealing(KEY).open(0, bytes(size), last=True)


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview], ids=["bytes", "bytearray", "memoryview"])
def test_every_kind_of_buffer_is_taken(buffer: Callable[[bytes], bytes]) -> None:
    sealing = Sealing(KEY)
    sealed = sealing.seal(0, buffer(b"plaintext"), last=True)
    assert sealing.open(0, buffer(sealed), last=True) == b"plaintext"


def test_sealing_into_a_buffer_gives_the_same_bytes() -> None:
    sealing = Sealing(KEY)
    plain = content(LATER)
    into = bytearray(2 * segments.SEGMENT_BYTES)
    sealing.seal_into(1, plain, memoryview(into)[100 : 100 + segments.SEGMENT_BYTES], last=False)
    sealed = bytes(into[100 : 100 + segments.SEGMENT_BYTES])
    assert sealed == sealing.seal(1, plain, last=False)
    opened = bytearray(LATER)
    sealing.open_into(1, memoryview(sealed), opened, last=False)
    assert opened == plain
    with pytest.raises(SealBroken):
        sealing.open_into(2, sealed, opened, last=False)


def test_every_object_has_a_header_of_its_own() -> None:
    headers = {Sealing(KEY).header for _ in range(50)}
    assert len(headers) == 50
    assert all(is_header(header) for header in headers)
    assert new_header(bytes) == b"\x28" + bytes(39)


@pytest.mark.parametrize("header", [b"", bytes(40), b"\x28" + bytes(38), b"\x28" + bytes(40)])
def test_what_cannot_be_a_header_is_refused(header: bytes) -> None:
    with pytest.raises(ValueError, match="header"):
        Sealing(KEY, header)


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_keys_have_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Sealing(bytes(size))


def test_neither_what_it_shows_nor_what_it_raises_holds_the_key_or_plaintext() -> None:
    key = b"K" * 32
    sealing = Sealing(key)
    sealed = sealing.seal(0, b"secret text", last=True)
    with pytest.raises(SealBroken) as broken:
        sealing.open(0, sealed[:-1] + b"\0\0", last=True)
    with pytest.raises(ValueError, match="do not fit segment") as misfit:
        sealing.seal(0, b"secret text", last=False)
    for shown in (repr(sealing), repr(broken.value), repr(misfit.value)):
        assert "secret" not in shown
        assert "KKKK" not in shown
    assert broken.value.__context__ is None
