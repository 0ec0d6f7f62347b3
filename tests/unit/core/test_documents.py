"""Documents that others wrote: what parsing them may build is bounded before anything is built."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bastion.core import documents, limits
from bastion.core.documents import DocumentError
from bastion.core.packed_document import PackedDocument

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text('ab"\\,:[]{}\u00e9\U0001f4a3/', max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('ab"\\,:[', max_size=4), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


def count(value: Any) -> int:
    """Keys, values and containers."""
    if isinstance(value, dict):
        return 1 + sum(1 + count(inner) for inner in value.values())
    return 1 + sum(map(count, value)) if isinstance(value, list) else 1


@given(VALUES, st.booleans())
def test_what_stands_in_strings_does_not_count_and_nothing_else_is_overlooked(value: Any, escaped: bool) -> None:
    data = json.dumps(value, ensure_ascii=escaped).encode()
    assert documents.loads(data) == value
    most = 2 * count(value)
    assert documents.loads(data, max_values=most) == value
    if count(value) > 1:
        with pytest.raises(DocumentError, match="keys and values; the maximum is 1"):
            documents.loads(data, max_values=1)


@pytest.mark.parametrize(
    "data",
    [
        b'[{"":[]}' + b',{"":[]}' * 30_000 + b"]",
        b"[" + b"[]," * 40_000 + b"1]",
        b'{"a":["' + b'","' * 70_000 + b'"]}',
        b'["\\\\",' + b"1," * 70_000 + b"1]",
    ],
    ids=["objects", "lists", "strings", "numbers after a backslash"],
)
def test_a_document_of_too_many_values_is_refused_before_it_is_built(data: bytes) -> None:
    assert len(data) < limits.DOCUMENT_MAX_BYTES
    with pytest.raises(DocumentError, match=r"keys and values; the maximum is 65536"):
        documents.loads(data)


def test_commas_and_brackets_in_a_string_are_text() -> None:
    document = {"command": 'echo "' + ",:[{" * 30_000 + '\\"'}
    assert documents.loads(json.dumps(document).encode(), max_values=10) == document


@pytest.mark.parametrize("digits", ["9" * 21, "-" + "9" * 20, "9" * 4300, "1" * 100_000])
def test_an_integer_that_no_machine_counts_to_is_refused(digits: str) -> None:
    with pytest.raises(DocumentError, match=f"an integer is {len(digits)} characters long; the maximum is 20"):
        documents.loads(f'{{"epoch": {digits}}}'.encode())


@pytest.mark.parametrize("number", [2**63 - 1, -(2**63), 0.1234567890123456789, 1e-300])
def test_numbers_that_programs_write_are_read(number: float) -> None:
    assert documents.loads(json.dumps([number]).encode()) == [number]


@given(st.dictionaries(st.text(max_size=3), VALUES, max_size=5), st.sampled_from(("", "x" * 5000)))
def test_a_packed_document_comes_back_and_equals_the_same_in_another_order(
    document: dict[str, Any], filling: str
) -> None:
    document["filling"] = filling
    packed = PackedDocument(document)
    assert packed.unpack() == document
    assert packed == PackedDocument(dict(reversed(document.items())))
    assert packed != PackedDocument({**document, "filling": "other"})
    assert PackedDocument.of(packed) is packed
    assert packed.size <= len(documents.dumps(document))


def test_a_byte_order_mark_is_named() -> None:
    with pytest.raises(DocumentError, match="Unexpected UTF-8 BOM"):
        documents.loads(b"\xef\xbb\xbf{}")
