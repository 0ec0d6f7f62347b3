"""Envelopes as metadata: they go there and back, and what is not whole is refused by name."""

from __future__ import annotations

import pytest

from bastion.core.errors import EnvelopeBroken
from bastion.proxy.sealed.envelope import Envelope, is_ours, visible

KEY = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
WHOLE = Envelope(
    kek=KEY,
    kek_version="12",
    wrapped_session=b"wrapped session",
    wrapped_object=b"wrapped object",
    header=b"\x28" + bytes(range(39)),
    sums=b"sealed sums",
    content_encoding="gzip",
)


def test_an_envelope_goes_into_metadata_and_back() -> None:
    metadata = WHOLE.to_metadata()
    assert all(is_ours(name) for name in metadata)
    assert all(text.isascii() and text.isprintable() for text in metadata.values())
    assert Envelope.from_metadata({"owner": "alice", **metadata}) == WHOLE


def test_sums_and_content_encoding_may_be_missing() -> None:
    bare = Envelope(kek=KEY, kek_version="1", wrapped_session=b"s", wrapped_object=b"o", header=WHOLE.header)
    metadata = bare.to_metadata()
    assert set(WHOLE.to_metadata()) - set(metadata) == {"gcsproxy-sums", "gcsproxy-content-encoding"}
    assert Envelope.from_metadata(metadata) == bare


def test_names_are_found_whatever_their_case() -> None:
    shouted = {name.upper(): text for name, text in WHOLE.to_metadata().items()}
    assert Envelope.from_metadata(shouted) == WHOLE


def test_metadata_without_anything_of_ours_is_plaintext() -> None:
    assert Envelope.from_metadata({}) is None
    assert Envelope.from_metadata({"owner": "alice", "gcs": "proxy", "x-gcsproxy-kek": KEY}) is None


def test_a_name_in_two_spellings_is_refused() -> None:
    with pytest.raises(EnvelopeBroken, match="gcsproxy-kek twice"):
        Envelope.from_metadata({**WHOLE.to_metadata(), "GCSProxy-Kek": KEY})


@pytest.mark.parametrize("name", sorted(WHOLE.to_metadata().keys() - {"gcsproxy-sums", "gcsproxy-content-encoding"}))
def test_every_part_is_needed(name: str) -> None:
    metadata = WHOLE.to_metadata()
    del metadata[name]
    with pytest.raises(EnvelopeBroken, match=name):
        Envelope.from_metadata(metadata)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("gcsproxy-version", "2"),
        ("gcsproxy-version", "1 "),
        ("gcsproxy-kek", "kek"),
        ("gcsproxy-kek", KEY + "/cryptoKeyVersions/1"),
        ("gcsproxy-kek-version", "0"),
        ("gcsproxy-kek-version", "1/../2"),
        ("gcsproxy-kek-version", "\u0661"),
        ("gcsproxy-session-key", ""),
        ("gcsproxy-session-key", "not base64"),
        ("gcsproxy-session-key", "ä"),
        ("gcsproxy-session-key", "QUJD" * 1000),
        ("gcsproxy-object-key", "QUJ"),
        ("gcsproxy-header", "QUJD"),
        ("gcsproxy-sums", ""),
        ("gcsproxy-content-encoding", "gzip\r\nx-evil: 1"),
        ("gcsproxy-content-encoding", " "),
    ],
    ids=[
        "newer", "blank", "short-kek", "kek-version-as-kek", "version-0", "path-as-version", "arabic-digit",
        "empty-session", "no-base64", "no-ascii", "too-long", "cut-base64", "short-header", "empty-sums", "two-lines",
        "blank-encoding",
    ],
)  # fmt: skip
def test_what_was_not_written_so_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(EnvelopeBroken, match=name):
        Envelope.from_metadata({**WHOLE.to_metadata(), name: text})


def test_one_entry_of_ours_alone_is_no_plaintext() -> None:
    with pytest.raises(EnvelopeBroken):
        Envelope.from_metadata({"gcsproxy-anything": "x"})


def test_clients_see_their_own_metadata_only() -> None:
    assert visible({"owner": "alice", "GcsProxy-New": "x", **WHOLE.to_metadata()}) == {"owner": "alice"}


def test_an_envelope_shows_no_key_material_not_even_wrapped() -> None:
    assert repr(WHOLE) == (f"Envelope(version=1, kek={KEY!r}, kek_version='12', content_encoding='gzip')")
