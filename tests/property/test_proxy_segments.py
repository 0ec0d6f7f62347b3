"""The arithmetic of segments, at every size there is, and ranges of what was really sealed."""

from __future__ import annotations

import functools
import random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bastion.proxy.sealed import segments
from bastion.proxy.sealed.sealing import Sealing
from tests.support import sealed_objects

INNER = segments.SEGMENT_BYTES - segments.TAG_BYTES
LARGEST = INNER * segments.SEGMENTS_MAX - segments.HEADER_BYTES


def near_edges() -> st.SearchStrategy[int]:
    """Sizes around the end of some segment, and any others."""
    edges = st.builds(
        lambda index, off: max(0, segments.plain_offset(index) + off), st.integers(0, 1 << 30), st.integers(-3, 3)
    )
    return st.one_of(st.integers(0, 3), edges, st.integers(0, LARGEST))


@given(near_edges())
@example(LARGEST)
def test_sizes_go_there_and_back(plain: int) -> None:
    sealed = segments.sealed_size(plain)
    assert segments.plain_size(sealed) == plain
    count = segments.segment_count(plain)
    assert sealed == plain + segments.HEADER_BYTES + segments.TAG_BYTES * count
    assert count == -(-sealed // segments.SEGMENT_BYTES)


@given(near_edges())
def test_a_byte_more_of_plaintext_is_a_byte_or_a_segment_more_when_sealed(plain: int) -> None:
    if plain < LARGEST:
        grown = segments.sealed_size(plain + 1) - segments.sealed_size(plain)
        full = segments.sealed_size(plain) % segments.SEGMENT_BYTES == 0
        assert grown == (1 + segments.TAG_BYTES if full else 1)


@given(st.integers(-5, 2 * LARGEST))
def test_a_size_is_refused_exactly_if_nothing_sealed_has_it(sealed: int) -> None:
    # Counted another way: whole segments before the last one, and what the last one holds.
    before, rest = divmod(sealed - 1, segments.SEGMENT_BYTES)
    least = segments.HEADER_BYTES + segments.TAG_BYTES if before == 0 else segments.TAG_BYTES + 1
    possible = 0 <= before < segments.SEGMENTS_MAX and rest + 1 >= least
    if possible:
        assert segments.sealed_size(segments.plain_size(sealed)) == sealed
    else:
        with pytest.raises(ValueError, match="truncated or extended"):
            segments.plain_size(sealed)


@given(st.integers(0, 3 * segments.SEGMENT_BYTES))
def test_segments_lie_end_to_end(plain: int) -> None:
    count = segments.segment_count(plain)
    at = 0
    for index in range(count):
        assert segments.plain_offset(index) == at
        length = segments.plain_length(index, plain)
        assert length <= segments.plain_capacity(index)
        if index < count - 1:
            assert length == segments.plain_capacity(index)
            assert segments.segment_of(at + length - 1) == index
        assert length > 0 or plain == 0
        at += length
    assert at == plain
    with pytest.raises(ValueError, match="no segment"):
        segments.plain_length(count, plain)


@given(near_edges().filter(bool), st.data())
def test_a_range_reads_exactly_the_segments_that_hold_it(plain: int, data: st.DataObject) -> None:
    start = data.draw(st.one_of(st.integers(0, plain - 1), near_edges().filter(lambda at: at < plain)))
    length = data.draw(st.one_of(st.integers(1, min(3, plain - start)), st.integers(1, plain - start)))
    found = segments.sealed_range(start, length, plain)
    assert segments.plain_offset(found.first) + found.skip == start
    assert 0 <= found.skip < segments.plain_length(found.first, plain)
    # The last segment holds the range's last byte.
    end = start + length
    assert segments.plain_offset(found.last) < end
    assert end <= segments.plain_offset(found.last) + segments.plain_length(found.last, plain)
    assert found.start == segments.sealed_offset(found.first)
    reach = found.start + found.length
    if found.last == segments.segment_count(plain) - 1:
        assert reach == segments.sealed_size(plain)
    else:
        assert reach == segments.sealed_offset(found.last + 1)


@given(st.integers(0, 10), st.integers(-2, 12), st.integers(-2, 12))
def test_what_is_no_range_is_refused(plain: int, start: int, length: int) -> None:
    inside = start >= 0 and length >= 1 and start + length <= plain
    nothing_of_nothing = (plain, start, length) == (0, 0, 0)
    if inside or nothing_of_nothing:
        assert segments.sealed_range(start, length, plain).first == 0
    else:
        with pytest.raises(ValueError, match="not a range"):
            segments.sealed_range(start, length, plain)


@pytest.mark.parametrize("plain", [-1, LARGEST + 1])
def test_sizes_that_no_object_has_are_refused(plain: int) -> None:
    with pytest.raises(ValueError, match="not a valid plaintext size"):
        segments.sealed_size(plain)


@functools.cache
def _object() -> tuple[Sealing, bytes, bytes]:
    sealing = Sealing(bytes(32))
    plain = random.Random(6).randbytes(3 * INNER + 1000)
    return sealing, plain, sealed_objects.seal(sealing, plain)


@given(st.data())
def test_every_range_of_a_sealed_object_is_that_of_its_plaintext(data: st.DataObject) -> None:
    sealing, plain, sealed = _object()
    offsets = st.one_of(
        st.integers(0, len(plain) - 1),
        st.builds(lambda index, off: segments.plain_offset(index) + off, st.integers(1, 3), st.integers(-2, 2)),
    )
    start, end = sorted((data.draw(offsets), data.draw(offsets)))
    length = end - start + 1
    opened = sealed_objects.open_range(sealing, sealed, start, length, len(plain))
    assert opened == plain[start : start + length]
