"""The documented way to decrypt without us works, and the page's facts are the program's."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
import tink
from cryptography.exceptions import InvalidTag

from bastion.adapters.kms import keyring
from bastion.adapters.kms.keyring import KeyringKms
from bastion.proxy.sealed import envelope, envelopes, sealing, segments
from bastion.proxy.sealed.envelopes import Envelopes
from bastion.proxy.sealed.sealing import Sealing
from bastion.testing.manual_clock import ManualClock
from tests.support import documented_decryption, sealed_objects

KEK = "projects/p/locations/global/keyRings/r/cryptoKeys/k"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "object-format.md"


@pytest.mark.parametrize("size", [0, 10, 600_000])
def test_the_page_decrypts_what_the_proxy_stores(tmp_path: Path, size: int) -> None:
    ring = tmp_path / "keyring.json"
    keyring.create(ring, KEK)
    keyring.rotate(ring, KEK)
    plain = os.urandom(size)
    made, key = Envelopes(KeyringKms(ring), clock=ManualClock()).new(KEK, "lake", "été/1")
    sealed = sealed_objects.seal(Sealing(key, made.header), plain)
    described = {"bucket": "lake", "name": "été/1", "metadata": {"owner": "alice", **made.to_metadata()}}

    decryption, _, from_keyring = documented_decryption.programs()
    names = documented_decryption.run(decryption, from_keyring)
    unwrap = names["unwrap_with"](ring, made.kek_version)
    with names["decrypted"](described, io.BytesIO(sealed), unwrap) as stream:
        assert stream.read() == plain

    with pytest.raises(InvalidTag):
        names["decrypted"]({**described, "name": "another"}, io.BytesIO(sealed), unwrap)
    with pytest.raises(tink.TinkError), names["decrypted"](described, io.BytesIO(sealed[:-1]), unwrap) as stream:
        stream.read()


def test_the_page_has_every_name_and_constant_of_the_format() -> None:
    page = " ".join(PAGE.read_text("utf-8").split())
    full = envelope.Envelope(
        kek=KEK,
        kek_version="1",
        wrapped_session=b"x",
        wrapped_object=b"x",
        header=sealing.new_header(),
        sums=b"x",
        content_encoding="gzip",
    )
    for text in (
        *full.to_metadata(),
        sealing.ASSOCIATED.decode(),
        envelopes.SESSION_CONTEXT.decode(),
        envelopes._SUMS_INFO.decode(),
    ):
        assert f"`{text}`" in page, text
    assert f"{segments.SEGMENT_BYTES:,}" in page
    assert f"C - {segments.HEADER_BYTES} - {segments.TAG_BYTES} * ceil(C / {segments.SEGMENT_BYTES})" in page
